//! Sorts errors of the database and of the connection by their meaning for a call.

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::{Fault, StoreError};
use crate::events::NoticeLevel;
use base::tls::certificate_error;

/// The largest number of bytes of a server's message that are reported.
const LONGEST_TEXT: usize = 300;

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        match error.as_db_error() {
            Some(answer) => Fault::new(kind(answer.code()), text(answer)),
            None if error.is_closed() => Fault::new(StoreError::Closed, "the connection was closed"),
            None => {
                // The error's own text names only the step that failed.
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                // With TLS 1.3, a server may refuse the gateway's certificate after the handshake.
                let text = format!("{error}{cause}");
                Fault::new(StoreError::Closed, certificate_error::of_server(&text))
            }
        }
    }
}

/// Whether the error proves that the transaction was rolled back and may be tried again.
pub(crate) fn proves_rollback(error: &Error) -> bool {
    let conflict = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED, SqlState::LOCK_NOT_AVAILABLE];
    error.code().is_some_and(|code| conflict.contains(code))
}

/// Whether the server rolled the transaction back, because it conflicts with other transactions.
pub(crate) fn is_serialization_failure(error: &Error) -> bool {
    error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
}

fn kind(code: &SqlState) -> StoreError {
    match code.code() {
        "28000" | "28P01" => StoreError::Unauthorized,
        "42501" => StoreError::Forbidden,
        // The transaction is read-only.
        "25006" => StoreError::Replica,
        // A table, column, function or schema does not exist. A missing database (3D000) is no matter of its tables.
        "42P01" | "42703" | "42883" | "3F000" => StoreError::WrongSchema,
        // The server shuts down or has crashed, the database was dropped, or the connection was idle for too long.
        "57P01" | "57P02" | "57P04" | "57P05" | "25P03" => StoreError::Closed,
        // The server starts, stops or recovers.
        "57P03" => StoreError::Loading,
        // The disk is full, or the memory is used up.
        "53100" | "53200" => StoreError::OutOfMemory,
        // There are too many connections, a lock was not available, or the transaction met a conflict or was cancelled.
        "53300" | "55P03" | "40P01" | "40001" | "57014" => StoreError::Busy,
        _ if code.code().starts_with("08") => StoreError::Closed,
        _ => StoreError::Refused,
    }
}

/// Returns the level of a message that is no error.
pub(super) fn notice_level(notice: &DbError) -> NoticeLevel {
    // A pooler may send the level only as a text, which servers translate.
    match (notice.parsed_severity(), notice.severity()) {
        (Some(Severity::Warning), _) | (None, "WARNING") => NoticeLevel::Warning,
        (Some(Severity::Debug), _) => NoticeLevel::Debug,
        (None, level) if level.starts_with("DEBUG") => NoticeLevel::Debug,
        _ => NoticeLevel::Notice,
    }
}

/// Returns the server's message with its error code.
pub(super) fn text(answer: &DbError) -> String {
    let message = answer.message();
    let end = (0..=LONGEST_TEXT.min(message.len())).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
    format!("{} ({})", message.get(..end).unwrap_or_default(), answer.code().code())
}

/// Returns the fault of a reply that is not valid for the statement with this name.
pub(crate) fn unexpected_reply(statement: &str) -> Fault {
    Fault::new(StoreError::UnexpectedReply, format!("{statement} was answered with something else"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_database_is_no_wrong_schema() {
        let kinds = ["3D000", "42P01", "3F000", "XX000"].map(|code| kind(&SqlState::from_code(code)));
        let (schema, refused) = (StoreError::WrongSchema, StoreError::Refused);
        assert_eq!(kinds, [refused, schema, schema, refused]);
    }
}

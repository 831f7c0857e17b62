//! Holds fields as text until the head of the next response of an HTTP/1 connection is written, and joins them to it.

use std::fmt;
use std::io;

use bytes::Bytes;
use parking_lot::Mutex;

const HEAD: &[u8] = b"HTTP/1.";
const END: &[u8] = b"\r\n\r\n";

/// Fields as lines of an HTTP/1 head.
#[derive(Debug, Default)]
pub struct RawFields(Vec<u8>);

impl RawFields {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Neither a name nor a value may have a line end.
    pub(super) fn push(&mut self, name: &str, value: &[u8]) {
        // Enough for all fields of most responses.
        self.0.reserve(if self.0.is_empty() { 256 } else { name.len() + value.len() + 4 });
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.0.extend_from_slice(part);
        }
    }
}

/// The fields for the next response head of one connection. The proxy sets them, and the stream writes them.
#[derive(Debug, Default)]
pub struct PendingFields(Mutex<RawFields>);

/// The first bytes of a response, as far as pending fields concern them.
#[derive(Debug, PartialEq, Eq)]
pub enum ResponseStart {
    /// The head of a 1xx response, after which another head follows: the fields stay pending.
    Interim,
    /// The response's head, for which no fields were pending.
    Unchanged,
    /// The response's head with the fields that were pending.
    Head(Bytes),
}

/// Fields were pending while bytes were written that are no complete head: no client would ever get the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldsLost;

impl PendingFields {
    /// Replaces the fields of a response that was not written.
    pub fn put(&self, fields: RawFields) {
        *self.0.lock() = fields;
    }

    /// Joins the fields to `head`, the first bytes of a response that are written after they were put.
    ///
    /// # Errors
    /// If there are fields, and these bytes do not end as a head does: nothing else could carry them.
    pub fn join(&self, head: &[u8]) -> Result<ResponseStart, FieldsLost> {
        let fields = head.strip_suffix(END).filter(|_| head.starts_with(HEAD));
        if fields.is_some() && is_interim(head) {
            return Ok(ResponseStart::Interim);
        }
        let RawFields(pending) = std::mem::take(&mut *self.0.lock());
        match fields {
            _ if pending.is_empty() => Ok(ResponseStart::Unchanged),
            Some(fields) => Ok(ResponseStart::Head([fields, b"\r\n", &pending, b"\r\n"].concat().into())),
            None => Err(FieldsLost),
        }
    }
}

/// Whether a head is followed by another one. None follows a 101.
fn is_interim(head: &[u8]) -> bool {
    let status = head.get(HEAD.len() + 2..HEAD.len() + 5);
    status.is_some_and(|status| status.starts_with(b"1") && status != b"101")
}

impl From<FieldsLost> for io::Error {
    fn from(lost: FieldsLost) -> io::Error {
        io::Error::other(lost)
    }
}

impl fmt::Display for FieldsLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("response without a head for its fields")
    }
}

impl std::error::Error for FieldsLost {}

#[cfg(test)]
mod tests {
    use super::*;

    impl ResponseStart {
        /// Panics if no fields were joined.
        pub fn into_text(self) -> String {
            let ResponseStart::Head(head) = self else { panic!("{self:?}") };
            String::from_utf8(head.to_vec()).unwrap()
        }
    }

    const LINES: &str = "X-Request-Id: a\r\nRateLimit-Remaining: 7\r\n";

    fn pending() -> PendingFields {
        let mut fields = RawFields::default();
        fields.push("X-Request-Id", b"a");
        fields.push("RateLimit-Remaining", b"7");
        let pending = PendingFields::default();
        pending.put(fields);
        pending
    }

    #[test]
    fn the_head_of_a_response_has_the_fields_once_and_at_its_end() {
        for begin in
            ["HTTP/1.1 200 OK\r\n", "HTTP/1.0 404 \r\nA: b\r\n", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n"]
        {
            let (pending, head) = (pending(), format!("{begin}\r\n"));
            assert_eq!(pending.join(head.as_bytes()).unwrap().into_text(), format!("{begin}{LINES}\r\n"));
            assert_eq!(pending.join(head.as_bytes()), Ok(ResponseStart::Unchanged));
        }
    }

    #[test]
    fn fields_stay_pending_while_an_interim_response_is_written() {
        let pending = pending();
        for interim in ["HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n"] {
            assert_eq!(pending.join(interim.as_bytes()), Ok(ResponseStart::Interim), "{interim:?}");
        }
        assert!(matches!(pending.join(b"HTTP/1.1 200 OK\r\n\r\n"), Ok(ResponseStart::Head(_))));
    }

    #[test]
    fn an_incomplete_head_is_an_error_while_fields_are_pending() {
        for other in ["", "HTTP/1.", "HTTP/1.1 200 OK\r\n", "ok\r\n\r\n", "HTTP/1.1 103 Early Hints\r\n", "{}"] {
            assert_eq!(pending().join(other.as_bytes()), Err(FieldsLost), "{other:?}");
            assert_eq!(PendingFields::default().join(other.as_bytes()), Ok(ResponseStart::Unchanged), "{other:?}");
        }
    }

    #[test]
    fn fields_of_an_unwritten_response_are_not_sent_with_the_next() {
        let pending = pending();
        let mut fields = RawFields::default();
        fields.push("Retry-After", b"1");
        pending.put(fields);
        let joined = pending.join(b"HTTP/1.1 429 \r\n\r\n").unwrap().into_text();
        assert_eq!(joined, "HTTP/1.1 429 \r\nRetry-After: 1\r\n\r\n");
    }
}

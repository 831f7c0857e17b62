//! Reads names and values of the header fields that the file sets or removes.

use http::header::{HeaderName, HeaderValue};

use crate::language::reader::Field;

/// The kind of message whose header fields the file changes: a request or a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Request,
    Response,
}

/// Fields that belong to one connection, and fields that delimit a message.
const OF_THE_CONNECTION: [&str; 9] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
];

/// Fields that the gateway itself adds to requests to the upstream.
const OF_THE_GATEWAY: [&str; 5] =
    ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-prefix", "x-request-id"];

/// The value that replaces an unknown field value while the file is only examined.
pub(crate) const UNKNOWN_VALUE: HeaderValue = HeaderValue::from_static("unknown");

/// Checks that the file may set or remove the field `name` in this kind of message, and returns the name. `None` after
/// reporting at `field` why it may not.
pub(crate) fn header_name(field: &Field<'_>, name: &str, message: Message) -> Option<HeaderName> {
    let Ok(known) = HeaderName::from_bytes(name.as_bytes()) else {
        // A value behind a colon is not shown: it may be a credential.
        let shown =
            name.split_once(':').map_or_else(|| name.escape_debug().to_string(), |(name, _)| format!("{name}:…"));
        field.wrong(format_args!("`{shown}` is not a header name"), None);
        return None;
    };
    // Some programs treat `X_Request_Id` as `X-Request-Id`, so both are checked alike.
    let folded = known.as_str().replace(['_', '.'], "-");
    let why = match message {
        _ if OF_THE_CONNECTION.contains(&&*folded) => "belongs to the connection",
        Message::Request if folded == "host" => "is set by `host` in `rewrite`",
        Message::Request if OF_THE_GATEWAY.contains(&&*folded) => "is set by the gateway",
        Message::Response if matches!(&*folded, "x-request-id" | "date") => "is set by the gateway",
        _ if ["x-tollgate-", "ratelimit", "x-ratelimit"].iter().any(|ours| folded.starts_with(ours)) => {
            "is set by the gateway"
        }
        _ => return Some(known),
    };
    field.wrong(format_args!("`{known}` {why}"), None);
    None
}

/// The message for a text that a header field cannot have as its value.
pub(crate) const FIELD_VALUE_MUST: &str = "be printable ASCII without spaces around it";

/// Reads the fixed value of a header field.
pub(crate) fn header_value(field: &Field<'_>) -> Option<HeaderValue> {
    if field.is_unknown() {
        return Some(UNKNOWN_VALUE);
    }
    let value = HeaderValue::from_str(field.written()?).ok().filter(is_printable);
    if value.is_none() {
        field.must(FIELD_VALUE_MUST);
    }
    value
}

/// Whether a value is ASCII, without spaces at its start or end.
fn is_printable(value: &HeaderValue) -> bool {
    value.as_bytes().is_ascii() && value.as_bytes().trim_ascii() == value.as_bytes()
}

//! The fields of an answer's head that are ours: text, which joins the head as it passes the front door.
//!
//! Pingora keeps a head in two maps, where a field costs a thousand instructions: its name is read, copied and hashed for
//! each. As text it is copied, and that is all.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use parking_lot::Mutex;

const HEAD: &[u8] = b"HTTP/1.";
const END: &[u8] = b"\r\n\r\n";

/// Fields as they go over the wire.
#[derive(Debug, Default)]
pub struct RawFields(Vec<u8>);

impl RawFields {
    pub fn field(&mut self, name: &'static str, value: &HeaderValue) {
        self.line(name, value.as_bytes());
    }

    pub fn number(&mut self, name: &'static str, number: u64) {
        self.line(name, itoa::Buffer::new().format(number).as_bytes());
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Neither has a line end: a name is written in our sources, a value was checked when it became one.
    fn line(&mut self, name: &str, value: &[u8]) {
        // Room for all that most answers have.
        self.0.reserve(if self.0.is_empty() { 256 } else { name.len() + value.len() + 4 });
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.0.extend_from_slice(part);
        }
    }
}

/// What waits for the head of a connection's next answer. Whoever makes the answer knows it, and whoever writes it.
#[derive(Clone, Debug)]
pub struct PendingFields(Option<Arc<Mutex<RawFields>>>);

impl PendingFields {
    /// Of no connection, for a request that has not been told of its own yet.
    pub const NOWHERE: PendingFields = PendingFields(None);

    pub fn new() -> PendingFields {
        PendingFields(Some(Arc::default()))
    }

    /// These, and not what has waited so far.
    pub fn put(&self, lines: RawFields) {
        if let Some(waiting) = &self.0 {
            *waiting.lock() = lines;
        }
    }

    /// The head that is being written, with what has waited for it. None when nothing has, or this is no head that ends an
    /// exchange: a 1xx comes before it.
    pub fn join(&self, written: &[u8]) -> Option<Bytes> {
        let fields = written.strip_suffix(END).filter(|_| is_final(written))?;
        let RawFields(lines) = std::mem::take(&mut *self.0.as_ref()?.lock());
        if lines.is_empty() {
            return None;
        }
        Some([fields, b"\r\n", &lines, b"\r\n"].concat().into())
    }
}

/// Whether bytes begin as the head of an answer does behind which no other comes.
fn is_final(bytes: &[u8]) -> bool {
    let status = bytes.strip_prefix(HEAD).and_then(|rest| rest.get(2..5));
    status.is_some_and(|status| status == b"101" || !status.starts_with(b"1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> PendingFields {
        let mut lines = RawFields::default();
        lines.field("X-Request-Id", &HeaderValue::from_static("a"));
        lines.number("RateLimit-Remaining", 7);
        let addendum = PendingFields::new();
        addendum.put(lines);
        addendum
    }

    const LINES: &str = "X-Request-Id: a\r\nRateLimit-Remaining: 7\r\n";

    #[test]
    fn the_head_of_the_answer_has_the_lines_once_and_at_its_end() {
        for begin in
            ["HTTP/1.1 200 OK\r\n", "HTTP/1.0 404 \r\nA: b\r\n", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n"]
        {
            let (addendum, head) = (waiting(), format!("{begin}\r\n"));
            assert_eq!(addendum.join(head.as_bytes()).unwrap(), format!("{begin}{LINES}\r\n"));
            assert_eq!(addendum.join(head.as_bytes()), None);
        }
    }

    #[test]
    fn what_is_no_such_head_is_left_as_it_is_and_the_lines_wait() {
        let addendum = waiting();
        for other in [
            "",
            "HTTP/1.",
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "ok\r\n\r\n",
            "HTTP/1.1 200 OK\r\n",
        ] {
            assert_eq!(addendum.join(other.as_bytes()), None, "{other:?}");
        }
        assert!(addendum.join(b"HTTP/1.1 200 OK\r\n\r\n").is_some());
    }

    #[test]
    fn lines_of_an_answer_that_was_not_written_are_not_those_of_the_next() {
        let addendum = waiting();
        let mut lines = RawFields::default();
        lines.number("Retry-After", 1);
        addendum.put(lines);
        assert_eq!(addendum.join(b"HTTP/1.1 429 \r\n\r\n").unwrap(), &b"HTTP/1.1 429 \r\nRetry-After: 1\r\n\r\n"[..]);
    }
}

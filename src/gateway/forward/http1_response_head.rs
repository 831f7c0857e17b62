//! Parses the head of an upstream's HTTP/1.x response as its bytes arrive, as strictly as heads of requests.
//!
//! An accepted head can be read in one way only. Its [`ResponseHead`] alone says where the response ends. The result
//! does not depend on the pieces in which the bytes arrived.

use memchr::memchr;

use crate::gateway::server::http1::request_head::{LONGEST_NAME, Size};
use crate::gateway::server::http1::syntax::{content_length, is_disguised_framing, is_token, is_value};

/// A valid response head. It consists of the first `length` bytes that were parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    pub length: usize,
    pub status: u16,
    /// The indexes at which the reason phrase begins and ends.
    pub reason: (usize, usize),
    pub body: ResponseBody,
    pub persistence: Persistence,
    pub content: Content,
}

/// The content of a response. An event stream has other timeouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// An event stream (<https://html.spec.whatwg.org/multipage/server-sent-events.html>), which may pause for long.
    EventStream,
    #[default]
    Other,
}

impl Content {
    /// Returns what a `Content-Type` means. Parameters of the type do not matter.
    pub fn of_type(value: &[u8]) -> Content {
        let kind = value.split(|byte| *byte == b';').next().unwrap_or_default();
        match kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream") {
            true => Content::EventStream,
            false => Content::Other,
        }
    }
}

/// How the end of a response's body is found. A response has no body if its status or the method of the request excludes a
/// body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    Length(u64),
    Chunked,
    /// The body continues until the connection is closed.
    UntilClose,
}

/// Whether another response may follow on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    Kept,
    Closed,
}

/// The reason why a head is invalid, as text for the log. It contains no bytes of the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHead(pub &'static str);

type Result<T> = std::result::Result<T, InvalidHead>;

/// Parses one head. Each call of [`ResponseHeadParser::parse`] gets all bytes that have arrived since the beginning of the
/// head.
#[derive(Debug, Default)]
pub struct ResponseHeadParser {
    /// The index at which the current line begins; 0 for the status line.
    line: usize,
    /// The index up to which the end of the current line has been searched.
    searched: usize,
    status: u16,
    reason: (usize, usize),
    version: Version,
    fields: usize,
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    content: Content,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Version {
    Http10,
    #[default]
    Http11,
}

impl ResponseHeadParser {
    /// Parses the head as far as it has arrived. `None` if the head is not complete yet.
    ///
    /// # Errors
    /// If the bytes cannot be the beginning of a valid head.
    pub fn parse(&mut self, bytes: &[u8], size: &Size) -> Result<Option<ResponseHead>> {
        loop {
            let last = size.bytes.saturating_sub(1);
            let found = bytes.get(self.searched..).and_then(|rest| memchr(b'\n', rest));
            let Some(found) = found else {
                self.searched = bytes.len();
                // Bytes that are not HTTP are rejected before the line is complete.
                if self.line == 0 && !begins_as_http(bytes) {
                    return Err(InvalidHead("no status line"));
                }
                return if bytes.len() > last { Err(InvalidHead("head too large")) } else { Ok(None) };
            };
            let end = self.searched + found;
            if end > last {
                return Err(InvalidHead("head too large"));
            }
            let begin = self.line;
            let line = bytes.get(begin..end).and_then(|line| line.strip_suffix(b"\r"));
            let line = line.ok_or(InvalidHead("line ends without CR"))?;
            self.searched = end + 1;
            self.line = end + 1;
            if begin == 0 {
                self.status_line(line)?;
            } else if line.is_empty() {
                return self.finish(end + 1).map(Some);
            } else {
                self.field(line, size)?;
            }
        }
    }

    fn status_line(&mut self, line: &[u8]) -> Result<()> {
        let invalid = InvalidHead("bad status line");
        let (version, rest) = line.split_at_checked(9).ok_or(invalid)?;
        self.version = match version {
            b"HTTP/1.1 " => Version::Http11,
            b"HTTP/1.0 " => Version::Http10,
            _ => return Err(invalid),
        };
        let (digits, reason) = rest.split_at_checked(3).ok_or(invalid)?;
        if !matches!(digits, [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9']) {
            return Err(invalid);
        }
        self.status = digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
        // Some servers leave out the space if the reason phrase is missing.
        let phrase = match reason {
            [] => 12,
            [b' ', phrase @ ..] if phrase.iter().all(|byte| is_value(*byte)) => 13,
            _ => return Err(invalid),
        };
        self.reason = (phrase, line.len());
        Ok(())
    }

    fn field(&mut self, line: &[u8], size: &Size) -> Result<()> {
        self.fields += 1;
        if self.fields > size.fields {
            return Err(InvalidHead("too many fields"));
        }
        // The continuation of a folded line begins with a space, so it has no name and is rejected here.
        let colon = line.iter().position(|byte| !is_token(*byte)).ok_or(InvalidHead("field without a colon"))?;
        let (name, value) = match line.split_at_checked(colon) {
            Some((name @ [_, ..], [b':', value @ ..])) => (name, value),
            _ => return Err(InvalidHead("bad field name")),
        };
        if colon > LONGEST_NAME {
            return Err(InvalidHead("field name too long"));
        }
        // The loop has no early exit, so that the compiler can check many bytes at once.
        if value.iter().fold(false, |bad, byte| bad | !is_value(*byte)) {
            return Err(InvalidHead("control byte in a field"));
        }
        let trimmed = value.trim_ascii();
        match colon {
            10 if name.eq_ignore_ascii_case(b"connection") => {
                for option in trimmed.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            12 if name.eq_ignore_ascii_case(b"content-type") => self.content = Content::of_type(trimmed),
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let length = content_length(trimmed).ok_or(InvalidHead("bad Content-Length"))?;
                if self.length.replace(length).is_some() {
                    return Err(InvalidHead("repeated Content-Length"));
                }
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if self.chunked || !trimmed.eq_ignore_ascii_case(b"chunked") {
                    return Err(InvalidHead("Transfer-Encoding other than chunked"));
                }
                self.chunked = true;
            }
            14 | 17 if is_disguised_framing(name) => {
                return Err(InvalidHead("framing field in another spelling"));
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&self, length: usize) -> Result<ResponseHead> {
        let http10 = self.version == Version::Http10;
        if self.chunked && http10 {
            return Err(InvalidHead("Transfer-Encoding in HTTP/1.0"));
        }
        let body = match (self.length, self.chunked) {
            // Chunks take precedence over a length (RFC 9112, section 6.3). Another recipient may believe the length,
            // so no other response may follow on the connection.
            (_, true) => ResponseBody::Chunked,
            (Some(length), false) => ResponseBody::Length(length),
            (None, false) => ResponseBody::UntilClose,
        };
        let ambiguous = self.length.is_some() && self.chunked;
        let closes = self.close || ambiguous || (http10 && !self.keep_alive);
        let persistence = if closes { Persistence::Closed } else { Persistence::Kept };
        let ResponseHeadParser { status, reason, content, .. } = *self;
        Ok(ResponseHead { length, status, reason, body, persistence, content })
    }
}

/// Whether these bytes may be the beginning of a status line.
fn begins_as_http(bytes: &[u8]) -> bool {
    let begin: &[u8] = b"HTTP/1.";
    bytes.iter().zip(begin).all(|(byte, wanted)| byte == wanted)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use regex::bytes::Regex;

    use super::*;

    const SIZE: Size = Size { bytes: 1024, fields: 5, target: 0 };

    fn parse(head: impl AsRef<[u8]>) -> Result<Option<ResponseHead>> {
        ResponseHeadParser::default().parse(head.as_ref(), &SIZE)
    }

    #[track_caller]
    fn check(head: &str, status: u16, body: ResponseBody, persistence: Persistence) {
        let found = parse(format!("{head}rest")).unwrap().unwrap();
        assert_eq!((found.status, found.body, found.persistence), (status, body, persistence), "{head}");
        assert_eq!(found.length, head.len(), "{head}");
    }

    #[test]
    fn a_head_says_how_its_response_ends() {
        use Persistence::{Closed, Kept};
        use ResponseBody::{Chunked, Length, UntilClose};
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", 200, Length(2), Kept);
        check("HTTP/1.1 200\r\ncontent-length:2\r\n\r\n", 200, Length(2), Kept);
        check("HTTP/1.1 200 \r\nTransfer-Encoding: CHUNKED\r\n\r\n", 200, Chunked, Kept);
        check("HTTP/1.1 404 Not \u{fc}\r\n\r\n", 404, UntilClose, Kept);
        check("HTTP/1.1 200 OK\r\nConnection: x, CLOSE\r\nContent-Length: 0\r\n\r\n", 200, Length(0), Closed);
        check("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 200, Length(0), Closed);
        check("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n", 200, Length(0), Kept);
        check("HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n", 200, Chunked, Closed);
    }

    #[test]
    fn an_event_stream_is_told_by_its_type() {
        let content = |field: &str| parse(format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n")).unwrap().unwrap().content;
        for field in [
            "Content-Type: text/event-stream",
            "content-type:Text/Event-Stream;charset=utf-8",
            "CONTENT-TYPE: text/event-stream ; charset=utf-8",
        ] {
            assert_eq!(content(field), Content::EventStream, "{field}");
        }
        for field in [
            "Content-Type: text/event-streams",
            "Content-Type: text/plain; a=text/event-stream",
            "Accept: text/event-stream",
            "Content-Type:",
        ] {
            assert_eq!(content(field), Content::Other, "{field}");
        }
    }

    #[test]
    fn a_head_with_more_than_one_reading_is_invalid() {
        for head in [
            "\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.2 200 OK\r\n\r\n",
            "http/1.1 200 OK\r\n\r\n",
            "HTTP/1.1  200 OK\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 2000 OK\r\n\r\n",
            "HTTP/1.1 099 OK\r\n\r\n",
            "HTTP/1.1 200 O\rK\r\n\r\n",
            "HTTP/1.1 200 OK\n\r\n",
            "HTTP/1.1 200 OK\r\nX: a\n\r\n",
            "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
            "HTTP/1.1 200 OK\r\n: a\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent_Length: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: 1\r\nb: 1\r\nc: 1\r\nd: 1\r\ne: 1\r\nf: 1\r\n\r\n",
        ] {
            assert!(parse(head).is_err(), "{head:?}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1100));
        assert_eq!(parse(long), Err(InvalidHead("head too large")));
        assert_eq!(parse("HTTP/1.1 200 OK\r\nX: a"), Ok(None));
        assert_eq!(parse("\x15\x03"), Err(InvalidHead("no status line")));
    }

    fn piece() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.0 ",
            "204",
            "X: y\r\n",
            "Content-Length: 3\r\n",
            "Content-Length",
            ":",
            " ",
            "Transfer-Encoding: chunked\r\n",
            "Connection: close\r\n",
            "\r\n",
            "\r",
            "\n",
            "\0",
            "\u{e9}",
            "a",
            "\t",
        ])
    }

    /// The grammar of RFC 9112, without what this parser rejects: folded lines, and lines that end without CR.
    fn grammar() -> &'static Regex {
        static GRAMMAR: LazyLock<Regex> = LazyLock::new(|| {
            let (token, value) = (r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", r"[\t\x20-\x7e\x80-\xff]*");
            Regex::new(&format!(r"(?-u)\AHTTP/1\.[01] [1-9][0-9]{{2}}( {value})?\r\n({token}:{value}\r\n)*\r\n\z"))
                .unwrap()
        });
        &GRAMMAR
    }

    proptest! {
        #[test]
        fn what_is_accepted_has_the_same_reading_by_httparse_and_by_the_grammar(
            pieces in prop::collection::vec(piece(), 1..12),
            version in prop::sample::select(vec!["HTTP/1.1 200 OK\r\n", "HTTP/1.0 304\r\n", "HTTP/1.1 404 a b\r\n"]),
        ) {
            let head = [version, &pieces.concat(), "\r\n\r\n"].concat();
            if let Ok(Some(found)) = parse(&head) {
                let mut fields = [httparse::EMPTY_HEADER; 16];
                let mut other = httparse::Response::new(&mut fields);
                prop_assert_eq!(other.parse(head.as_bytes()), Ok(httparse::Status::Complete(found.length)));
                prop_assert_eq!(other.code, Some(found.status));
                let values = |name: &str| -> Vec<&[u8]> {
                    let named = other.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
                    named.map(|field| field.value).collect()
                };
                let body = match (&*values("transfer-encoding"), &*values("content-length")) {
                    ([_], _) => ResponseBody::Chunked,
                    ([], [length]) => ResponseBody::Length(std::str::from_utf8(length).unwrap().trim().parse().unwrap()),
                    ([], []) => ResponseBody::UntilClose,
                    more => return Err(TestCaseError::fail(format!("two readings: {more:?}"))),
                };
                prop_assert_eq!(body, found.body);
                prop_assert!(grammar().is_match(&head.as_bytes()[..found.length]));
            }
        }

        #[test]
        fn the_result_does_not_depend_on_how_the_bytes_were_split(
            pieces in prop::collection::vec(piece(), 1..12),
            status_line in any::<bool>(),
            step in 1usize..20,
        ) {
            let head = [if status_line { "HTTP/1.1 200 OK\r\n" } else { "" }, &pieces.concat()].concat();
            let bytes = head.as_bytes();
            let whole = parse(bytes);
            let mut parser = ResponseHeadParser::default();
            let mut parts = Ok(None);
            for end in (step..bytes.len()).step_by(step).chain([bytes.len()]) {
                parts = parser.parse(&bytes[..end], &SIZE);
                if !matches!(parts, Ok(None)) {
                    break;
                }
            }
            match (&whole, &parts) {
                (Err(_), Err(_)) => {}
                _ => prop_assert_eq!(whole, parts),
            }
        }
    }
}

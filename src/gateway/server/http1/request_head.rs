//! Parses the head of an HTTP/1.x request as its bytes arrive. A head that is accepted can be read in one way only.
//!
//! The result depends only on the bytes, never on how they were split. The parser is stricter than other parsers.
//! Otherwise a later parser could reject a request that was already charged.

use memchr::memchr;

use super::syntax::{content_length, is_authority, is_disguised_framing, is_target, is_token, is_value};
use crate::gateway::server::websocket;
use base::http_method;
use request::scheme::Scheme;

/// The largest head that is accepted.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The number of bytes of the head, including the request line and the empty line.
    pub bytes: usize,
    pub fields: usize,
    pub target: usize,
}

/// A valid head. It consists of the first `length` bytes that were parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub length: usize,
    pub body: Body,
}

/// The body that follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Nothing,
    /// A body of this many bytes, at least one.
    Length(u64),
    Chunked,
    /// No body. The client asks for a WebSocket, so the bytes that follow are not another request.
    Tunnel,
}

/// The reason why a head is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    Malformed(&'static str),
    /// The method is never forwarded.
    Method,
    TargetTooLong,
    TooLarge(&'static str),
}

impl HeadError {
    pub fn status(self) -> u16 {
        match self {
            HeadError::Malformed(_) => 400,
            HeadError::Method => 405,
            HeadError::TargetTooLong => 414,
            HeadError::TooLarge(_) => 431,
        }
    }

    /// Returns the reason as text, for the log. The text contains no bytes of the client.
    pub fn detail(self) -> &'static str {
        match self {
            HeadError::Malformed(detail) | HeadError::TooLarge(detail) => detail,
            HeadError::Method => "method is not forwarded",
            HeadError::TargetTooLong => "target too long",
        }
    }
}

type Result<T> = std::result::Result<T, HeadError>;

/// The length in bytes of the longest accepted field name.
pub const LONGEST_NAME: usize = 1024;
/// The maximum number of options in all `Connection` fields together.
const MOST_OPTIONS: usize = 9;

/// Fields that `Connection` must not name as hop-by-hop. Without them, the message would have another meaning.
const ESSENTIAL: [&[u8]; 12] = [
    b"host",
    b"content-length",
    b"transfer-encoding",
    b"content-type",
    b"content-encoding",
    b"content-range",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"forwarded",
    b"x-real-ip",
    b"x-request-id",
];

/// A range of the bytes, as the index of its first byte and the index after its last byte.
type Span = (usize, usize);

/// Parses one head. Each call of [`HeadParser::parse`] gets all bytes that have arrived since the beginning of the head.
#[derive(Debug, Default)]
pub struct HeadParser {
    /// Whether the connection is encrypted.
    encrypted: bool,
    /// The length of the method; 0 before it is known.
    method: usize,
    /// The index at which the current line begins; 0 for the request line.
    line: usize,
    /// The index at which the search for the end of the current line continues.
    searched: usize,
    version: Version,
    fields: usize,
    hosts: usize,
    host: Span,
    /// The authority of a target in absolute form.
    authority: Option<Span>,
    length: Option<u64>,
    chunked: bool,
    upgrade: Option<Upgrade>,
    options: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Version {
    Http10,
    #[default]
    Http11,
}

/// The protocol in the first `Upgrade`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upgrade {
    WebSocket,
    Other,
}

impl HeadParser {
    /// Makes a parser for a request on a connection with this scheme.
    pub fn over(scheme: Scheme) -> HeadParser {
        HeadParser { encrypted: scheme == Scheme::Https, ..HeadParser::default() }
    }

    /// Parses the head as far as it has arrived. `None` if the head is not complete yet. `is_extra_method` is called only with
    /// a method that is not registered.
    ///
    /// # Errors
    /// If the bytes cannot be the beginning of a valid head.
    pub fn parse(
        &mut self,
        bytes: &[u8],
        size: &Size,
        is_extra_method: impl FnOnce(&[u8]) -> bool,
    ) -> Result<Option<Head>> {
        // The method is checked before its line is complete, so that TLS and binary protocols are rejected at once.
        if self.method == 0 {
            let Some(method) = method(bytes, is_extra_method)? else { return Ok(None) };
            self.method = method;
        }
        loop {
            // A line that is too long is an error before and after its end has arrived. So the result does not depend
            // on how the bytes were split.
            let (last, error) = self.line_limit(size);
            let Some(found) = bytes.get(self.searched..).and_then(|rest| memchr(b'\n', rest)) else {
                self.searched = bytes.len();
                return if bytes.len() > last { Err(error) } else { Ok(None) };
            };
            let end = self.searched + found;
            if end > last {
                return Err(error);
            }
            let begin = self.line;
            let line = bytes.get(begin..end).and_then(|line| line.strip_suffix(b"\r"));
            let line = line.ok_or(HeadError::Malformed("line ends without CR"))?;
            self.searched = end + 1;
            self.line = end + 1;
            if begin == 0 {
                self.request_line(line, size)?;
            } else if line.is_empty() {
                return self.finish(bytes, end + 1).map(Some);
            } else {
                self.field(line, begin, size)?;
            }
        }
    }

    /// Returns the last index at which the current line may end, and the error if the line is longer.
    fn line_limit(&self, size: &Size) -> (usize, HeadError) {
        let whole = (size.bytes.saturating_sub(1), HeadError::TooLarge("head too large"));
        // The request line is the method, a space, the target, a space with the version (9 bytes), and CR.
        let request_line = self.method + 1 + size.target + 9 + 1;
        if self.line == 0 && request_line < whole.0 { (request_line, HeadError::TargetTooLong) } else { whole }
    }

    fn request_line(&mut self, line: &[u8], size: &Size) -> Result<()> {
        let target_at = self.method + 1;
        let rest = line.get(target_at..).ok_or(HeadError::Malformed("no target"))?;
        let end = rest.iter().position(|byte| !is_target(*byte)).ok_or(HeadError::Malformed("no version"))?;
        let (target, version) = rest.split_at(end);
        self.version = match version {
            b" HTTP/1.1" => Version::Http11,
            b" HTTP/1.0" => Version::Http10,
            _ => return Err(HeadError::Malformed("bad target or version")),
        };
        if target.len() > size.target {
            return Err(HeadError::TargetTooLong);
        }
        if !target.is_ascii() && std::str::from_utf8(target).is_err() {
            return Err(HeadError::Malformed("target is not UTF-8"));
        }
        match target.first() {
            Some(b'/') => {}
            Some(b'*') if target == b"*" && line.starts_with(b"OPTIONS ") => {}
            _ => {
                // The scheme in the target must be the scheme of the connection.
                let own: &[u8] = if self.encrypted { b"https://" } else { b"http://" };
                let scheme = own.len();
                let absolute = target.get(..scheme).is_some_and(|begin| begin.eq_ignore_ascii_case(own));
                let authority = target.get(scheme..).filter(|_| absolute).ok_or(HeadError::Malformed("bad target"))?;
                let end = authority.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(authority.len());
                if !authority.get(..end).is_some_and(is_authority) {
                    return Err(HeadError::Malformed("bad authority in the target"));
                }
                self.authority = Some((target_at + scheme, target_at + scheme + end));
            }
        }
        Ok(())
    }

    fn field(&mut self, line: &[u8], begin: usize, size: &Size) -> Result<()> {
        self.fields += 1;
        if self.fields > size.fields {
            return Err(HeadError::TooLarge("too many fields"));
        }
        // A folded line begins with a space, and is rejected here.
        let colon =
            line.iter().position(|byte| !is_token(*byte)).ok_or(HeadError::Malformed("field without a colon"))?;
        let (name, value) = match line.split_at_checked(colon) {
            Some((name @ [_, ..], [b':', value @ ..])) => (name, value),
            _ => return Err(HeadError::Malformed("bad field name")),
        };
        if colon > LONGEST_NAME {
            return Err(HeadError::TooLarge("field name too long"));
        }
        // The loop has no early exit, so that the compiler can check many bytes at once.
        if value.iter().fold(false, |bad, byte| bad | !is_value(*byte)) {
            return Err(HeadError::Malformed("control byte in a field"));
        }
        let trimmed = value.trim_ascii();
        match colon {
            4 if name.eq_ignore_ascii_case(b"host") => {
                let at = begin + colon + 1 + (value.len() - value.trim_ascii_start().len());
                self.host = (at, at + trimmed.len());
                self.hosts += 1;
                if !is_authority(trimmed) {
                    return Err(HeadError::Malformed("bad Host"));
                }
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                let websocket = trimmed.eq_ignore_ascii_case(b"websocket");
                self.upgrade.get_or_insert(if websocket { Upgrade::WebSocket } else { Upgrade::Other });
            }
            10 if name.eq_ignore_ascii_case(b"connection") => self.connection(trimmed)?,
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let length = content_length(trimmed).ok_or(HeadError::Malformed("bad Content-Length"))?;
                if self.length.replace(length).is_some() {
                    return Err(HeadError::Malformed("repeated Content-Length"));
                }
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if self.chunked || !trimmed.eq_ignore_ascii_case(b"chunked") {
                    return Err(HeadError::Malformed("Transfer-Encoding other than chunked"));
                }
                self.chunked = true;
            }
            14 | 17 if is_disguised_framing(name) => {
                return Err(HeadError::Malformed("framing field in another spelling"));
            }
            _ => {}
        }
        Ok(())
    }

    fn connection(&mut self, value: &[u8]) -> Result<()> {
        let options = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|option| !option.is_empty());
        for option in options {
            self.options += 1;
            if self.options > MOST_OPTIONS || option.len() > LONGEST_NAME || !option.iter().copied().all(is_token) {
                return Err(HeadError::Malformed("bad Connection"));
            }
            if ESSENTIAL.iter().any(|name| option.eq_ignore_ascii_case(name)) {
                return Err(HeadError::Malformed("Connection names a field that must stay"));
            }
        }
        Ok(())
    }

    fn finish(&self, bytes: &[u8], length: usize) -> Result<Head> {
        let http10 = self.version == Version::Http10;
        if self.hosts > 1 || (self.hosts == 0 && !http10) {
            return Err(HeadError::Malformed("not exactly one Host"));
        }
        // The upstream would use the host in the target, but rules see only `Host`.
        if let Some((begin, end)) = self.authority
            && bytes.get(begin..end) != bytes.get(self.host.0..self.host.1)
        {
            return Err(HeadError::Malformed("target and Host differ"));
        }
        let websocket = self.upgrade == Some(Upgrade::WebSocket) && !http10;
        let tunnel = websocket && bytes.get(..length).is_some_and(websocket::is_request_head);
        let body = match (self.length, self.chunked) {
            (Some(_), true) => return Err(HeadError::Malformed("Content-Length with Transfer-Encoding")),
            (None, true) if http10 => return Err(HeadError::Malformed("Transfer-Encoding in HTTP/1.0")),
            // After the change of the protocol, the gateway could not find the end of the body.
            (Some(1..), _) | (None, true) if websocket => return Err(HeadError::Malformed("upgrade with a body")),
            (None, true) => Body::Chunked,
            (Some(length @ 1..), false) => Body::Length(length),
            (Some(0) | None, false) if tunnel => Body::Tunnel,
            (Some(0) | None, false) => Body::Nothing,
        };
        Ok(Head { length, body })
    }
}

/// The length of the method at the beginning of `bytes`; `None` if it is not complete yet.
fn method(bytes: &[u8], is_extra: impl FnOnce(&[u8]) -> bool) -> Result<Option<usize>> {
    let Some(end) = bytes.iter().take(http_method::LONGEST + 1).position(|byte| !is_token(*byte)) else {
        return if bytes.len() <= http_method::LONGEST { Ok(None) } else { Err(HeadError::Malformed("no method")) };
    };
    match bytes.split_at_checked(end) {
        Some((method, [b' ', ..])) if http_method::is_registered(method) => Ok(Some(end)),
        Some((method, [b' ', ..])) if http_method::is_never_forwarded(method) => Err(HeadError::Method),
        Some((method @ [_, ..], [b' ', ..])) if is_extra(method) => Ok(Some(end)),
        Some(([_, ..], [b' ', ..])) => {
            Err(HeadError::Malformed("method is neither registered nor in limits.extra_methods"))
        }
        _ => Err(HeadError::Malformed("no method")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { bytes: 1024, fields: 5, target: 100 };

    fn parse(head: impl AsRef<[u8]>) -> Result<Option<Head>> {
        HeadParser::default().parse(head.as_ref(), &SIZE, |method| method == b"PURGE")
    }

    /// Checks that a head is valid and announces this body, also if more bytes follow the head.
    #[track_caller]
    fn check(head: &str, body: Body) {
        let whole = Ok(Some(Head { length: head.len(), body }));
        assert_eq!(parse(head), whole, "{head}");
        assert_eq!(parse(format!("{head}GET \r\n\n")), whole, "{head}");
        for length in 0..head.len() {
            assert_eq!(parse(&head.as_bytes()[..length]), Ok(None), "{length} of {head}");
        }
    }

    #[track_caller]
    fn reject(head: &str, status: u16) {
        assert_eq!(parse(head).map_err(HeadError::status), Err(status), "{head}");
    }

    #[test]
    fn a_head_determines_what_follows_it() {
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Body::Nothing);
        check("GET / HTTP/1.0\r\n\r\n", Body::Nothing);
        check("PURGE / HTTP/1.1\r\nHost: a\r\n\r\n", Body::Nothing);
        check("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", Body::Nothing);
        check("POST / HTTP/1.0\r\ncontent-length:\t5 \r\n\r\n", Body::Length(5));
        check("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n", Body::Chunked);
        let websocket = "Upgrade: WebSocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13";
        let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
        check(&format!("GET / HTTP/1.1\r\nHost: a\r\n{websocket}\r\n{key}\r\n\r\n"), Body::Tunnel);
        check(&format!("GET / HTTP/1.1\r\nHost: a\r\n{websocket}\r\n\r\n"), Body::Nothing);
        check(&format!("GET / HTTP/1.0\r\nHost: a\r\n{websocket}\r\n{key}\r\n\r\n"), Body::Nothing);
        check("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n\r\n", Body::Nothing);
        check("GET / HTTP/1.0\r\nHost: a\r\nUpgrade: websocket\r\n\r\n", Body::Nothing);
        check("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", Body::Nothing);
        check("GET HTTP://a:80?b HTTP/1.1\r\nHost: \ta:80\t\r\n\r\n", Body::Nothing);
        check("GET http://a HTTP/1.0\r\nHost: a\r\n\r\n", Body::Nothing);
        check("GET /\u{e9}{|}^\\[]?'$&(;)@:!*~%zz HTTP/1.1\r\nHost: a\r\nX: \u{e9}\r\nY:\r\n\r\n", Body::Nothing);
        check("GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, , TE,x-own\r\n\r\n", Body::Nothing);
        check("GET / HTTP/1.1\r\nHost: a\r\nContent__Length: 5\r\nTransfer_Encodinq: a\r\n\r\n", Body::Nothing);
    }

    #[test]
    fn an_absolute_target_has_the_scheme_of_its_connection() {
        for (target, over_http, over_https) in [
            ("http://a/b", true, false),
            ("https://a/b", false, true),
            ("HTTPS://a", false, true),
            ("ftp://a/", false, false),
        ] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            for (scheme, accepted) in [(Scheme::Http, over_http), (Scheme::Https, over_https)] {
                let parsed = HeadParser::over(scheme).parse(head.as_bytes(), &SIZE, |_| false);
                assert_eq!(parsed.is_ok(), accepted, "{target} over {}", scheme.name());
            }
        }
        let whole = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: a:8443\r\n\r\n");
        let parse = |head: String| HeadParser::over(Scheme::Https).parse(head.as_bytes(), &SIZE, |_| false);
        assert!(parse(whole("https://a:8443?c")).is_ok());
        assert_eq!(parse(whole("https://a/")).map_err(HeadError::status), Err(400));
    }

    #[test]
    fn heads_are_rejected_just_above_their_limits() {
        let target = |length: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(length - 1));
        check(&target(100), Body::Nothing);
        reject(&target(101), 414);
        reject(target(101).get(..117).unwrap(), 414);
        let bytes = |length: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(length - 32));
        check(&bytes(1024), Body::Nothing);
        reject(&bytes(1025), 431);
        reject(bytes(1500).get(..1024).unwrap(), 431);
        let fields = |more: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(more));
        check(&fields(4), Body::Nothing);
        reject(&fields(5), 431);
    }

    #[test]
    fn the_first_error_is_reported() {
        let long = "x".repeat(2000);
        reject(&format!("GET /{long}"), 414);
        reject(&format!("G(T /{long}"), 400);
        reject(&format!("{long} / HTTP/1.1\r\n"), 400);
        reject(&format!("TRACE /{long}"), 405);
        reject(&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}"), 431);
        reject(&format!("GET / HTTP/1.1\r\nHost: a\nX: {long}"), 400);
        reject("\x16\x03\x01", 400);
        reject("CONNECT a:443 ", 405);
        reject("trace /", 405);
        reject("purge /", 400);
        reject("get /", 400);
        reject("GET http://a HTTP/1.0\r\n\r\n", 400);
    }
}

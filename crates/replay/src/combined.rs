//! Reads the lines that nginx and Apache write by default: `combined`, and the shorter `common`.

use std::borrow::Cow;

use http::header::{HeaderName, HeaderValue, REFERER, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};

use super::foreign_entry::{ForeignEntry, LogFields, LoggedGrpc};
use super::timestamps::{LogTimestamp, nginx};
use base::split::{split_once, split_once_at};
use request::percent_encoding::hex_pair;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Reads a line `ADDRESS - USER [TIME] "METHOD TARGET HTTP/1.1" STATUS BYTES "REFERER" "AGENT" "X-FORWARDED-FOR"`. The
/// last field occurs only in nginx's format `main`. Text after this field is ignored.
///
/// # Errors
/// If the line has another format. The error says what the line must have.
pub(crate) fn read(line: &[u8]) -> Result<(LogTimestamp, ForeignEntry), &'static str> {
    let (address, rest) = split_once(line, b' ').ok_or("no line of nginx or Apache")?;
    let (_, rest) = split_once_at(rest, b" [").ok_or("must have a time in brackets")?;
    let (time, rest) = split_once_at(rest, b"] ").ok_or("must have a time in brackets")?;
    let moment = nginx(time).ok_or("its time is not like 21/Nov/2026:14:51:52 +0000")?;
    let peer = std::str::from_utf8(address).ok().and_then(|text| text.parse().ok());
    let peer = peer.ok_or("does not begin with an address")?;
    let (request, rest) = quoted(rest).ok_or("no request in quotes")?;
    let mut words = request.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("its request is not like GET / HTTP/1.1");
    };
    let method = Method::from_bytes(method).ok().filter(|_| version.starts_with(b"HTTP/"));
    let method = method.ok_or("its request is not like GET / HTTP/1.1")?;
    let uri = Uri::try_from(target).map_err(|_| "its request has no target that a gateway would take")?;
    let (mut head, ()) = Request::new(()).into_parts();
    (head.method, head.uri) = (method, uri);
    let mut field = |name: HeaderName, value: &[u8]| {
        if let (false, Ok(value)) = (value == b"-", HeaderValue::from_bytes(value)) {
            head.headers.insert(name, value);
        }
    };
    let status = split_once(rest.trim_ascii_start(), b' ').and_then(|(status, _)| StatusCode::from_bytes(status).ok());
    let mut log = LogFields::Common;
    let referer = rest.iter().position(|byte| *byte == b'"').and_then(|start| quoted(rest.get(start..)?));
    if let Some((referer, rest)) = referer
        && let Some((agent, rest)) = quoted(rest.trim_ascii_start())
    {
        log = LogFields::Combined;
        field(REFERER, &referer);
        field(USER_AGENT, &agent);
        if let Some((forwarded_for, _)) = quoted(rest.trim_ascii_start()) {
            field(FORWARDED_FOR, &forwarded_for);
        }
    }
    Ok((moment, ForeignEntry { head, peer: Some(peer), status, grpc: LoggedGrpc::Unknown, log }))
}

/// Returns the quoted text at the start without its escapes, and the rest. A quote in the text is escaped by nginx as
/// `\x22`, by Apache as `\"`.
fn quoted(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let text = text.strip_prefix(b"\"")?;
    let (plain, mut rest) = text.split_at_checked(memchr::memchr2(b'"', b'\\', text)?)?;
    if let [b'"', rest @ ..] = rest {
        return Some((Cow::Borrowed(plain), rest));
    }
    let mut plain = plain.to_vec();
    loop {
        rest = match rest {
            [b'"', rest @ ..] => return Some((Cow::Owned(plain), rest)),
            [b'\\', b'x', escaped @ ..] if hex_pair(escaped).is_some() => {
                plain.extend(hex_pair(escaped));
                escaped.get(2..).unwrap_or_default()
            }
            [b'\\', byte, rest @ ..] | [byte, rest @ ..] => {
                plain.push(*byte);
                rest
            }
            [] => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::foreign_entry::RecordedValue;
    use super::*;
    use request::attribute::Attribute;

    const LINE: &str = r#"203.0.113.7 - ann [21/Nov/2026:14:51:52 +0000] "GET /v1/a?b=c HTTP/1.1" 200 17"#;

    #[test]
    fn a_line_has_the_status_of_the_response() {
        let status = |line: &str| read(line.as_bytes()).unwrap().1.status.map(|status| status.as_u16());
        assert_eq!(status(LINE), Some(200));
        assert_eq!(status(&LINE.replace(" 200 17", " 404 0 \"-\" \"curl\"")), Some(404));
        assert_eq!([" 200 17", " - -", ""].map(|end| status(&LINE.replace(" 200 17", end))), [Some(200), None, None]);
    }

    /// Checks what a line records about an attribute. `expected` is the value, `-` if the request had none, or `?` if
    /// the line does not say.
    #[track_caller]
    fn check(line: &str, attribute: &str, expected: &str) {
        let (moment, entry) = read(line.as_bytes()).unwrap();
        assert_eq!(moment.at.0, 1_795_272_712_000_000);
        let settings = identity::client_ip::Settings {
            trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
            ..Default::default()
        };
        let attribute = Attribute::parse(attribute).unwrap();
        let found = match entry.attribute(&attribute, entry.client(&settings)) {
            RecordedValue::Value(value) => String::from_utf8(value.into_owned()).unwrap(),
            RecordedValue::List(elements) => panic!("a list: {elements:?}"),
            RecordedValue::Missing => "-".to_owned(),
            RecordedValue::Unknown => "?".to_owned(),
        };
        assert_eq!(found, expected, "{attribute} of {line}");
    }

    #[test]
    fn a_line_has_address_method_target_and_two_fields() {
        for line in [LINE, &format!(r#"{LINE} "-" "curl/8.5 \x22x\" (\")""#)] {
            check(line, "ip:address", "203.0.113.7");
            check(line, "method", "GET");
            check(line, "path", "/v1/a");
            check(line, "path_segment:1", "v1");
            check(line, "path_segment:3", "-");
            check(line, "query:b", "c");
            check(line, "query:x", "-");
            check(line, "route", "?");
            check(line, "host", "?");
            check(line, "jwt:sub", "?");
            check(line, "key:id", "?");
            check(line, "cookie:b", "?");
            check(line, "header:accept", "?");
        }
        check(LINE, "header:user-agent", "?");
        let combined = format!(r#"{LINE} "-" "curl/8.5 \x22x\" (\")" 0.003 more"#);
        check(&combined, "header:referer", "-");
        check(&combined, "header:user-agent", r#"curl/8.5 "x" (")"#);
    }

    #[test]
    fn a_trusted_proxy_names_the_client() {
        let line = LINE.replace("203.0.113.7", "10.0.0.9");
        check(&line, "ip:address", "10.0.0.9");
        check(&format!(r#"{line} "-" "-" "198.51.100.1, 203.0.113.8""#), "ip:address", "203.0.113.8");
        check(&format!(r#"{LINE} "-" "-" "198.51.100.1""#), "ip:address", "203.0.113.7");
        check(&LINE.replace("203.0.113.7", "2001:db8::7"), "ip:address", "2001:db8::/64");
    }

    #[test]
    fn the_host_is_read_from_an_absolute_target() {
        check(&LINE.replace("/v1/a", "http://API.example.com:80/v1/a"), "host", "api.example.com");
    }

    #[test]
    fn an_invalid_line_is_rejected_with_what_it_lacks() {
        for (from, to, wanted) in [
            ("203.0.113.7", "localhost", "does not begin with an address"),
            ("GET /v1/a?b=c HTTP/1.1", "-", "its request is not like GET / HTTP/1.1"),
            ("GET /v1/a?b=c HTTP/1.1", "\\x16\\x03\\x01", "its request is not like GET / HTTP/1.1"),
            ("GET /v1/a", "GET /v1/a b", "its request is not like GET / HTTP/1.1"),
            ("/v1/a?b=c", "v1 a", "its request is not like GET / HTTP/1.1"),
            ("[21/Nov", "[31/Feb", "its time is not like 21/Nov/2026:14:51:52 +0000"),
            ("] ", " ", "must have a time in brackets"),
            ("HTTP/1.1\"", "HTTP/1.1", "no request in quotes"),
        ] {
            let line = LINE.replace(from, to);
            assert_eq!(read(line.as_bytes()).unwrap_err(), wanted, "{line}");
        }
        assert_eq!(read(b"").unwrap_err(), "no line of nginx or Apache");
    }
}

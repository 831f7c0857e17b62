//! Tests properties of the requests that calls of `/decide` describe, on any call.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use config::{Config, Environment, OriginalRequest};
use http::HeaderMap;
use pingora::http::RequestHeader;
use request::scheme::Scheme;
use tollgate::gateway::original_request::{CallError, DescribedRequest, read};
use tollgate::gateway::request_head::{HeadParser, Size};

use super::mutation::{fuzz, is_bug_planted};

/// The fields that a call must have exactly once, for each form of description.
const FORMS: [(OriginalRequest, &[&str]); 3] = [
    (OriginalRequest::XForwarded, &["x-forwarded-method", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-uri"]),
    (OriginalRequest::XOriginal, &["x-original-method", "x-original-url"]),
    (OriginalRequest::Path, &["host", "x-forwarded-proto"]),
];

const DESCRIPTIONS: [&str; 6] = [
    "x-forwarded-method",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-uri",
    "x-original-method",
    "x-original-url",
];

/// The same bounds as in the configuration.
const SIZE: Size = Size { bytes: 1 << 20, fields: 10, target: 256 };

fn config() -> Config {
    let text = b"upstream: http://127.0.0.1:9\nlimits: {target_bytes: 256B, extra_methods: [PURGE]}";
    let read = |_: &Path| Err(io::ErrorKind::NotFound.into());
    let environment = Environment { variable: &|_| None, folder: Path::new("."), read: &read };
    Config::parse("gateway.yaml", text, environment).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// Makes a call. Its method and target are in the first line, and each other line has a field. `None` if these are no
/// valid call.
fn call(bytes: &[u8]) -> Option<RequestHeader> {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let first = std::str::from_utf8(lines.next()?).ok()?;
    let (method, target) = first.split_once(' ')?;
    let mut call = RequestHeader::build_no_case(method.as_bytes(), target.as_bytes(), None).ok()?;
    for line in lines.filter(|line| !line.is_empty()) {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = String::from_utf8(line[..colon].to_vec()).ok()?;
        call.append_header(name, line[colon + 1..].trim_ascii()).ok()?;
    }
    Some(call)
}

/// Returns the call with only the first value of each repeated description.
fn with_first_values(call: &RequestHeader) -> RequestHeader {
    let mut changed = call.clone();
    for name in DESCRIPTIONS {
        if let Some(first) = call.headers.get(name).cloned() {
            changed.insert_header(name, first).unwrap();
        }
    }
    changed
}

/// Returns the only value of a field.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> &'h [u8] {
    let values: Vec<_> = headers.get_all(name).iter().collect();
    assert_eq!(values.len(), 1, "{name} has {values:?}: which of them counts is a guess");
    values[0].as_bytes()
}

/// Whether the chain of addresses ends with a valid address.
fn ends_with_address(headers: &HeaderMap) -> bool {
    let lines = headers.get_all("x-forwarded-for").iter();
    let chain: Vec<_> = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
    let chain = chain.join(",");
    let hop = chain.rsplit(',').next().unwrap_or_default().trim();
    let plain = hop.strip_prefix('[').and_then(|hop| hop.strip_suffix(']')).unwrap_or(hop);
    plain.parse::<IpAddr>().is_ok() || hop.parse::<SocketAddr>().is_ok()
}

/// Checks properties of every request that a call describes. Returns the method, host and target of the request.
fn check(call: &RequestHeader, form: OriginalRequest, described: &DescribedRequest) -> (String, Vec<u8>, String) {
    let DescribedRequest { head, scheme } = described;
    assert!(ends_with_address(&call.headers), "the client is not known");
    let host = only(&head.headers, "host").to_vec();
    let (method, target) = (head.method.to_string(), head.uri.to_string());
    for name in DESCRIPTIONS {
        assert!(!head.headers.contains_key(name), "{name} is left for rules to read");
    }
    assert!(!head.uri.path().contains('?'), "the query is in the path");
    let proto = match form {
        OriginalRequest::XForwarded => {
            assert_eq!(method.as_bytes(), only(&call.headers, "x-forwarded-method"));
            assert_eq!(host, only(&call.headers, "x-forwarded-host"));
            assert_eq!(target.as_bytes(), only(&call.headers, "x-forwarded-uri"));
            only(&call.headers, "x-forwarded-proto").to_vec()
        }
        OriginalRequest::XOriginal => {
            assert_eq!(method.as_bytes(), only(&call.headers, "x-original-method"));
            let url = only(&call.headers, "x-original-url");
            let separator = url.windows(3).position(|part| part == b"://").unwrap();
            let rest = &url[separator + 3..];
            let whole = [&host[..], target.as_bytes()].concat();
            // A URL may end after its host, or continue with a query.
            let with_slash = [&host[..], b"/"].concat();
            assert!(rest == whole || (rest == host && whole == with_slash), "{} is not {whole:?}", url.escape_ascii());
            url[..separator].to_vec()
        }
        OriginalRequest::Path => {
            assert_eq!(method, call.method.as_str());
            assert_eq!(format!("/decide{target}"), call.uri.path_and_query().unwrap().as_str());
            only(&call.headers, "x-forwarded-proto").to_vec()
        }
    };
    let is_secure = [&b"https"[..], b"wss"].iter().any(|name| proto.eq_ignore_ascii_case(name));
    assert_eq!(*scheme == Scheme::Https, is_secure, "{}", proto.escape_ascii());
    // The server's parser accepts the described request too.
    let text = [method.as_bytes(), b" ", target.as_bytes(), b" HTTP/1.1\r\nHost: ", &host, b"\r\n\r\n"].concat();
    let parsed = HeadParser::default().parse(&text, &SIZE, |method| method == b"PURGE");
    assert!(matches!(parsed, Ok(Some(_))), "{}: {parsed:?}", text.escape_ascii());
    // The other fields are those of the call.
    let left = |headers: &HeaderMap| {
        let own = headers.iter().filter(|(name, _)| *name != "host" && !DESCRIPTIONS.contains(&name.as_str()));
        let mut own: Vec<_> = own.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
        own.sort();
        own
    };
    assert_eq!(left(&head.headers), left(&call.headers));
    (method, host, target)
}

#[test]
pub fn original_request() {
    let words: &[&[u8]] = &[
        b"GET /decide\n",
        b"POST /decide/x?a=b\n",
        b"\nx-forwarded-method: GET",
        b"\nx-forwarded-proto: https",
        b"\nx-forwarded-host: a.example:81",
        b"\nx-forwarded-uri: /x?y=z",
        b"\nx-forwarded-for: 203.0.113.7",
        b"\nx-original-method: PUT",
        b"\nx-original-url: http://a/x",
        b"\nhost: [::1]:80",
        b"http://",
        b"wss://",
        b"://",
        b"/..",
        b"//",
        b"%2e",
        b"%00",
        b"?",
        b"#",
        b"@",
        b"*",
        b" ",
        b"OPTIONS",
        b"TRACE",
        b"PURGE",
        b"\xff",
    ];
    let config = config();
    let describe = |call: &RequestHeader, form| {
        // The planted bug: the first value of a repeated field counts.
        let call = if is_bug_planted() { with_first_values(call) } else { call.clone() };
        read(&call, form, &config)
    };
    fuzz("original-request", words, |bytes| {
        let Some(call) = call(bytes) else { return Vec::new() };
        let answer = |(form, needed): (OriginalRequest, &[&'static str])| {
            let described = match describe(&call, form) {
                Ok(described) => described,
                Err(CallError::Refused(refusal)) => return refusal.status.to_string(),
                Err(error) => return format!("{error:?}"),
            };
            let found = check(&call, form, &described);
            // The fields of other forms have no effect.
            let mut spoofed = call.clone();
            for name in DESCRIPTIONS.into_iter().filter(|name| !needed.contains(name)) {
                spoofed.append_header(name, "TRACE").unwrap();
            }
            let again = describe(&spoofed, form).unwrap_or_else(|error| panic!("{error:?}"));
            assert_eq!(check(&call, form, &again), found, "a field of another form counts");
            // The fields of the call's own form may not be repeated.
            for name in needed {
                let mut repeated = call.clone();
                repeated.append_header(*name, "GET").unwrap();
                // If the target of a call has an authority, the host is read from there.
                let is_read = call.headers.contains_key(*name) && call.uri.authority().is_none();
                assert!(!is_read || describe(&repeated, form).is_err(), "{name} is there twice");
            }
            format!("{} {}", found.0, described.head.uri.query().is_some())
        };
        FORMS.map(answer).to_vec()
    });
}

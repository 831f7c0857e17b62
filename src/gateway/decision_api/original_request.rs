//! Reads the request about which a call of `/decide` asks, from the set of fields that the listener's settings name.
//!
//! If a field of the set is missing or repeated, the asking proxy has made an error. The fields of both possible sets
//! are removed, so that no rule reads them as fields of the client.

use http::header::{HOST, HeaderName};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method};

use crate::gateway::server::http1::syntax::{is_authority, is_target};
use base::http_method;
use config::{Config, OriginalRequest};
use decision::refusal::Refusal;
use identity::client_ip::ends_with_address;
use request::scheme;
use request::scheme::Scheme;

/// The path of a call. The original path may follow it.
pub const DECIDE: &str = "/decide";

const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const ORIGINAL_URL: HeaderName = HeaderName::from_static("x-original-url");

/// The fields that describe the request and are not part of it.
const DESCRIPTIONS: [HeaderName; 6] =
    [FORWARDED_METHOD, FORWARDED_PROTO, FORWARDED_HOST, FORWARDED_URI, ORIGINAL_METHOD, ORIGINAL_URL];

/// The request in a call of another proxy, which asks whether the request may pass.
#[derive(Debug)]
pub struct DescribedRequest {
    pub head: Parts,
    pub scheme: Scheme,
}

/// The reason why a call of `/decide` is answered without asking the rules.
#[derive(Debug)]
pub enum CallError {
    /// The path of the call is not a path of the decision API.
    NotFound,
    /// This header field is missing, repeated or invalid in the call. An operator of the asking proxy has to correct this.
    Unusable(HeaderName),
    /// The path of the call contains no original path after `/decide`.
    PathMissing,
    /// The client's request violates HTTP.
    Refused(Refusal),
}

/// The parts of a described request.
struct Description<'c> {
    method: &'c [u8],
    authority: HeaderValue,
    /// The path with the query.
    target: &'c [u8],
    scheme: Scheme,
}

/// Reads the request about which `call` asks.
///
/// # Errors
/// Returns what is missing or invalid in the call.
pub fn read(call: &Parts, from: OriginalRequest, config: &Config) -> Result<DescribedRequest, CallError> {
    let is_decide = call.uri.path() == DECIDE;
    let description = match from {
        OriginalRequest::Path => by_path(call)?,
        _ if !is_decide => return Err(CallError::NotFound),
        OriginalRequest::XForwarded => by_forwarded_fields(&call.headers)?,
        OriginalRequest::XOriginal => by_original_fields(&call.headers)?,
    };
    // Without a client address in this field, the asking proxy would count as the client.
    if !ends_with_address(&call.headers) {
        return Err(CallError::Unusable(FORWARDED_FOR));
    }
    description.request(call.headers.clone(), config).map_err(CallError::Refused)
}

/// Makes the request about which a call asks, from its method, authority, target and scheme, and its header fields.
///
/// # Errors
/// Returns the refusal if the request violates HTTP.
pub fn describe(
    [method, authority, target, scheme]: [&str; 4],
    fields: HeaderMap,
    config: &Config,
) -> Result<DescribedRequest, Refusal> {
    let bad = || Refusal::bad_request(400);
    let authority = HeaderValue::from_str(authority).map_err(|_| bad())?;
    let scheme = scheme::parse(scheme.as_bytes()).ok_or_else(bad)?;
    Description { method: method.as_bytes(), authority, target: target.as_bytes(), scheme }.request(fields, config)
}

fn by_forwarded_fields(fields: &HeaderMap) -> Result<Description<'_>, CallError> {
    let scheme = scheme::parse(only(fields, FORWARDED_PROTO)?.as_bytes().trim_ascii());
    Ok(Description {
        method: only(fields, FORWARDED_METHOD)?.as_bytes(),
        authority: only(fields, FORWARDED_HOST)?.clone(),
        target: only(fields, FORWARDED_URI)?.as_bytes(),
        scheme: scheme.ok_or(CallError::Unusable(FORWARDED_PROTO))?,
    })
}

fn by_original_fields(fields: &HeaderMap) -> Result<Description<'_>, CallError> {
    let url = only(fields, ORIGINAL_URL)?.as_bytes();
    let unusable = || CallError::Unusable(ORIGINAL_URL);
    let colon = url.windows(3).position(|part| part == b"://").ok_or_else(unusable)?;
    let scheme = url.get(..colon).and_then(scheme::parse).ok_or_else(unusable)?;
    let (authority, target) = split_authority(url.get(colon + 3..).unwrap_or_default());
    let authority = HeaderValue::from_bytes(authority).map_err(|_| unusable())?;
    Ok(Description { method: only(fields, ORIGINAL_METHOD)?.as_bytes(), authority, target, scheme })
}

/// Splits a URL after the authority. The rest is the path with the query, or the star of an `OPTIONS` request.
fn split_authority(rest: &[u8]) -> (&[u8], &[u8]) {
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'*'));
    end.and_then(|end| rest.split_at_checked(end)).unwrap_or((rest, b"/"))
}

fn by_path(call: &Parts) -> Result<Description<'_>, CallError> {
    if call.uri.path() == DECIDE {
        return Err(CallError::PathMissing);
    }
    let whole = call.uri.path_and_query().map_or("", |target| target.as_str());
    let target = whole.strip_prefix(DECIDE).filter(|target| target.starts_with('/')).ok_or(CallError::NotFound)?;
    let authority = match call.uri.authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str()).map_err(|_| CallError::Unusable(HOST))?,
        None => only(&call.headers, HOST)?.clone(),
    };
    // The call may use another scheme than the client's request: many proxies with TLS call without TLS.
    let scheme = scheme::parse(only(&call.headers, FORWARDED_PROTO)?.as_bytes().trim_ascii());
    let scheme = scheme.ok_or(CallError::Unusable(FORWARDED_PROTO))?;
    Ok(Description { method: call.method.as_str().as_bytes(), authority, target: target.as_bytes(), scheme })
}

/// Returns the value of a field that occurs exactly once and is not empty.
fn only(fields: &HeaderMap, name: HeaderName) -> Result<&HeaderValue, CallError> {
    let mut values = fields.get_all(&name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) if !value.as_bytes().trim_ascii().is_empty() => Ok(value),
        _ => Err(CallError::Unusable(name)),
    }
}

impl Description<'_> {
    /// Makes the request with these fields.
    fn request(self, mut fields: HeaderMap, config: &Config) -> Result<DescribedRequest, Refusal> {
        self.check(config)?;
        let Description { method, authority, target, scheme } = self;
        let (mut head, ()) = http::Request::new(()).into_parts();
        head.method = Method::from_bytes(method).map_err(|_| Refusal::bad_request(400))?;
        head.uri = PathAndQuery::try_from(target).map_err(|_| Refusal::bad_request(400))?.into();
        for name in DESCRIPTIONS {
            fields.remove(name);
        }
        fields.insert(HOST, authority);
        head.headers = fields;
        Ok(DescribedRequest { head, scheme })
    }

    /// Applies the checks of the HTTP/1 server to the head, because the other proxy may accept more.
    ///
    /// # Errors
    /// Returns the refusal of a request that the listener would not accept either.
    fn check(&self, config: &Config) -> Result<(), Refusal> {
        if http_method::is_never_forwarded(self.method) {
            return Err(Refusal::bad_request(405));
        }
        if !http_method::is_registered(self.method) && !config.has_extra_method(self.method) {
            return Err(Refusal::bad_request(400));
        }
        if self.target.len() > config.bounds.target_bytes {
            return Err(Refusal::bad_request(414));
        }
        let is_form = match self.target {
            b"*" => self.method == b"OPTIONS",
            target => target.first() == Some(&b'/'),
        };
        let is_text = std::str::from_utf8(self.target).is_ok();
        let is_readable = is_form && is_text && self.target.iter().all(|byte| is_target(*byte));
        if is_readable && is_authority(self.authority.as_bytes()) { Ok(()) } else { Err(Refusal::bad_request(400)) }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use pingora::http::RequestHeader;
    use proptest::prelude::*;

    use super::*;
    use config::Environment;

    fn config() -> Config {
        let text = b"upstream: http://127.0.0.1:9\nlimits: {target_bytes: 256B, extra_methods: [PURGE]}";
        let environment =
            Environment { variable: &|_| None, folder: Path::new("."), read: &|_| Err(io::ErrorKind::NotFound.into()) };
        Config::parse("gateway.yaml", text, environment).unwrap()
    }

    /// Makes a call of `target` with these fields and a client address.
    fn call(target: &[u8], fields: &[(&str, &[u8])]) -> Option<RequestHeader> {
        let mut call = RequestHeader::build_no_case("GET", target, None).ok()?;
        call.append_header("host", "a.example:81").ok()?;
        call.append_header("x-forwarded-for", "192.0.2.7").ok()?;
        for (name, value) in fields {
            call.append_header((*name).to_owned(), *value).ok()?;
        }
        Some(call)
    }

    /// Returns what a URL in `X-Original-URL` describes: scheme, host and target.
    fn described(url: &str) -> Option<(Scheme, String, String)> {
        let fields = [("x-original-url", url.as_bytes()), ("x-original-method", b"OPTIONS")];
        let call = call(b"/decide", &fields).unwrap();
        let found = read(&call, OriginalRequest::XOriginal, &config()).ok()?;
        let host = found.head.headers.get(HOST).unwrap().to_str().unwrap().to_owned();
        Some((found.scheme, host, found.head.uri.to_string()))
    }

    #[test]
    fn a_url_has_a_scheme_a_host_and_a_target() {
        for (url, scheme, host, target) in [
            ("http://a", Scheme::Http, "a", "/"),
            ("HTTPS://a:8443/x?y=http://b/", Scheme::Https, "a:8443", "/x?y=http://b/"),
            ("wss://[::1]:80//x", Scheme::Https, "[::1]:80", "//x"),
            ("http://a*", Scheme::Http, "a", "*"),
        ] {
            assert_eq!(described(url), Some((scheme, host.to_owned(), target.to_owned())), "{url}");
        }
        for url in [
            "a",
            "/x",
            "http:/a",
            "://a/",
            "ftp://a/",
            "https ://a/",
            "https\t://a/",
            " https://a/",
            "http://",
            "http:///x",
            "http://a?x",
            "http://a*b",
            "http://u@a/",
        ] {
            assert_eq!(described(url), None, "{url}");
        }
    }

    proptest! {
        #[test]
        fn a_description_that_is_read_is_a_head_that_the_server_would_accept(
            method in "[A-Zo]{0,8}|GET|PURGE|TRACE",
            scheme in "https?|wss?|[a-z]{0,3}",
            host in "[a-z0-9.:@*\\[\\]/]{0,12}",
            target in prop::collection::vec(prop_oneof![Just(b'/'), Just(b'?'), Just(b'%'), 0x20..=0xffu8], 0..300),
        ) {
            let fields = [
                ("x-forwarded-method", method.as_bytes()),
                ("x-forwarded-proto", scheme.as_bytes()),
                ("x-forwarded-host", host.as_bytes()),
                ("x-forwarded-uri", &*target),
            ];
            // Some of the generated bytes cannot be in a field, so such a case is skipped.
            let Some(call) = call(b"/decide", &fields) else { return Ok(()) };
            if let Ok(read) = read(&call, OriginalRequest::XForwarded, &config()) {
                let size = crate::gateway::server::http1::request_head::Size { bytes: 4096, fields: 10, target: 256 };
                let text = [method.as_bytes(), b" ", &target, b" HTTP/1.1\r\nHost: ", host.as_bytes(), b"\r\n\r\n"].concat();
                let parsed = crate::gateway::server::http1::request_head::HeadParser::default().parse(&text, &size, |method| method == b"PURGE");
                prop_assert!(matches!(parsed, Ok(Some(_))), "{text:?}");
                prop_assert_eq!(read.head.method.as_str(), method);
            }
        }
    }
}

//! Reads the request about which Envoy asks, as the external authorization filter describes it.
//!
//! Without `encode_raw_headers`, the filter joins the values of a repeated field with commas. So a value with a comma
//! counts as several values, and a rule that reads the field refuses the request.

use std::net::IpAddr;

use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::gateway::decision_api::grpc::messages::{AttributeContext, CheckRequest, HttpRequest, Peer, TlsSession};
use crate::gateway::server::http1::request_head::LONGEST_NAME;
use crate::gateway::server::http1::syntax::is_disguised_framing;
use base::tls::client_certificate_properties::ClientCertificate;
use base::tls::identity::{TlsIdentity, without_final_dot};
use config::Bounds;
use decision::refusal::Refusal;
use request::percent_encoding;
use request::sent_descriptor::SentDescriptor;

/// The request about which Envoy asks, as read from its call.
#[derive(Debug)]
pub struct AskedRequest<'m> {
    pub http: &'m HttpRequest,
    /// The address of the client, according to the other proxy.
    pub source: IpAddr,
    pub fields: HeaderMap,
    /// The `context_extensions` that Envoy's route has sent with the request, as a descriptor.
    pub sent: SentDescriptor<'m>,
    /// The TLS connection between the client and the other proxy; `None` if the call does not describe it.
    pub tls: Option<TlsIdentity>,
}

/// The part of a call that is missing or invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    Request,
    Source,
    Certificate,
    /// A header field of the request has an invalid name or value.
    Field,
}

impl Unusable {
    /// Returns a text that says what is missing or invalid, for the log and the answer.
    pub const fn what(self) -> &'static str {
        match self {
            Unusable::Request => "attributes.request.http is missing",
            Unusable::Source => "attributes.source.address is not an address",
            Unusable::Certificate => "attributes.source.certificate is not a certificate",
            Unusable::Field => "a header has no valid name or value",
        }
    }
}

/// Reads from the message of a call the request about which Envoy asks.
///
/// # Errors
/// Returns the part of the call that is missing or invalid.
pub fn read(call: &CheckRequest) -> Result<AskedRequest<'_>, Unusable> {
    let attributes = call.attributes.as_ref().ok_or(Unusable::Request)?;
    let AttributeContext { source: peer, request, context_extensions, tls_session } = attributes;
    let http = request.as_ref().and_then(|request| request.http.as_ref()).ok_or(Unusable::Request)?;
    let address = peer.as_ref().and_then(|peer| peer.address.as_ref()?.socket_address.as_ref());
    let source = address.and_then(|address| address.address.parse().ok()).ok_or(Unusable::Source)?;
    let fields = fields(http).ok_or(Unusable::Field)?;
    let entries = context_extensions.iter().map(|(key, value)| (&**key, &**value)).collect();
    let tls = tls(peer.as_ref(), tls_session.as_ref())?;
    Ok(AskedRequest { http, source, fields, sent: SentDescriptor::of_request(entries), tls })
}

/// Returns the TLS properties that rules may read. The other proxy states whether a certificate was verified.
fn tls(peer: Option<&Peer>, session: Option<&TlsSession>) -> Result<Option<TlsIdentity>, Unusable> {
    let pem = peer.map(|peer| &*peer.certificate).filter(|pem| !pem.is_empty());
    let certificate = pem.map(|pem| ClientCertificate::read_pem(&percent_encoding::decode(pem.as_bytes())));
    let certificate = certificate.transpose().map_err(|_| Unusable::Certificate)?;
    let server_name = session.map(|session| String::from_utf8_lossy(&session.sni).to_ascii_lowercase());
    let server_name = server_name.map(|name| without_final_dot(&name).to_owned());
    let server_name = server_name.filter(|name| !name.is_empty());
    let is_known = certificate.is_some() || server_name.is_some();
    Ok(is_known.then_some(TlsIdentity { server_name, certificate }))
}

/// Checks that the head of a described request is not larger than the gateway's own HTTP/1 server would accept.
///
/// # Errors
/// Returns the refusal if the listener itself would not accept such a request.
pub fn check_size(http: &HttpRequest, bounds: &Bounds) -> Result<(), Refusal> {
    let (mut number, mut bytes) = (0, "Host: \r\n".len() + http.host.len());
    let mut check = |name: &[u8], length: usize| {
        number += 1;
        bytes += name.len() + length + ": \r\n".len();
        match name {
            _ if name.len() > LONGEST_NAME => Err(Refusal::bad_request(431)),
            _ if !name.eq_ignore_ascii_case(b"content-length")
                && !name.eq_ignore_ascii_case(b"transfer-encoding")
                && is_disguised_framing(name) =>
            {
                Err(Refusal::bad_request(400))
            }
            _ => Ok(()),
        }
    };
    // Pseudo-header fields are skipped, because they repeat the host and the request line.
    match &http.header_map {
        Some(raw) => {
            for header in raw.headers.iter().filter(|header| !header.key.starts_with(':')) {
                check(header.key.as_bytes(), header.value.len().max(header.raw_value.len()))?;
            }
        }
        None => {
            for (name, value) in http.headers.iter().filter(|(name, _)| !name.starts_with(':')) {
                check(name.as_bytes(), value.len())?;
            }
        }
    }
    let request_line = http.method.len() + http.path.len() + "  HTTP/1.1\r\n\r\n".len();
    match number >= bounds.headers || request_line + bytes > bounds.header_bytes {
        true => Err(Refusal::bad_request(431)),
        false => Ok(()),
    }
}

/// Returns the fields of a head, without pseudo-header fields. `None` if a field is invalid.
fn fields(http: &HttpRequest) -> Option<HeaderMap> {
    let mut fields = HeaderMap::new();
    let mut add = |name: &str, value: &[u8]| {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        fields.try_append(name, HeaderValue::from_bytes(value).ok()?).ok().map(drop)
    };
    if let Some(raw) = &http.header_map {
        for header in raw.headers.iter().filter(|header| !header.key.starts_with(':')) {
            let value = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
            add(&header.key, value)?;
        }
        return Some(fields);
    }
    for (name, value) in http.headers.iter().filter(|(name, _)| !name.starts_with(':')) {
        // Cookies are not split at commas, because they are joined by semicolons.
        if name.eq_ignore_ascii_case(COOKIE.as_str()) {
            add(name, value)?;
            continue;
        }
        for part in value.split(|byte| *byte == b',') {
            add(name, part.trim_ascii())?;
        }
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::decision_api::grpc::messages::SocketAddress;
    use crate::gateway::decision_api::grpc::messages::{
        Address, HeaderMap as RawMap, HeaderValue as RawValue, RequestAttributes,
    };

    fn call(address: &str, http: HttpRequest) -> CheckRequest {
        let address = Address { socket_address: Some(SocketAddress { address: address.to_owned() }) };
        let attributes = AttributeContext {
            source: Some(Peer { address: Some(address), certificate: String::new() }),
            request: Some(RequestAttributes { http: Some(http) }),
            context_extensions: [("tenant".to_owned(), "acme".to_owned())].into(),
            tls_session: None,
        };
        CheckRequest { attributes: Some(attributes) }
    }

    fn values(fields: &HeaderMap, name: &str) -> Vec<String> {
        fields.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    }

    #[test]
    fn joined_values_are_several_and_raw_ones_are_as_sent() {
        let pairs = [(":path", "/a"), ("x-key", "a, b"), ("cookie", "a=1,2; b=3"), ("x-one", "c")];
        let headers = pairs.map(|(name, value)| (name.to_owned(), value.into())).into();
        let joined = call("203.0.113.7", HttpRequest { headers, ..HttpRequest::default() });
        let read_call = read(&joined).unwrap();
        assert_eq!(values(&read_call.fields, "x-key"), ["a", "b"]);
        assert_eq!(values(&read_call.fields, "cookie"), ["a=1,2; b=3"]);
        assert_eq!((read_call.fields.len(), read_call.source.to_string()), (4, "203.0.113.7".to_owned()));
        assert_eq!(read_call.sent.value("tenant").as_deref(), Some("acme"));
        let raw = |key: &str, value: &'static [u8]| RawValue {
            key: key.to_owned(),
            value: String::new(),
            raw_value: value.into(),
        };
        let headers = vec![raw(":method", b"GET"), raw("x-key", b"a, b"), raw("X-Key", b"\xff")];
        let http = HttpRequest { header_map: Some(RawMap { headers }), ..HttpRequest::default() };
        assert_eq!(values(&read(&call("::1", http)).unwrap().fields, "x-key"), ["a, b", "\u{fffd}"]);
    }

    #[test]
    fn what_is_sent_of_tls_is_read_or_an_error() {
        let mut sent = call("::1", HttpRequest::default());
        assert_eq!(read(&sent).unwrap().tls, None);
        let attributes = sent.attributes.as_mut().unwrap();
        attributes.tls_session = Some(TlsSession { sni: b"A.test\xff".to_vec() });
        let name = |sent: &CheckRequest| read(sent).map(|asked| asked.tls.and_then(|tls| tls.server_name));
        assert_eq!(name(&sent), Ok(Some("a.test\u{fffd}".to_owned())));
        sent.attributes.as_mut().unwrap().tls_session = Some(TlsSession { sni: b"A.test.".to_vec() });
        assert_eq!(name(&sent), Ok(Some("a.test".to_owned())));
        sent.attributes.as_mut().unwrap().tls_session = Some(TlsSession::default());
        assert_eq!(read(&sent).unwrap().tls, None);
        for pem in ["a", "-----BEGIN%20CERTIFICATE-----%0A%%%0A-----END%20CERTIFICATE-----%0A"] {
            sent.attributes.as_mut().unwrap().source.as_mut().unwrap().certificate = pem.to_owned();
            assert_eq!(read(&sent).unwrap_err(), Unusable::Certificate, "{pem}");
        }
    }

    #[test]
    fn what_a_call_lacks_is_never_guessed() {
        assert_eq!(read(&CheckRequest::default()).unwrap_err(), Unusable::Request);
        assert_eq!(read(&call("", HttpRequest::default())).unwrap_err(), Unusable::Source);
        for (name, value) in [("a b", "c"), ("a", "b\r\nc: d"), ("", "a")] {
            let headers = [(name.to_owned(), value.into())].into();
            let http = HttpRequest { headers, ..HttpRequest::default() };
            assert_eq!(read(&call("::1", http)).unwrap_err(), Unusable::Field, "{name:?} {value:?}");
        }
    }
}

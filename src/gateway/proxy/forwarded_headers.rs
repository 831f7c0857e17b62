//! Writes the request fields that tell the upstream who the client is, and removes those that others have forged.

use std::net::IpAddr;

use bytes::Bytes;
use http::header::{HOST, HeaderName, InvalidHeaderValue};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Version};
use pingora::http::RequestHeader;
use pingora::{ErrorType, OrErr};

use super::request_target::RequestTarget;
use crate::gateway::response::request_id;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::upstream::Upstream;
use request::grpc_timeout::is_grpc;
use request::request::address_text;
use request::scheme::Scheme;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// What is forwarded about the client of a request.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    pub peer: IpAddr,
    /// Whether what the peer says of the client is believed.
    pub trusted_peer: bool,
    /// Of the connection.
    pub scheme: Scheme,
    pub request_id: &'a HeaderValue,
    pub connection: Option<&'a ConnectionHandle>,
}

/// The fields of a request that say where it came from, as far as they are read before it is decided.
#[derive(Clone, Copy, Debug, Default)]
pub struct IncomingFields<'h> {
    pub request_id: Option<&'h HeaderValue>,
    pub forwarded_for: bool,
}

impl<'h> IncomingFields<'h> {
    /// In one pass: most requests have neither, and few fields.
    pub fn of(headers: &'h HeaderMap) -> IncomingFields<'h> {
        let mut incoming = IncomingFields::default();
        for (name, value) in headers {
            match name.as_str() {
                "x-request-id" => incoming.request_id = incoming.request_id.or(Some(value)),
                "x-forwarded-for" => incoming.forwarded_for = true,
                _ => {}
            }
        }
        incoming
    }
}

/// Edits the fields of a request.
///
/// The request is split into parts and put together again: header names are then sent in lower case, as Envoy and HAProxy
/// send them, and three quarters of the cost of keeping their case are saved. A target that differs from the text of its URI
/// (not UTF-8) is not in the parts, and has to be copied. One in absolute form becomes a path with its query, as rules have read
/// it: its authority is that of `Host`.
///
/// # Errors
/// If that target cannot be set again.
pub fn edit(request: &mut RequestHeader, change: impl FnOnce(&mut HeaderMap)) -> pingora::Result<()> {
    let is_in_uri = request.uri.path_and_query().map(|target| target.as_str().as_bytes()) == Some(request.raw_path());
    let target = (!is_in_uri).then(|| {
        let RequestTarget { path, query } = RequestTarget::of(request);
        [path, query].concat()
    });
    let mut parts = Parts::from(std::mem::replace(request, RequestHeader::from(http::Request::new(()).into_parts().0)));
    change(&mut parts.headers);
    *request = RequestHeader::from(parts);
    match target {
        Some(target) => request.set_raw_path(&target),
        None => Ok(()),
    }
}

/// Whether the client of a request over HTTP/2 has to say that it accepts trailers, as gRPC requires. Pingora has removed what
/// was sent: it is a field of the client's own connection.
pub fn expects_trailers(request: &RequestHeader, sent: &RequestHeader) -> bool {
    request.version == Version::HTTP_2 && is_grpc(sent)
}

/// The `Host` of a request that has none, which only HTTP/1.0 allows: it is forwarded as HTTP/1.1, which requires one. It is that
/// of the upstream: the target has no authority, which must agree with `Host`.
///
/// # Errors
/// If that is no field value.
pub fn missing_host(request: &RequestHeader, upstream: Option<&Upstream>) -> pingora::Result<Option<HeaderValue>> {
    if request.version != Version::HTTP_10 || request.headers.contains_key(HOST) {
        return Ok(None);
    }
    let Some(upstream) = upstream else { return Ok(None) };
    HeaderValue::from_str(&upstream.authority()).map(Some).or_err(ErrorType::InternalError, "Host cannot be made")
}

/// Fields that no other spelling may imitate.
const OURS: [&str; 8] = [
    "x-real-ip",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-client-cert",
    "x-request-id",
];

/// Replaces the forwarding fields by ones that the upstream can believe. `Host` stays as it was sent.
pub fn apply(headers: &mut HeaderMap, client: Client<'_>) {
    const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
    const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
    headers.reserve(4);
    // Only the gateway or a trusted peer may set these: what others sent under these names is not forwarded. Nor is a name
    // that an upstream may take for one of them, from any peer: where names become variables, `X_Real_IP` is `X-Real-IP`.
    let is_forged = |name: &HeaderName| {
        let name = name.as_str();
        if name.bytes().any(|byte| matches!(byte, b'_' | b'.')) {
            let folded = name.replace(['_', '.'], "-");
            return folded.starts_with("x-tollgate-") || folded.starts_with("ratelimit") || OURS.contains(&&*folded);
        }
        let untrusted = !client.trusted_peer
            && matches!(name, "forwarded" | "x-real-ip" | "x-forwarded-port" | "x-forwarded-prefix");
        // What a client says of its certificate, or another proxy of a client's, was not verified here.
        untrusted
            || name == "x-forwarded-client-cert"
            || name.starts_with("x-tollgate-")
            || name.starts_with("ratelimit")
    };
    while let Some(name) = headers.keys().find(|name| is_forged(name)).cloned() {
        headers.remove(name);
    }
    let trusted = client.trusted_peer;
    // Built of header values and an address, it is one.
    if let Ok(chain) = chain(headers, client) {
        headers.insert(FORWARDED_FOR, chain);
    }
    if !(trusted && headers.contains_key(&FORWARDED_PROTO)) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static(client.scheme.name()));
    }
    if !(trusted && headers.contains_key(&FORWARDED_HOST)) {
        match headers.get(HOST).cloned() {
            Some(host) => drop(headers.insert(FORWARDED_HOST, host)),
            None => drop(headers.remove(FORWARDED_HOST)),
        }
    }
    headers.insert(request_id::NAME, client.request_id.clone());
}

/// The believed addresses that the request passed through, with the peer at the end.
fn chain(headers: &HeaderMap, client: Client<'_>) -> Result<HeaderValue, InvalidHeaderValue> {
    if !client.trusted_peer {
        let address = || HeaderValue::from_str(&address_text(client.peer));
        return client.connection.map_or_else(address, |connection| connection.peer_address(address));
    }
    let peer = address_text(client.peer);
    let mut chain = Vec::new();
    for line in headers.get_all(&FORWARDED_FOR) {
        chain.extend_from_slice(line.as_bytes());
        chain.extend_from_slice(b", ");
    }
    chain.extend_from_slice(peer.as_bytes());
    HeaderValue::from_maybe_shared(Bytes::from(chain))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scheme that is forwarded of a request with this field.
    fn forwarded_proto(scheme: Scheme, sent: Option<&'static str>, trusted_peer: bool) -> HeaderValue {
        let mut headers = HeaderMap::new();
        if let Some(sent) = sent {
            headers.insert("x-forwarded-proto", HeaderValue::from_static(sent));
        }
        let peer = IpAddr::from([192, 0, 2, 1]);
        apply(
            &mut headers,
            Client { peer, trusted_peer, scheme, request_id: &HeaderValue::from_static("a"), connection: None },
        );
        headers.remove("x-forwarded-proto").unwrap()
    }

    #[test]
    fn port_and_prefix_are_a_trusted_peers_under_their_own_names() {
        for trusted_peer in [false, true] {
            let mut headers = HeaderMap::new();
            let names = [
                "x-forwarded-port",
                "x-forwarded-prefix",
                "x_forwarded_port",
                "x.forwarded-prefix",
                "x_forwarded.port",
            ];
            for name in names {
                headers.append(HeaderName::from_static(name), HeaderValue::from_static("1"));
                headers.append(HeaderName::from_static(name), HeaderValue::from_static("2"));
            }
            let (peer, request_id) = (IpAddr::from([192, 0, 2, 1]), &HeaderValue::from_static("a"));
            apply(&mut headers, Client { peer, trusted_peer, scheme: Scheme::Http, request_id, connection: None });
            let kept: Vec<bool> = names.iter().map(|name| headers.contains_key(*name)).collect();
            assert_eq!(kept, [trusted_peer, trusted_peer, false, false, false]);
        }
    }

    #[test]
    fn the_forwarded_scheme_is_that_of_the_connection_unless_a_trusted_peer_names_one() {
        for (scheme, name) in [(Scheme::Http, "http"), (Scheme::Https, "https")] {
            assert_eq!(forwarded_proto(scheme, None, false), name);
            assert_eq!(forwarded_proto(scheme, None, true), name);
            assert_eq!(forwarded_proto(scheme, Some("other"), false), name);
            assert_eq!(forwarded_proto(scheme, Some("other"), true), "other");
        }
    }
}

//! Tells the upstream who the client is, in fields that it can believe.

use std::net::IpAddr;

use bytes::Bytes;
use http::header::{HOST, HeaderName, InvalidHeaderValue};
use http::{HeaderMap, HeaderValue};

use crate::gateway::response::request_id;
use crate::limit::request::address_text;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Who sent a request, as far as the upstream is told.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    pub peer: IpAddr,
    /// Whether that peer is believed about the client.
    pub trusted_peer: bool,
    pub request_id: &'a HeaderValue,
}

/// What a request says of its way here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said<'h> {
    pub request_id: Option<&'h HeaderValue>,
    pub forwarded_for: bool,
}

impl<'h> Said<'h> {
    /// In one pass: most requests say neither, and have few fields.
    pub fn by(headers: &'h HeaderMap) -> Said<'h> {
        let mut said = Said::default();
        for (name, value) in headers {
            match name.as_str() {
                "x-request-id" => said.request_id = said.request_id.or(Some(value)),
                "x-forwarded-for" => said.forwarded_for = true,
                _ => {}
            }
        }
        said
    }
}

/// What no other spelling may take the place of.
const OURS: [&str; 5] = ["x-real-ip", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-request-id"];

/// What the upstream is told of the client: `Host` as sent, and forwarding fields that it can believe.
pub fn apply(headers: &mut HeaderMap, client: Client<'_>) {
    const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
    const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
    headers.reserve(4);
    // Ours alone to say, or a trusted peer's: what others sent under these names goes no further. Nor does what an upstream
    // may take for them, whoever sent it: where names become those of variables, `X_Real_IP` is `X-Real-IP`.
    let ours = |name: &HeaderName| {
        let name = name.as_str();
        if name.bytes().any(|byte| matches!(byte, b'_' | b'.')) {
            let folded = name.replace(['_', '.'], "-");
            return folded.starts_with("x-tollgate-") || folded.starts_with("ratelimit") || OURS.contains(&&*folded);
        }
        let hearsay = matches!(name, "forwarded" | "x-real-ip") && !client.trusted_peer;
        hearsay || name.starts_with("x-tollgate-") || name.starts_with("ratelimit")
    };
    while let Some(name) = headers.keys().find(|name| ours(name)).cloned() {
        headers.remove(name);
    }
    let trusted = client.trusted_peer;
    // Built of what were header values, and an address.
    if let Ok(chain) = chain(headers, client) {
        headers.insert(FORWARDED_FOR, chain);
    }
    if !(trusted && headers.contains_key(&FORWARDED_PROTO)) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
    if !(trusted && headers.contains_key(&FORWARDED_HOST)) {
        match headers.get(HOST).cloned() {
            Some(host) => drop(headers.insert(FORWARDED_HOST, host)),
            None => drop(headers.remove(FORWARDED_HOST)),
        }
    }
    headers.insert(request_id::NAME, client.request_id.clone());
}

/// Who the request has come by, as far as it is believed, and the peer.
fn chain(headers: &HeaderMap, client: Client<'_>) -> Result<HeaderValue, InvalidHeaderValue> {
    let peer = address_text(client.peer);
    if !client.trusted_peer {
        return HeaderValue::from_str(&peer);
    }
    let mut chain = Vec::new();
    for line in headers.get_all(&FORWARDED_FOR) {
        chain.extend_from_slice(line.as_bytes());
        chain.extend_from_slice(b", ");
    }
    chain.extend_from_slice(peer.as_bytes());
    HeaderValue::from_maybe_shared(Bytes::from(chain))
}

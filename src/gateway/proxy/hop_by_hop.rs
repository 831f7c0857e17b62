//! Removes the hop-by-hop fields from the upstream's responses (RFC 9110, section 7.6.1).

use http::HeaderValue;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING};
use pingora::http::ResponseHeader;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Pingora adds the fields of the client's own connection later.
pub fn remove(response: &mut ResponseHeader) {
    let mut hop_by_hop: Vec<HeaderName> = Vec::new();
    for (name, value) in &response.headers {
        if name == CONNECTION {
            hop_by_hop.extend(nominated(value));
        } else if *name == KEEP_ALIVE || *name == PROXY_CONNECTION {
            hop_by_hop.push(name.clone());
        }
    }
    response.remove_header(&CONNECTION);
    for name in hop_by_hop {
        response.remove_header(&name);
    }
}

/// The fields that the options of `Connection` name. Those that say where the response ends must stay.
fn nominated(options: &HeaderValue) -> impl Iterator<Item = HeaderName> {
    let options = options.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    // Nearly every response has one of these and no other option.
    let others =
        options.filter(|option| !option.eq_ignore_ascii_case(b"keep-alive") && !option.eq_ignore_ascii_case(b"close"));
    let names = others.filter_map(|option| HeaderName::from_bytes(option).ok());
    names.filter(|name| ![CONTENT_LENGTH, TRANSFER_ENCODING].contains(name))
}

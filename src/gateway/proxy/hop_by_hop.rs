//! Takes off an answer what the upstream says of its own connection (RFC 9110, section 7.6.1).

use http::HeaderValue;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING};
use pingora::http::ResponseHeader;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// What the client's own connection needs is said anew, later.
pub fn take_off(response: &mut ResponseHeader) {
    let mut of_the_connection: Vec<HeaderName> = Vec::new();
    for (name, value) in &response.headers {
        if name == CONNECTION {
            of_the_connection.extend(nominated(value));
        } else if *name == KEEP_ALIVE || *name == PROXY_CONNECTION {
            of_the_connection.push(name.clone());
        }
    }
    response.remove_header(&CONNECTION);
    for name in of_the_connection {
        response.remove_header(&name);
    }
}

/// The fields that an option of `Connection` names. Those that say where the answer ends are nobody's to take off.
fn nominated(options: &HeaderValue) -> impl Iterator<Item = HeaderName> {
    let options = options.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    // Nearly every answer says one of these and nothing else.
    let others =
        options.filter(|option| !option.eq_ignore_ascii_case(b"keep-alive") && !option.eq_ignore_ascii_case(b"close"));
    let names = others.filter_map(|option| HeaderName::from_bytes(option).ok());
    names.filter(|name| ![CONTENT_LENGTH, TRANSFER_ENCODING].contains(name))
}

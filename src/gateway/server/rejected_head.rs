//! Reads the head of a rejected request, to find out whether pages of other origins may read the response (CORS).

use http::header::{HeaderName, HeaderValue, ORIGIN};
use http::request::Parts;
use http::{Method, Request as HttpRequest, Uri};

use super::connection_handle::ConnectionHandle;
use config::Config;
use decision::cors::CorsAnswer;
use request::request::Request;
use request::scheme::SchemeSource;

/// Returns the CORS answer to a rejected request with this head. `None` if CORS does not apply. The answer never grants a
/// preflight.
pub(super) fn cors(config: &Config, handle: &ConnectionHandle, head: &Parts) -> Option<CorsAnswer> {
    let cors = config.cors.as_ref()?;
    let Some(peer) = handle.socket().and_then(|socket| socket.peer()) else {
        let mut origins = head.headers.get_all(ORIGIN).iter();
        return cors.answer_unread(origins.next().filter(|_| origins.next().is_none()));
    };
    let peer = peer.to_canonical();
    let client = config.client_ip.client(peer, &head.headers);
    let is_trusted = config.client_ip.trusts(peer);
    let scheme = handle.scheme();
    let scheme = if is_trusted { SchemeSource::TrustedProxy(scheme) } else { SchemeSource::Connection(scheme) };
    let request = Request::new(head, client).with_scheme(scheme).with_listener(config.listener_name(handle.listener()));
    let answer = cors.answer(&request.with_tls(handle.tls().map(|tls| tls.identity())))?;
    Some(CorsAnswer { preflight: None, ..answer })
}

/// Reads the head of an HTTP/1 request at the start of `bytes`, and leaves out invalid fields. `None` if the end of the head
/// was not read, or if the method or the target is invalid.
pub(super) fn whole_head(bytes: &[u8]) -> Option<Parts> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let mut lines = bytes.get(..end)?.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut words = lines.next()?.split(|byte| *byte == b' ');
    let (method, target) = (Method::from_bytes(words.next()?).ok()?, Uri::try_from(words.next()?).ok()?);
    let (mut head, ()) = HttpRequest::new(()).into_parts();
    (head.method, head.uri) = (method, target);
    let fields = lines.filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (line.get(..colon)?, line.get(colon + 1..)?);
        Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value.trim_ascii()).ok()?))
    });
    for (name, value) in fields {
        // Fields that exceed the capacity of the map are left out.
        let _ = head.headers.try_append(name, value);
    }
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_known_once_its_end_was_read() {
        let text = b"POST /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\nno field\r\nbad name: 1\r\nX: 1\r\nx:  2 \r\n\r\nbody: 1";
        let head = whole_head(text).unwrap();
        assert_eq!((head.method.as_str(), head.uri.to_string().as_str()), ("POST", "/a?b"));
        let values: Vec<_> = head.headers.get_all("x").iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!((values, head.headers.len()), (vec!["1", "2"], 4));
        for end in 0..text.len() - "\nbody: 1".len() {
            assert!(whole_head(&text[..end]).is_none(), "{end}");
        }
        for without_target in [&b"\r\n\r\n"[..], b"GET\r\n\r\n", b"GET \x01 HTTP/1.1\r\n\r\n", b" / HTTP/1.1\r\n\r\n"] {
            assert!(whole_head(without_target).is_none(), "{without_target:?}");
        }
    }
}

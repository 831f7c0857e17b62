//! Recognises the opening handshake of a WebSocket (RFC 6455, section 4): the request, and the response that accepts
//! it.
//!
//! A connection becomes a tunnel only after both messages, so that no HTTP requests pass through the tunnel unseen.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::SEC_WEBSOCKET_KEY;

/// The fixed text that is hashed together with the key (RFC 6455, section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Whether the valid HTTP/1.1 head of a request is the opening handshake of a WebSocket.
pub(crate) fn is_request_head(head: &[u8]) -> bool {
    let method = head.split(|byte| *byte == b' ').next().unwrap_or_default();
    let lines = head.split(|byte| *byte == b'\n').skip(1);
    let fields = lines.filter_map(|line| base::split::split_once(line, b':'));
    begins(method, fields.map(|(name, value)| (name, value.trim_ascii())))
}

/// Whether the HTTP/1.1 head of a response accepts the WebSocket handshake of a request with these fields.
pub(crate) fn accepts(request: &HeaderMap, response: &[u8]) -> bool {
    let Some(key) = request.get(SEC_WEBSOCKET_KEY) else { return false };
    let lines = response.split(|byte| *byte == b'\n').skip(1);
    let fields = lines.filter_map(|line| base::split::split_once(line, b':'));
    let (mut upgrade, mut accepted) = (Upgrade::default(), Only::None);
    for (name, value) in fields {
        let value = value.trim_ascii();
        upgrade.read(name, value);
        if name.eq_ignore_ascii_case(b"sec-websocket-accept") {
            accepted.note(value == accept(key.as_bytes()).as_bytes());
        }
    }
    upgrade.is_to_websocket() && accepted == Only::Valid
}

/// The value of `Sec-WebSocket-Accept` for this key.
fn accept(key: &[u8]) -> String {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key.trim_ascii());
    hash.update(GUID);
    STANDARD.encode(hash.finish())
}

fn begins<'f>(method: &[u8], fields: impl Iterator<Item = (&'f [u8], &'f [u8])>) -> bool {
    let (mut upgrade, mut versions, mut keys) = (Upgrade::default(), Only::None, Only::None);
    for (name, value) in fields {
        if name.eq_ignore_ascii_case(b"sec-websocket-version") {
            versions.note(value == b"13");
        } else if name.eq_ignore_ascii_case(b"sec-websocket-key") {
            keys.note(is_key(value));
        } else {
            upgrade.read(name, value);
        }
    }
    method == b"GET" && upgrade.is_to_websocket() && versions == Only::Valid && keys == Only::Valid
}

/// Whether a value is 16 bytes in base64. The unused last bits are not checked.
fn is_key(value: &[u8]) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    value.strip_suffix(b"==").is_some_and(|digits| digits.len() == 22 && digits.iter().all(is_digit))
}

/// The fields that switch the protocol, in a request and in a response.
#[derive(Debug, Default)]
struct Upgrade {
    protocol: Only,
    is_option: bool,
}

impl Upgrade {
    fn read(&mut self, name: &[u8], value: &[u8]) {
        if name.eq_ignore_ascii_case(b"upgrade") {
            self.protocol.note(value.eq_ignore_ascii_case(b"websocket"));
        } else if name.eq_ignore_ascii_case(b"connection") {
            let mut options = value.split(|byte| *byte == b',');
            self.is_option |= options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
        }
    }

    fn is_to_websocket(&self) -> bool {
        self.protocol == Only::Valid && self.is_option
    }
}

/// The state of a field that must occur exactly once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Only {
    #[default]
    None,
    Valid,
    Invalid,
}

impl Only {
    fn note(&mut self, is_valid: bool) {
        *self = if *self == Only::None && is_valid { Only::Valid } else { Only::Invalid };
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const FIELDS: [(&str, &str); 4] = [
        ("Upgrade", "WebSocket"),
        ("Connection", "keep-alive, Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    /// Checks whether a request with these fields begins a WebSocket.
    #[track_caller]
    fn check(method: &str, fields: &[(&'static str, &str)], expected: bool) {
        let mut head = format!("{method} / HTTP/1.1\r\nHost: a\r\n");
        for (name, value) in fields {
            head += &format!("{name}: {value}\r\n");
        }
        assert_eq!(is_request_head(format!("{head}\r\n").as_bytes()), expected, "{head}");
    }

    #[test]
    fn a_handshake_has_each_of_its_parts_once() {
        check("GET", &FIELDS, true);
        check("POST", &FIELDS, false);
        for missing in 0..FIELDS.len() {
            let mut fields = FIELDS.to_vec();
            fields.remove(missing);
            check("GET", &fields, false);
            let name = FIELDS[missing].0;
            for other in
                ["", "h2c", "websocket, h2c", "8", "13, 8", "dGhlIHNhbXBsZSBub25jZQ=", "dGhlIHNhbXBsZSBub25j!Q=="]
            {
                let mut fields = FIELDS.to_vec();
                fields[missing].1 = other;
                check("GET", &fields, false);
            }
            // `Connection` may occur several times.
            check("GET", &[&FIELDS[..], &[FIELDS[missing]]].concat(), name == "Connection");
        }
    }

    #[test]
    fn a_response_accepts_the_key_of_its_request() {
        let request = HeaderMap::from_iter([(SEC_WEBSOCKET_KEY, HeaderValue::from_static(FIELDS[3].1))]);
        // The example of RFC 6455, section 1.3.
        let good = [
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ];
        let accepted = |fields: &[(&'static str, &str)]| {
            let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            accepts(&request, format!("HTTP/1.1 101 Switching Protocols\r\n{lines}\r\n").as_bytes())
        };
        assert!(accepted(&good));
        for changed in 0..good.len() {
            let mut fields = good.to_vec();
            fields.remove(changed);
            assert!(!accepted(&fields), "{fields:?}");
            for other in ["", "h2c", "s3pPLMBiTxaQ9kYGzzhZRbK+xO0=", "S3pPLMBiTxaQ9kYGzzhZRbK+xOo="] {
                let mut fields = good.to_vec();
                fields[changed].1 = other;
                assert!(!accepted(&fields), "{fields:?}");
            }
        }
        assert!(!accepted(&[&good[..], &[good[2]]].concat()));
    }
}

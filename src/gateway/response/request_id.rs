//! Chooses the id of a request: the id that the client has sent if it has a safe form, or else a new id.

use http::{HeaderName, HeaderValue};

/// The name of the header field that contains the id of a request.
pub(crate) const NAME: HeaderName = HeaderName::from_static("x-request-id");

/// Returns the id that a client has sent if it matches `[A-Za-z0-9._-]{1,128}`. Otherwise returns a new random id.
pub(crate) fn keep_or_make(sent: Option<&HeaderValue>) -> HeaderValue {
    let mut id = match sent {
        Some(id) if is_harmless(id.as_bytes()) => id.clone(),
        _ => make(),
    };
    // A sensitive value stays out of the HPACK table of HTTP/2. No other response has the id.
    id.set_sensitive(true);
    id
}

fn is_harmless(id: &[u8]) -> bool {
    (1..=128).contains(&id.len())
        && id.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Makes an id of 128 random bits. It is unique with high probability, and not secret.
fn make() -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut id = [0; 32];
    let digit = |half: u8| DIGITS.get(usize::from(half)).copied().unwrap_or(b'0');
    for (pair, byte) in id.as_chunks_mut().0.iter_mut().zip(fastrand::u128(..).to_be_bytes()) {
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
    HeaderValue::from_bytes(&id).unwrap_or_else(|_| HeaderValue::from_static("0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_harmless_id_is_kept_and_any_other_is_replaced() {
        let kept = |id: &[u8]| keep_or_make(Some(&HeaderValue::from_bytes(id).unwrap())).as_bytes() == id;
        assert!(kept(b"a"));
        assert!(kept(b"5f3a-9c17_A.b"));
        assert!(kept(&[b'x'; 128]));
        for id in [&b""[..], b"a b", b"a\"b", b"a/b", b"\xe9", &[b'x'; 129]] {
            assert!(!kept(id), "{id:?}");
        }
        let (one, two) = (keep_or_make(None), keep_or_make(None));
        assert_ne!(one, two);
        assert!(one.is_sensitive() && keep_or_make(Some(&HeaderValue::from_static("a"))).is_sensitive());
        assert!(is_harmless(one.as_bytes()) && one.len() == 32);
    }
}

//! The syntax of the parts of a head: which bytes may occur in each part, and the forms of hosts and lengths.

use std::net::Ipv6Addr;

use base::byte_set::ByteSet;
pub(crate) use base::http_method::is_token;
use base::split::around;

/// The bytes of a target, as in RFC 3986, and other bytes that browsers send. Bytes that the `http` crate rejects in a
/// path or a query are left out.
const TARGET: ByteSet = ByteSet::letters_digits_and(b"!$%&'()*+,-./:;=?@[\\]^_{|}~").and_beyond_ascii();
/// The bytes of a host name or an IPv4 address (RFC 3986, section 3.2.2).
const NAME: ByteSet = ByteSet::letters_digits_and(b"!$&'()*+,-.;=_~");

/// Whether a byte may occur in the value of a field. Control bytes other than the tab may not (RFC 9110, section 5.5).
pub(crate) fn is_value(byte: u8) -> bool {
    (byte >= 0x20 || byte == b'\t') && byte != 0x7f
}

/// Whether a byte may occur in the path or the query of a request target.
pub(crate) fn is_target(byte: u8) -> bool {
    TARGET.has(byte)
}

/// Whether these bytes are a valid host, optionally with a colon and a port. A user name or an empty host is invalid.
pub(crate) fn is_authority(bytes: &[u8]) -> bool {
    let colon = bytes.iter().rposition(|byte| matches!(byte, b':' | b']')).filter(|at| bytes.get(*at) == Some(&b':'));
    let (host, port) = colon.and_then(|at| around(bytes, at)).unwrap_or((bytes, b""));
    let host = match host.strip_prefix(b"[") {
        Some(address) => {
            let address = address.strip_suffix(b"]").and_then(|address| std::str::from_utf8(address).ok());
            address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
        }
        None => !host.is_empty() && host.iter().all(|byte| NAME.has(*byte)),
    };
    host && port.len() <= 5 && port.iter().all(u8::is_ascii_digit)
}

/// Whether a server that reads `_` or `.` as `-` would read this name as `Content-Length` or `Transfer-Encoding`. For
/// uWSGI, `Content_Length` is a second length.
pub(crate) fn is_disguised_framing(name: &[u8]) -> bool {
    let is_like = |framing: &[u8]| {
        let reads_as = |byte: u8, wanted: u8| match wanted {
            b'-' => matches!(byte, b'-' | b'_' | b'.'),
            letter => byte.eq_ignore_ascii_case(&letter),
        };
        name.len() == framing.len() && name.iter().zip(framing).all(|(byte, wanted)| reads_as(*byte, *wanted))
    };
    is_like(b"content-length") || is_like(b"transfer-encoding")
}

/// Parses the value of `Content-Length`. `None` if it is not one to 18 digits.
pub(crate) fn content_length(digits: &[u8]) -> Option<u64> {
    let plain = (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    plain.then(|| digits.iter().fold(0, |length, digit| length * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_a_host_and_perhaps_a_port() {
        for good in ["a", "a.example", "a_b-c.d", "127.0.0.1", "a:80", "a:", "[::1]", "[2001:db8::1]:443", "A", "a,b"] {
            assert!(is_authority(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            ":80",
            "a:b",
            "a:80:80",
            "a:123456",
            "a b",
            "u@a",
            "a/b",
            "a?b",
            "a#b",
            "[::1",
            "::1",
            "[::1]a",
            "[a]",
            "[]",
            "a%41",
            "\u{e9}",
            "a\\b",
            "a\"",
            "[::1%25eth0]",
            "[::ffff:1.2.3.4.5]",
        ] {
            assert!(!is_authority(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn framing_fields_are_recognised_in_every_spelling_that_servers_fold() {
        for name in ["Content_Length", "content.length", "TRANSFER_ENCODING", "Transfer.Encoding", "content-length"] {
            assert!(is_disguised_framing(name.as_bytes()), "{name}");
        }
        for name in ["", "Content~Length", "ContentXLength", "Content_Lengths", "XContent_Length", "Content_Type"] {
            assert!(!is_disguised_framing(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_content_length_is_a_decimal_that_fits_every_parser() {
        for (text, length) in [("0", 0), ("007", 7), ("999999999999999999", 999_999_999_999_999_999)] {
            assert_eq!(content_length(text.as_bytes()), Some(length));
        }
        for bad in ["", "-1", "+1", "0x1", "1 1", "1,1", "1.0", "1e3", "9999999999999999999", "\u{661}"] {
            assert_eq!(content_length(bad.as_bytes()), None, "{bad}");
        }
    }
}

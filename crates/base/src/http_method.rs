//! The methods of HTTP requests: which methods are registered, and which are never forwarded.

use super::byte_set::ByteSet;

/// The bytes that may occur in a token (RFC 9110, section 5.6.2).
const TOKEN: ByteSet = ByteSet::letters_digits_and(b"!#$%&'*+-.^_`|~");

/// The length of the longest accepted method, in bytes. The longest registered method has 17 bytes.
pub const LONGEST: usize = 32;

/// Whether a byte may occur in a token of HTTP, such as a method or the name of a field (RFC 9110, section 5.6.2).
pub fn is_token(byte: u8) -> bool {
    TOKEN.has(byte)
}

/// Whether IANA has registered this method for use (RFC 9110, section 16.1.1, and RFC 10008). Case-sensitive. `false`
/// for `PRI` and `*`, which are reserved, and for `TRACE` and `CONNECT`, which are never forwarded.
pub fn is_registered(method: &[u8]) -> bool {
    matches!(
        method,
        b"GET"
            | b"POST"
            | b"PUT"
            | b"HEAD"
            | b"PATCH"
            | b"DELETE"
            | b"OPTIONS"
            | b"ACL"
            | b"BASELINE-CONTROL"
            | b"BIND"
            | b"CHECKIN"
            | b"CHECKOUT"
            | b"COPY"
            | b"LABEL"
            | b"LINK"
            | b"LOCK"
            | b"MERGE"
            | b"MKACTIVITY"
            | b"MKCALENDAR"
            | b"MKCOL"
            | b"MKREDIRECTREF"
            | b"MKWORKSPACE"
            | b"MOVE"
            | b"ORDERPATCH"
            | b"PROPFIND"
            | b"PROPPATCH"
            | b"QUERY"
            | b"REBIND"
            | b"REPORT"
            | b"SEARCH"
            | b"UNBIND"
            | b"UNCHECKOUT"
            | b"UNLINK"
            | b"UNLOCK"
            | b"UPDATE"
            | b"UPDATEREDIRECTREF"
            | b"VERSION-CONTROL"
    )
}

/// Whether a method must never be forwarded, because it would turn a proxy into a tunnel or a mirror. The comparison
/// ignores case, as some servers do.
pub fn is_never_forwarded(method: &[u8]) -> bool {
    method.eq_ignore_ascii_case(b"TRACE") || method.eq_ignore_ascii_case(b"CONNECT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_registered_in_upper_case_only() {
        for method in ["GET", "VERSION-CONTROL", "QUERY", "PROPFIND"] {
            assert!(is_registered(method.as_bytes()), "{method}");
            assert!(!is_registered(method.to_ascii_lowercase().as_bytes()), "{method}");
        }
        for method in ["", "Get", "GETS", "GE", "PRI", "*", "TRACE", "CONNECT", "PURGE", "M-SEARCH"] {
            assert!(!is_registered(method.as_bytes()), "{method}");
        }
        assert!(is_never_forwarded(b"tRACE") && is_never_forwarded(b"Connect") && !is_never_forwarded(b"GET"));
    }
}

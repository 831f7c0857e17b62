//! Finds names of query parameters and cookies that differ for the gateway, but become equal in frameworks of
//! upstreams.
//!
//! PHP removes leading spaces, ends a name at a NUL, and turns a space, a `.` and a `[` into `_`. But `name[a]` is an
//! element of the array `name`. Rack 2 also ignores brackets that precede a name.

/// Whether some frameworks may turn the decoded name `sent` into `read`, a different name that a rule reads.
pub(crate) fn is_folded(sent: &[u8], read: &[u8]) -> bool {
    if sent == read {
        return false;
    }
    let start = sent.iter().position(|byte| *byte != b' ').unwrap_or(sent.len());
    let name = sent.get(start..).unwrap_or_default();
    let name = memchr::memchr(0, name).and_then(|end| name.get(..end)).unwrap_or(name);
    is_same_variable(name, read) || is_same_variable(outside_brackets(name), read)
}

fn is_same_variable(name: &[u8], read: &[u8]) -> bool {
    let folded = |byte: u8| if matches!(byte, b' ' | b'.' | b'[') { b'_' } else { byte };
    name.len() == read.len() && name.iter().zip(read).all(|(a, b)| folded(*a) == folded(*b))
}

/// Returns the name without brackets: `a` for `a[b]`, for `a]` and for `[a]`.
fn outside_brackets(name: &[u8]) -> &[u8] {
    let is_bracket = |byte: &u8| matches!(byte, b'[' | b']');
    let start = name.iter().position(|byte| !is_bracket(byte)).unwrap_or(name.len());
    let name = name.get(start..).unwrap_or_default();
    name.iter().position(is_bracket).and_then(|end| name.get(..end)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_becomes_another_as_php_and_rack_make_variables() {
        // Each of these names is read as `api_key` by PHP 8.2 or by Rack 2.2.
        for sent in ["api.key", "api key", "api[key", " api_key", "   api.key", "api_key\0x", "api_key[]", "api.key[x]"]
            .into_iter()
            .chain(["[api_key]", "[api_key", "]api_key", "api_key]", "[]api_key[a][b]"])
        {
            assert!(is_folded(sent.as_bytes(), b"api_key"), "{sent:?}");
        }
        for sent in
            ["api_key", "api-key", "API_KEY", "api_key ", "api_key_", "_api_key", "apikey", "", "[", " ", "x[api_key]"]
                .into_iter()
                .chain(["\0api_key", "\tapi_key", "api_keys[]", "api..key"])
        {
            assert!(!is_folded(sent.as_bytes(), b"api_key"), "{sent:?}");
        }
        // The name in a rule may itself contain characters that frameworks replace.
        assert!(is_folded(b"api_key", b"api.key"));
        assert!(!is_folded(b"filter[id]", b"filter[status]"));
        assert!(!is_folded(b"filter", b"filter[status]"));
        assert!(is_folded(b"filter_status]", b"filter[status]"));
    }
}

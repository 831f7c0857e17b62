//! Splits the target of a request, as it was sent, into path and query.

/// A request target, split into its path and its query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestTarget<'t> {
    /// The path. It is `/` if an absolute target has no path, and `*` in `OPTIONS *`.
    pub path: &'t [u8],
    /// The query, including its question mark. Empty if the target has no query.
    pub query: &'t [u8],
}

impl RequestTarget<'_> {
    pub(super) fn parse(target: &[u8]) -> RequestTarget<'_> {
        let target = match target.first() {
            Some(b'/' | b'*') => target,
            _ => below_authority(target),
        };
        let end = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
        let (path, query) = target.split_at_checked(end).unwrap_or_default();
        RequestTarget { path: if path.is_empty() { b"/" } else { path }, query }
    }
}

/// Returns the part of an absolute target after its authority.
fn below_authority(target: &[u8]) -> &[u8] {
    let Some(scheme) = target.windows(3).position(|part| part == b"://") else { return target };
    let rest = target.get(scheme + 3..).unwrap_or_default();
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    rest.get(end..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_path_and_a_query_in_every_form() {
        for (target, path, query) in [
            ("/a%20b?c=/d", "/a%20b", "?c=/d"),
            ("/", "/", ""),
            ("//a?", "//a", "?"),
            ("http://a:80/b?c", "/b", "?c"),
            ("http://a?c", "/", "?c"),
            ("HTTP://a", "/", ""),
            ("*", "*", ""),
        ] {
            let expected = RequestTarget { path: path.as_bytes(), query: query.as_bytes() };
            assert_eq!(RequestTarget::parse(target.as_bytes()), expected, "{target}");
        }
        assert_eq!(RequestTarget::parse(b"/\xff?\xfe"), RequestTarget { path: b"/\xff", query: b"?\xfe" });
    }
}

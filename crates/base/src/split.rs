//! Splits bytes at a separator, as `str` does with text.

/// Returns the parts before and after the first `separator`. `None` if `bytes` does not contain the separator.
pub fn split_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    around(bytes, memchr::memchr(separator, bytes)?)
}

/// Returns the parts before and after the last `separator`. `None` if `bytes` does not contain the separator.
pub fn rsplit_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    around(bytes, memchr::memrchr(separator, bytes)?)
}

/// Returns the parts before and after the first `separator`, which may have any length. `None` if it does not occur.
pub fn split_once_at<'b>(bytes: &'b [u8], separator: &[u8]) -> Option<(&'b [u8], &'b [u8])> {
    let (before, rest) = bytes.split_at_checked(memchr::memmem::find(bytes, separator)?)?;
    Some((before, rest.get(separator.len()..)?))
}

/// Returns the parts before and after the byte at `index`. `None` if there is no byte at `index`.
pub fn around(bytes: &[u8], index: usize) -> Option<(&[u8], &[u8])> {
    let (before, rest) = bytes.split_at_checked(index)?;
    Some((before, rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_separator_is_in_neither_part() {
        let parts = |before: &'static [u8], behind: &'static [u8]| Some((before, behind));
        assert_eq!(split_once(b"a=b=c", b'='), parts(b"a", b"b=c"));
        assert_eq!(rsplit_once(b"a=b=c", b'='), parts(b"a=b", b"c"));
        assert_eq!(split_once(b"=", b'='), parts(b"", b""));
        assert_eq!(split_once(b"a", b'='), None);
        assert_eq!(rsplit_once(b"", b'='), None);
        assert_eq!(split_once_at(b"a] b] c", b"] "), parts(b"a", b"b] c"));
        assert_eq!(split_once_at(b"a]", b"] "), None);
        assert_eq!(around(b"abc", 1), parts(b"a", b"c"));
        assert_eq!(around(b"abc", 3), None);
    }
}

//! Brings a request's path to its one reading, or says that it has none.
//!
//! Rules match the normalised path; what is forwarded is what was sent. So the two must not be told apart by any
//! upstream: percent-encoded unreserved characters are decoded, `.` and `..` resolved, empty segments merged
//! (RFC 3986 §6.2.2), and what different servers read differently (`%2f`, `%5c`, `%00`, a broken escape) is refused.

use std::borrow::Cow;

/// The path has no single reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// The path as rules see it. `*`, the target of `OPTIONS *`, is itself.
pub fn normalise(path: &[u8]) -> Result<Cow<'_, [u8]>, Unreadable> {
    if is_normal(path) {
        return Ok(Cow::Borrowed(path));
    }
    resolve_dots(&decode_unreserved(path)?).map(Cow::Owned)
}

/// Two hexadecimal digits at the start of `text`, as the byte that they escape.
pub fn hex_pair(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(0)? * 16 + digit(1)?)
}

/// The usual case, told without allocating: nothing escaped, no backslash, no segment that is empty or begins with a dot.
fn is_normal(path: &[u8]) -> bool {
    let dull = |pair: &[u8]| !matches!(pair, [b'/', b'/' | b'.'] | [_, b'%' | b'\\']);
    path == b"*" || (path.first() == Some(&b'/') && path.windows(2).all(dull))
}

fn decode_unreserved(path: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'\\' => return Err(Unreadable),
            b'%' => {
                let escaped = hex_pair(tail).ok_or(Unreadable)?;
                rest = &tail[2..];
                match escaped {
                    0 | b'/' | b'\\' => return Err(Unreadable),
                    b'-' | b'.' | b'_' | b'~' => decoded.push(escaped),
                    _ if escaped.is_ascii_alphanumeric() => decoded.push(escaped),
                    _ => {
                        decoded.push(b'%');
                        decoded.extend(tail[..2].iter().map(u8::to_ascii_uppercase));
                    }
                }
            }
            _ => decoded.push(byte),
        }
    }
    Ok(decoded)
}

/// RFC 3986 §5.2.4, with empty segments merged. A path that would leave the root stays there.
fn resolve_dots(path: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let Some(path) = path.strip_prefix(b"/") else { return Err(Unreadable) };
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut directory = true;
    for segment in path.split(|byte| *byte == b'/') {
        directory = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    let mut resolved = Vec::with_capacity(path.len() + 1);
    for segment in &segments {
        resolved.push(b'/');
        resolved.extend_from_slice(segment);
    }
    if directory || segments.is_empty() {
        resolved.push(b'/');
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(path: &str, expected: &str) {
        let normal = normalise(path.as_bytes()).map(|path| String::from_utf8(path.into_owned()).unwrap());
        assert_eq!(normal.as_deref().unwrap_or("UNREADABLE"), expected, "{path}");
    }

    #[test]
    fn every_spelling_of_a_path_is_one_path() {
        check("/", "/");
        check("*", "*");
        check("/v1/export", "/v1/export");
        check("//v1///export", "/v1/export");
        check("/v1/./export", "/v1/export");
        check("/v1/x/../export", "/v1/export");
        check("/../../v1", "/v1");
        check("/v1/%65xport", "/v1/export");
        check("/v1/%2e%2E/v2", "/v2");
        check("/v1/%7euser", "/v1/~user");
        check("/a%20b%3fc%c3%a9", "/a%20b%3Fc%C3%A9");
        check("/v1/", "/v1/");
        check("/v1/.", "/v1/");
        check("/v1/x/..", "/v1/");
        check("/..", "/");
        check("/.hidden", "/.hidden");
        check("/a;b=c", "/a;b=c");
    }

    #[test]
    fn a_path_that_servers_read_differently_is_refused() {
        for path in ["/a%2fb", "/a%2Fb", "/a%5cb", "/a\\b", "/a%00", "/a%", "/a%4", "/a%zz", "a", ""] {
            check(path, "UNREADABLE");
        }
    }

    proptest! {
        #[test]
        fn normalising_twice_is_normalising_once(path in "/([a./%]|%2e|%41|%3f|\\.\\.){0,12}") {
            if let Ok(once) = normalise(path.as_bytes()) {
                prop_assert_eq!(normalise(&once).unwrap().into_owned(), once.into_owned());
            }
        }
    }
}

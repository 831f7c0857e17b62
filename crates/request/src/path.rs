//! Normalises the path of a request, or finds that the path has more than one reading.
//!
//! Rules match the normalised path, but the path is forwarded as it was sent. So no upstream may read the sent path
//! differently. Characters that may be in a segment are unescaped, and all others are escaped. `.` and `..` are
//! resolved, and empty segments are merged (RFC 3986 §6.2.2). Path parameters (`;…`, RFC 3986 §3.3) are removed from
//! each segment. A path that servers read differently is refused: a path with `%2f`, `%5c`, `%00` or a broken escape.
//! Dots before a `;` are refused, because Tomcat reads `/static/..;/admin` as `/admin`. An empty segment is refused at
//! the beginning, or if `..` would remove it (`/x//../admin` is `/admin` for nginx).

use std::borrow::Cow;
use std::num::NonZeroU8;

use super::percent_encoding::hex_pair;
use base::byte_set::ByteSet;

/// The error for a path that can be read in more than one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// The characters that are not escaped in a segment: RFC 3986, section 3.3, except for `;`.
const PLAIN: ByteSet = ByteSet::letters_digits_and(b"-._~!$&'()*+,=:@");

/// Returns the path in the normalised form that rules see. `*`, the target of `OPTIONS *`, stays unchanged.
///
/// # Errors
/// If upstreams might read the path in more than one way.
pub fn normalise(path: &[u8]) -> Result<Cow<'_, [u8]>, Unreadable> {
    if is_normal(path) {
        return Ok(Cow::Borrowed(path));
    }
    resolve_dots(&spell(path)?).map(Cow::Owned)
}

/// Returns the segment of a normalised path with this number, counted from 1. `None` if the path has fewer segments. A
/// slash at the end begins no segment.
pub fn segment(normalised: &[u8], number: NonZeroU8) -> Option<&[u8]> {
    let segments = normalised.strip_prefix(b"/")?;
    let segment = segments.split(|byte| *byte == b'/').nth(usize::from(number.get()) - 1)?;
    (!segment.is_empty()).then_some(segment)
}

/// Normalises a text as a segment of a path. `None` if no path can have such a segment.
pub fn normalise_segment(text: &[u8]) -> Option<Vec<u8>> {
    let path = normalise(&[b"/", text].concat()).ok()?.into_owned();
    let segment = path.strip_prefix(b"/")?;
    (!segment.is_empty() && !segment.contains(&b'/')).then(|| segment.to_vec())
}

/// Whether a normalised path can contain these bytes.
pub fn may_be_part(part: &[u8]) -> bool {
    let mut rest = part;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'%' => match tail {
                [high, low, after @ ..] if is_capital_hex(*high) && is_capital_hex(*low) => {
                    if hex_pair(tail).is_none_or(|byte| PLAIN.has(byte)) {
                        return false;
                    }
                    rest = after;
                }
                // The part may end within an escape.
                [] => return true,
                [digit] => return is_capital_hex(*digit),
                _ => return false,
            },
            b'/' => {}
            _ if PLAIN.has(byte) => {}
            _ => return false,
        }
    }
    !part.windows(2).any(|pair| pair == b"//")
}

fn is_capital_hex(digit: u8) -> bool {
    digit.is_ascii_hexdigit() && !digit.is_ascii_lowercase()
}

/// Detects the usual path without allocating memory. Such a path has nothing to decode or escape, and no segment is
/// empty or begins with a dot.
fn is_normal(path: &[u8]) -> bool {
    let dull = |pair: &[u8]| match pair {
        [b'/', b'/' | b'.'] => false,
        [_, byte] => PLAIN.has(*byte) || *byte == b'/',
        _ => false,
    };
    path == b"*" || (path.first() == Some(&b'/') && path.windows(2).all(dull))
}

/// Writes each byte of a path in its only normalised spelling.
fn spell(path: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let mut spelt = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let meant = match byte {
            0 | b'\\' => return Err(Unreadable),
            b'/' | b';' => {
                spelt.push(byte);
                continue;
            }
            b'%' => {
                rest = tail.get(2..).unwrap_or_default();
                match hex_pair(tail).ok_or(Unreadable)? {
                    0 | b'/' | b'\\' => return Err(Unreadable),
                    escaped => escaped,
                }
            }
            _ => byte,
        };
        if PLAIN.has(meant) {
            spelt.push(meant);
        } else {
            let digit = |half: u8| if half < 10 { b'0' + half } else { b'A' - 10 + half };
            spelt.extend([b'%', digit(meant >> 4), digit(meant & 15)]);
        }
    }
    Ok(spelt)
}

/// Removes dot segments (RFC 3986 §5.2.4), path parameters and empty segments. A `..` at the root has no effect.
fn resolve_dots(path: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let Some(path) = path.strip_prefix(b"/") else { return Err(Unreadable) };
    // Empty segments are kept until the end, because servers disagree about whether `..` removes an empty segment.
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut directory = true;
    for segment in path.split(|byte| *byte == b'/') {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        directory = matches!(name, b"" | b"." | b"..");
        if has_dots_before_parameters(segment) {
            return Err(Unreadable);
        }
        match name {
            b"." => {}
            b".." if segments.pop().is_some_and(<[u8]>::is_empty) => return Err(Unreadable),
            b".." => {}
            _ => segments.push(name),
        }
    }
    if let [first, _, ..] = segments.as_slice()
        && first.is_empty()
    {
        return Err(Unreadable);
    }
    let mut resolved = Vec::with_capacity(path.len() + 1);
    for segment in segments.iter().filter(|segment| !segment.is_empty()) {
        resolved.push(b'/');
        resolved.extend_from_slice(segment);
    }
    if directory || resolved.is_empty() {
        resolved.push(b'/');
    }
    Ok(resolved)
}

/// Whether a segment is `.` or `..` up to a `;`, which may be escaped. The segment is in its normalised spelling.
fn has_dots_before_parameters(segment: &[u8]) -> bool {
    [b".;".as_slice(), b"..;", b".%3B", b"..%3B"].iter().any(|dots| segment.starts_with(dots))
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
        check("/v1///export", "/v1/export");
        check("/v1//x/../export", "/v1/export");
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
        check("/a;b=c", "/a");
        check("/a;b/c;d=e;f", "/a/c");
        check("/a/;x", "/a/");
        check("/;x", "/");
        check("/a;x/../b", "/b");
        check("/a.;x", "/a.");
        check("/a%3bb%3Dc", "/a%3Bb=c");
        check("/users/%40me", "/users/@me");
        check("/v1/items%3abatch", "/v1/items:batch");
        check("/%21$%26'()%2a+,=", "/!$&'()*+,=");
        check("/café", "/caf%C3%A9");
        check("/a[1]^{b}|c", "/a%5B1%5D%5E%7Bb%7D%7Cc");
        check("/%5b%25%3f", "/%5B%25%3F");
    }

    #[test]
    fn a_path_that_servers_read_differently_is_refused() {
        for path in [
            "//admin",
            "//",
            "/;/admin",
            "/;x/admin",
            "/.//admin",
            "/x/..//admin",
            "/static/..;/admin/x",
            "/static/..;x=y",
            "/.;/../admin",
            "/x/%2e%2e;/admin",
            "/x/.%2e;a/admin",
            "/x/..%3b/admin",
            "/x//../admin",
            "/x//./../admin",
            "/x//y/../../admin",
            "/x/;/../admin",
            "/a%2fb",
            "/a%2Fb",
            "/a%5cb",
            "/a\\b",
            "/a%00",
            "/a%",
            "/a%4",
            "/a%zz",
            "a",
            "",
        ] {
            check(path, "UNREADABLE");
        }
    }

    #[test]
    fn a_part_of_a_path_has_only_characters_of_normalised_paths() {
        for part in ["", "/", "/v1/", "caf%C3%A9", "/caf%C3%A", "/a%", "@me", "%25"] {
            assert!(may_be_part(part.as_bytes()), "{part}");
        }
        for part in ["/café", "%c3", "%40me", "a//b", "[1]", "a b", ";a", "%2", "%zz", "?a"] {
            assert_eq!(may_be_part(part.as_bytes()), part == "%2", "{part}");
        }
    }

    proptest! {
        #[test]
        fn normalising_twice_is_normalising_once(path in "/([a./%@;é]|%2e|%41|%3f|%40|%3b|\\.\\.){0,12}") {
            if let Ok(once) = normalise(path.as_bytes()) {
                prop_assert!(may_be_part(&once) || *once == *b"*");
                prop_assert_eq!(normalise(&once).unwrap().into_owned(), once.into_owned());
            }
        }
    }
}

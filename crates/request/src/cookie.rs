//! Reads a cookie, and finds cookies that upstreams may read differently.

use std::borrow::Cow;

use http::header::COOKIE;
use http::request::Parts;

use super::folded_name::is_folded;
use super::percent_encoding;
use base::split::split_once;

/// Returns the value of a cookie, without quotes around it and with escapes decoded once. `None` if the cookie is
/// absent or empty.
pub fn value<'r>(head: &'r Parts, name: &[u8]) -> Option<Cow<'r, [u8]>> {
    let (_, value) = pairs(head).find(|(found, _)| *found == name)?;
    let value = unquoted(value);
    (!value.is_empty()).then(|| percent_encoding::decode(value))
}

/// Whether upstreams might read a different value than [`value`]: the cookie is repeated, or has characters that
/// upstreams read differently.
pub fn is_ambiguous(head: &Parts, name: &[u8]) -> bool {
    let mut values = pairs(head).filter(|(found, _)| *found == name || without_edges(found) == name);
    // Some frameworks unescape `\141`. Some remove the first and the last character if the first is a quote: npm's
    // cookie 0.6 reads `"abcX` as `abc`.
    let is_unclear = |value| unquoted(value).iter().any(|byte| matches!(byte, b'\\' | b'"') || !byte.is_ascii());
    let first = values.next();
    first.is_some_and(|(found, value)| found != name || is_unclear(value)) || values.next().is_some()
}

/// Returns the name of another cookie that upstreams may read as the cookie `name`, such as a name with escapes. A name
/// for which `is_known` is true is not returned.
pub fn alias<'r>(head: &'r Parts, name: &[u8], is_known: impl Fn(&[u8]) -> bool) -> Option<Cow<'r, [u8]>> {
    pairs(head).find_map(|(found, _)| {
        let inner = without_edges(found);
        // Frameworks may shorten a name, but never make it longer.
        if inner.len() < name.len() || found == name {
            return None;
        }
        let decoded = percent_encoding::decode(inner);
        let is_alias = !is_known(found) && (*decoded == *name || is_folded(&decoded, name));
        is_alias.then_some(decoded)
    })
}

/// Returns a cookie's name without non-ASCII bytes at its beginning and end, which RFC 6265 §4.1.1 does not allow. Some
/// frameworks remove them as Unicode spaces, such as U+00A0.
fn without_edges(name: &[u8]) -> &[u8] {
    let is_inner = |byte: &u8| byte.is_ascii() && !byte.is_ascii_whitespace();
    let start = name.iter().position(is_inner).unwrap_or(name.len());
    let end = name.iter().rposition(is_inner).map_or(start, |last| last + 1);
    name.get(start..end).unwrap_or_default()
}

/// Returns the value of a `Cookie` field without the cookie `name`. Empty if the field has no other cookie.
pub fn without(field: &[u8], name: &[u8]) -> Vec<u8> {
    let pairs = field.split(|byte| *byte == b';');
    let kept: Vec<&[u8]> = pairs.filter(|pair| name_and_value(pair).0 != name).collect();
    kept.join(&b';').trim_ascii().to_vec()
}

/// Returns the names and values in all `Cookie` fields, as they were sent.
fn pairs<'r>(head: &'r Parts) -> impl Iterator<Item = (&'r [u8], &'r [u8])> + use<'r> {
    let fields = head.headers.get_all(COOKIE).iter();
    fields.flat_map(|field| field.as_bytes().split(|byte| *byte == b';')).map(name_and_value)
}

fn name_and_value(pair: &[u8]) -> (&[u8], &[u8]) {
    let (name, value) = split_once(pair, b'=').unwrap_or((pair, b""));
    (name.trim_ascii(), value.trim_ascii())
}

/// Returns a cookie's value without quotes around it (RFC 6265 §4.1.1), which many frameworks remove.
fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use http::header::HeaderValue;

    use super::*;

    /// Checks the value of the cookie `session` in a request with these `Cookie` fields.
    #[track_caller]
    fn check(fields: &[&[u8]], expected: Option<&str>) {
        let (mut head, ()) = http::Request::new(()).into_parts();
        for field in fields {
            head.headers.append(COOKIE, HeaderValue::from_bytes(field).unwrap());
        }
        let found = match is_ambiguous(&head, b"session") {
            true => Some("AMBIGUOUS".into()),
            false => value(&head, b"session").map(|value| String::from_utf8(value.into_owned()).unwrap()),
        };
        let shown: Vec<String> = fields.iter().map(|field| field.escape_ascii().to_string()).collect();
        assert_eq!(found.as_deref(), expected, "{shown:?}");
    }

    #[test]
    fn a_cookie_is_one_value_however_it_is_spelt() {
        check(&[b"a=b; session=abc"], Some("abc"));
        check(&[b"a=b", b"session=z"], Some("z"));
        check(&[b"session=%61bc"], Some("abc"));
        check(&[b"session=\"abc\""], Some("abc"));
        check(&[b"session=\"%61bc\""], Some("abc"));
        // Session cookies are decoded once, and `+` stays unchanged.
        check(&[b"session=s%3Aabc.d+e%252F"], Some("s:abc.d+e%2F"));
        check(&[b"session=x%2"], Some("x%2"));
        check(&[b"session=\"\\141bc\""], Some("AMBIGUOUS"));
        for value in ["\"abcX", "\"abc", "abc\"", "\"", "\"\"\"", "a\"b", "\"a\"b\"", "\"a;b\""] {
            check(&[format!("session={value}").as_bytes()], Some("AMBIGUOUS"));
        }
        check(&[b"other=\\; \"; session=a"], Some("a"));
        check(&[b"session=\"\""], None);
        check(&[b"Session=z; session="], None);
    }

    #[test]
    fn a_cookie_is_removed_and_the_others_stay() {
        for (field, kept) in [
            ("session=abc", ""),
            ("a=b; session=abc", "a=b"),
            ("session=abc; a=b;  c=\"d\"", "a=b;  c=\"d\""),
            ("a=b; session = abc ;c=d", "a=b;c=d"),
            ("sessions=abc; Session=x", "sessions=abc; Session=x"),
        ] {
            assert_eq!(without(field.as_bytes(), b"session"), kept.as_bytes(), "{field}");
        }
    }

    #[test]
    fn a_cookie_with_spaces_that_only_unicode_knows_is_ambiguous() {
        // NBSP and NEL in Latin-1 and in UTF-8, an ideographic space, and a byte order mark.
        for space in [&b"\xa0"[..], b"\x85", b"\xc2\xa0", b"\xc2\x85", b"\xe3\x80\x80", b"\xef\xbb\xbf"] {
            for (before, after) in [("session=", "abc"), ("session=abc", ""), ("session", "=abc"), ("", "session=abc")]
            {
                let field = [before.as_bytes(), space, after.as_bytes()].concat();
                check(&[&field], Some("AMBIGUOUS"));
                check(&[&[&b"a=b; "[..], &field, b" ;c=d"].concat()], Some("AMBIGUOUS"));
            }
            check(&[b"session=abc", &[&b"session"[..], space, b"=x"].concat()], Some("AMBIGUOUS"));
            check(&[&[&b"session=\""[..], space, b"abc\""].concat()], Some("AMBIGUOUS"));
        }
        // Other bytes that are not ASCII are letters for some frameworks, and invalid for others.
        check(&["session=caf\u{e9}".as_bytes()], Some("AMBIGUOUS"));
        check(&[b"session=a\xffc"], Some("AMBIGUOUS"));
        // Escapes of these characters have only one reading. Cookies that no rule reads may contain these characters.
        check(&[b"session=%C2%A0abc"], Some("\u{a0}abc"));
        check(&["lang=caf\u{e9}; session=abc; sessions\u{a0}=x; x\u{a0}session=y".as_bytes()], Some("abc"));
    }
}

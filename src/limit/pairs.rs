//! Reads the parameters of a query and the pairs of cookies, decoded once.

use std::borrow::Cow;

use http::header::COOKIE;

use super::path;
use super::request::Request;
use crate::base::split::split_once;

/// The parameters of the query, decoded: `+` is a space, a broken escape stays as it was sent.
pub fn query_pairs<'r>(request: &Request<'r>) -> impl Iterator<Item = (Cow<'r, [u8]>, Cow<'r, [u8]>)> + use<'r> {
    let query = request.head.uri.query().unwrap_or_default().as_bytes();
    query.split(|byte| *byte == b'&').map(|pair| {
        let (name, value) = split_once(pair, b'=').unwrap_or((pair, b""));
        (decode(name), decode(value))
    })
}

/// The pairs of all `Cookie` fields, as sent.
pub fn cookie_pairs<'r>(request: &Request<'r>) -> impl Iterator<Item = (&'r [u8], &'r [u8])> + use<'r> {
    let fields = request.head.headers.get_all(COOKIE).iter();
    fields.flat_map(|field| field.as_bytes().split(|byte| *byte == b';')).map(|pair| {
        let (name, value) = split_once(pair, b'=').unwrap_or((pair, b""));
        (name.trim_ascii(), value.trim_ascii())
    })
}

/// A cookie's value without the quotes around it (RFC 6265 §4.1.1 allows them), which many frameworks take off.
pub fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value)
}

/// A query's name or value: `+` is a space, an escape the byte that it stands for.
fn decode(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'+') {
        return decode_escapes(text);
    }
    let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    Cow::Owned(decode_escapes(&spaced).into_owned())
}

/// Decodes percent-escapes, once. A broken one stays as it was sent.
pub fn decode_escapes(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'%') {
        return Cow::Borrowed(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        decoded.push(match byte {
            b'%' => match path::hex_pair(tail) {
                Some(escaped) => {
                    rest = tail.get(2..).unwrap_or_default();
                    escaped
                }
                None => b'%',
            },
            _ => byte,
        });
    }
    Cow::Owned(decoded)
}

//! Reads the parameters of a query.

use std::borrow::Cow;

use super::percent;
use super::request::Request;
use crate::base::split::split_once;

/// The parameters of the query, decoded: `+` is a space, a broken escape stays as it was sent.
pub fn query_pairs<'r>(request: &Request<'r>) -> impl Iterator<Item = (Cow<'r, [u8]>, Cow<'r, [u8]>)> + use<'r> {
    let query = request.head.uri.query().unwrap_or_default().as_bytes();
    query.split(|byte| *byte == b'&').map(|pair| {
        let (name, value) = split_once(pair, b'=').unwrap_or((pair, b""));
        (percent::decode_form(name), percent::decode_form(value))
    })
}

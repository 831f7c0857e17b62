//! Reads the parameters of a query, and finds parameters that upstreams may read differently.

use std::borrow::Cow;

use http::request::Parts;

use super::folded_name::is_folded;
use super::percent_encoding;
use base::split::split_once;

/// Returns the decoded value of a parameter: `+` becomes a space, and an invalid escape stays as it was sent. `None` if
/// the parameter is absent or empty.
pub fn value<'r>(head: &'r Parts, name: &[u8]) -> Option<Cow<'r, [u8]>> {
    let (_, value) =
        pairs(head).map(name_and_value).find(|(found, _)| *percent_encoding::decode_form(found) == *name)?;
    (!value.is_empty()).then(|| percent_encoding::decode_form(value))
}

/// Whether a parameter occurs more than once.
pub(crate) fn is_repeated(head: &Parts, name: &[u8]) -> bool {
    let names = pairs(head).map(|pair| name_and_value(pair).0);
    names.filter(|found| *percent_encoding::decode_form(found) == *name).nth(1).is_some()
}

/// Returns the decoded name of another parameter that upstreams may read as the parameter `name`. A name for which
/// `is_known` is true is not returned.
///
/// Some frameworks also separate parameters at `;`, so the text after a `;` may be another parameter.
pub fn alias<'r>(head: &'r Parts, name: &[u8], is_known: impl Fn(&[u8]) -> bool) -> Option<Cow<'r, [u8]>> {
    pairs(head).find_map(|pair| {
        let is_split = memchr::memchr(b';', pair).is_some();
        pair.split(|byte| is_split && *byte == b';').find_map(|part| {
            let (found, _) = name_and_value(part);
            // Frameworks may shorten a name, but never make it longer.
            if found.len() < name.len() {
                return None;
            }
            let found = percent_encoding::decode_form(found);
            let is_alias = is_split && *found == *name || is_folded(&found, name) && !is_known(&found);
            is_alias.then_some(found)
        })
    })
}

/// Returns a query without the parameters whose decoded names `is_removed` accepts. The others stay as they were sent.
pub fn without(query: &[u8], is_removed: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let pairs = query.split(|byte| *byte == b'&');
    let kept: Vec<&[u8]> =
        pairs.filter(|pair| !is_removed(&percent_encoding::decode_form(name_and_value(pair).0))).collect();
    kept.join(&b'&')
}

/// Returns the parameters as they were sent.
fn pairs<'r>(head: &'r Parts) -> impl Iterator<Item = &'r [u8]> + use<'r> {
    head.uri.query().unwrap_or_default().as_bytes().split(|byte| *byte == b'&')
}

/// Splits a parameter into its name and its value, as they were sent.
pub(crate) fn name_and_value(pair: &[u8]) -> (&[u8], &[u8]) {
    split_once(pair, b'=').unwrap_or((pair, b""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_removed_and_the_others_stay() {
        for (query, kept) in [
            ("key=a", ""),
            ("a=b&key=c&d=%20&&e", "a=b&d=%20&&e"),
            ("k%65y=a&b", "b"),
            ("keys=a&xkey=b&KEY=c&=key", "keys=a&xkey=b&KEY=c&=key"),
            ("key", ""),
        ] {
            assert_eq!(without(query.as_bytes(), |name| name == b"key"), kept.as_bytes(), "{query}");
        }
    }
}

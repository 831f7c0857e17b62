//! Finds API keys in a request: where a key may be, and which values count as tokens instead.
//!
//! A request may carry its key in any of several places. Two places must have the same key, because the upstream might
//! read another key than the gateway.

use std::borrow::Cow;
use std::fmt;

use http::header::AUTHORIZATION;
use memchr::memchr_iter;

use super::attribute::Attribute;
use super::request::Request;

/// A part of a request that may carry an API key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyPlace {
    /// What follows the scheme `Bearer` in the field `Authorization`.
    Bearer,
    /// The whole value of a header field, query parameter or cookie.
    Attribute(Attribute),
}

/// The places of a request that may carry an API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPlaces {
    places: Vec<(KeyPlace, Content)>,
}

/// What the value at a place may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Key,
    /// A key, or a token. [`is_token`] tells which.
    KeyOrToken,
}

impl KeyPlace {
    /// Returns the attribute whose value contains the key.
    pub fn attribute(&self) -> Cow<'_, Attribute> {
        match self {
            KeyPlace::Bearer => Cow::Owned(Attribute::Header(AUTHORIZATION)),
            KeyPlace::Attribute(attribute) => Cow::Borrowed(attribute),
        }
    }

    /// Returns the value at this place. `None` if the value is missing or empty.
    fn value<'r>(&self, request: &Request<'r>) -> Option<Cow<'r, [u8]>> {
        match self {
            KeyPlace::Bearer => {
                let field = request.head.headers.get(AUTHORIZATION)?;
                bearer_value(field.as_bytes()).filter(|value| !value.is_empty()).map(Cow::Borrowed)
            }
            KeyPlace::Attribute(attribute) => attribute.resolve(request),
        }
    }
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPlace::Bearer => f.write_str("bearer"),
            KeyPlace::Attribute(attribute) => attribute.fmt(f),
        }
    }
}

impl KeyPlaces {
    /// Makes the list of these places. `token_from` are the attributes that may carry a token. In such an attribute, a
    /// value is a key only if it is no token ([`is_token`]).
    pub fn new(places: Vec<KeyPlace>, token_from: &[Attribute]) -> KeyPlaces {
        let places = places.into_iter().map(|place| {
            let has_tokens = token_from.contains(&place.attribute());
            (place, if has_tokens { Content::KeyOrToken } else { Content::Key })
        });
        KeyPlaces { places: places.collect() }
    }

    pub fn iter(&self) -> impl Iterator<Item = &KeyPlace> {
        self.places.iter().map(|(place, _)| place)
    }

    /// Returns the attributes that may carry a key.
    pub fn attributes(&self) -> impl Iterator<Item = Cow<'_, Attribute>> {
        self.iter().map(KeyPlace::attribute)
    }

    /// Returns the attributes that may carry either a key or a token.
    pub fn attributes_with_tokens(&self) -> impl Iterator<Item = Cow<'_, Attribute>> {
        let places = self.places.iter().filter(|(_, content)| *content == Content::KeyOrToken);
        places.map(|(place, _)| place.attribute())
    }

    /// Whether every value of this attribute is an API key.
    pub fn are_all_values_of(&self, attribute: &Attribute) -> bool {
        let is_whole = |place: &KeyPlace| matches!(place, KeyPlace::Attribute(own) if own == attribute);
        self.places.iter().any(|(place, content)| is_whole(place) && *content == Content::Key)
    }

    /// Returns the keys that a request carries, in the order of the places.
    pub fn keys<'p, 'r>(&'p self, request: &Request<'r>) -> impl Iterator<Item = (&'p KeyPlace, Cow<'r, [u8]>)> {
        self.places.iter().filter_map(|(place, content)| {
            let is_key = |value: &Cow<'_, [u8]>| *content == Content::Key || !is_token(value);
            place.value(request).filter(is_key).map(|value| (place, value))
        })
    }

    /// Returns two places of a request that carry different keys. `None` if the request has at most one key.
    pub fn conflict(&self, request: &Request<'_>) -> Option<(&KeyPlace, &KeyPlace)> {
        if self.places.len() < 2 {
            return None;
        }
        let mut keys = self.keys(request);
        let (first, key) = keys.next()?;
        keys.find(|(_, other)| *other != key).map(|(other, _)| (first, other))
    }
}

impl fmt::Display for KeyPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, place) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            place.fmt(f)?;
        }
        Ok(())
    }
}

/// Returns what follows the scheme `Bearer`, whose case is ignored (RFC 6750, section 2.1). Empty if nothing follows.
/// `None` if the value has another scheme.
pub fn bearer_value(value: &[u8]) -> Option<&[u8]> {
    let value = value.trim_ascii();
    let scheme = value.split(|byte| matches!(byte, b' ' | b'\t')).next().unwrap_or_default();
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer");
    is_bearer.then(|| value.get(scheme.len()..).unwrap_or_default().trim_ascii_start())
}

/// Whether a value is a token, at a place where it could also be a key. A token has at least two dots (RFC 7515,
/// section 7.1).
pub fn is_token(value: &[u8]) -> bool {
    memchr_iter(b'.', value).nth(1).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::client_address::ClientAddress;
    use super::*;

    fn place(text: &str) -> KeyPlace {
        match text {
            "bearer" => KeyPlace::Bearer,
            _ => KeyPlace::Attribute(Attribute::parse(text).unwrap()),
        }
    }

    /// Checks which keys a request with these fields carries, in these places.
    #[track_caller]
    fn check(places: &[&str], token_from: &[&str], fields: &[(&str, &str)], expected: &str) {
        let token_from: Vec<Attribute> = token_from.iter().map(|text| Attribute::parse(text).unwrap()).collect();
        let places = KeyPlaces::new(places.iter().map(|text| place(text)).collect(), &token_from);
        let mut head = http::Request::builder().uri("/?key=q");
        for (name, value) in fields {
            head = head.header(*name, *value);
        }
        let (head, ()) = head.body(()).unwrap().into_parts();
        let request = Request::new(&head, ClientAddress::new("192.0.2.1".parse().unwrap(), 64));
        let mut found: Vec<String> =
            places.keys(&request).map(|(place, key)| format!("{place}={}", String::from_utf8_lossy(&key))).collect();
        if let Some((one, other)) = places.conflict(&request) {
            found.push(format!("{one}≠{other}"));
        }
        assert_eq!(found.join(" "), expected, "{fields:?}");
    }

    #[test]
    fn bearer_is_what_follows_that_scheme() {
        for (field, expected) in [
            ("Bearer sk-1", "bearer=sk-1"),
            ("bEARER   sk-1 ", "bearer=sk-1"),
            ("BEARER\tsk-1", "bearer=sk-1"),
            ("Bearer a.b.c", "bearer=a.b.c"),
            ("Bearer sk-1 sk-2", "bearer=sk-1 sk-2"),
            ("Bearer sk-1, Bearer sk-2", "bearer=sk-1, Bearer sk-2"),
            ("Bearer", ""),
            ("Bearer  ", ""),
            ("Bearersk-1", ""),
            ("Basic sk-1", ""),
            ("sk-1", ""),
            ("", ""),
        ] {
            check(&["bearer"], &[], &[("authorization", field)], expected);
        }
    }

    #[test]
    fn different_keys_conflict_and_equal_ones_do_not() {
        let places = ["bearer", "header:x-api-key", "cookie:key"];
        let bearer = ("authorization", "Bearer sk-1");
        check(&places, &[], &[bearer], "bearer=sk-1");
        check(&places, &[], &[bearer, ("x-api-key", "sk-1")], "bearer=sk-1 header:x-api-key=sk-1");
        check(
            &places,
            &[],
            &[bearer, ("x-api-key", "sk-1"), ("cookie", "key=sk-2")],
            "bearer=sk-1 header:x-api-key=sk-1 cookie:key=sk-2 bearer≠cookie:key",
        );
        check(&places, &[], &[bearer, ("x-api-key", "")], "bearer=sk-1");
        check(&["query:key", "bearer"], &[], &[bearer], "query:key=q bearer=sk-1 query:key≠bearer");
        check(&["query:key", "bearer"], &[], &[("authorization", "Basic sk-1")], "query:key=q");
    }

    #[test]
    fn a_value_with_two_dots_is_a_token_where_tokens_may_be() {
        let tokens = ["header:authorization"];
        for (value, expected) in
            [("sk-1", "bearer=sk-1"), ("sk.1", "bearer=sk.1"), ("a.b.c", ""), ("a..", ""), ("a.b.c.d.e", "")]
        {
            check(&["bearer"], &tokens, &[("authorization", &format!("Bearer {value}"))], expected);
        }
        let token = ("authorization", "Bearer a.b.c");
        check(&["bearer", "header:x-api-key"], &tokens, &[token, ("x-api-key", "d.e.f")], "header:x-api-key=d.e.f");
        check(&["bearer"], &["cookie:session"], &[token], "bearer=a.b.c");
        check(&["header:authorization"], &tokens, &[token], "");
        check(
            &["header:authorization"],
            &tokens,
            &[("authorization", "ApiKey abc")],
            "header:authorization=ApiKey abc",
        );
    }
}

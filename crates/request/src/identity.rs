//! Holds the identity of a request: the claims of a verified token, and the holder of a known API key.
//!
//! An identity is made only after the credentials were verified.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::attribute_value::AttributeValue;
use super::claim_list::{ClaimList, amount_text, scalar_text};

/// The identity of a client that has authenticated, with a token, an API key or both.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    pub claims: Option<Arc<Claims>>,
    pub key: Option<Arc<KnownKey>>,
}

/// The claims of a verified token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claims {
    values: Map<String, Value>,
    /// The token's issuer, if several issuers are trusted. Each issuer's claims have buckets of their own.
    issuer: Option<String>,
}

impl Claims {
    pub fn new(values: Map<String, Value>, issuer: Option<String>) -> Claims {
        Claims { values, issuer }
    }

    /// Returns an upper estimate of the memory that the claims take, in bytes.
    pub fn size(&self) -> usize {
        fn members(map: &Map<String, Value>) -> usize {
            let nodes = map.len().div_ceil(5) * 1_024;
            nodes + map.iter().map(|(name, value)| name.len() + size(value)).sum::<usize>()
        }
        fn size(value: &Value) -> usize {
            match value {
                Value::Null | Value::Bool(_) | Value::Number(_) => 64,
                Value::String(text) => 64 + text.len(),
                Value::Array(list) => 64 + list.iter().map(|value| 64 + size(value)).sum::<usize>(),
                Value::Object(map) => 64 + members(map),
            }
        }
        members(&self.values)
    }

    pub fn issuer(&self) -> Option<&str> {
        self.issuer.as_deref()
    }

    /// Returns a claim's value as text. `None` if the claim is absent, or is not a text, an integer or a boolean.
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        scalar_text(self.find(name)?)
    }

    /// Returns a claim's value as `match` compares it: a single value, or the elements of a list.
    pub fn value(&self, name: &str) -> AttributeValue<'_> {
        let Some(claim) = self.find(name) else { return AttributeValue::Missing };
        match scalar_text(claim) {
            Some(Cow::Borrowed(text)) => AttributeValue::Single(Cow::Borrowed(text.as_bytes())),
            Some(Cow::Owned(text)) => AttributeValue::Single(Cow::Owned(text.into_bytes())),
            None => ClaimList::members(claim).map_or(AttributeValue::Missing, AttributeValue::List),
        }
    }

    /// Returns the text of a claim that should be a number. `None` if the claim is absent or null.
    pub(crate) fn amount_text(&self, name: &str) -> Option<Cow<'_, str>> {
        amount_text(self.find(name)?)
    }

    /// Returns the words of a claim, for `match`. The value is missing if there are no words.
    pub fn words(&self, name: &str) -> AttributeValue<'_> {
        self.find(name).and_then(ClaimList::words).map_or(AttributeValue::Missing, AttributeValue::List)
    }

    /// Finds a claim with this name. If it is missing, `a.b` means the claim `b` in the object `a`.
    fn find(&self, name: &str) -> Option<&Value> {
        let nested = || {
            let (outer, path) = name.split_once('.')?;
            path.split('.').try_fold(self.values.get(outer)?, |value, name| value.as_object()?.get(name))
        };
        self.values.get(name).or_else(nested)
    }
}

/// The holder of an API key and the holder's plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownKey {
    pub id: String,
    pub plan: String,
    /// The values in the columns after id and plan. Empty if the file has no such columns.
    pub columns: KeyColumns,
}

/// The values of an API key in the columns after id and plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyColumns {
    /// The names of the columns, shared by all keys of a file.
    pub names: Arc<[String]>,
    /// The values, in the order of `names`. `None` where the key has no value.
    pub values: Box<[Option<Box<str>>]>,
}

impl KnownKey {
    /// Makes a key that has only an id and a plan, and no further columns.
    pub fn new(id: &str, plan: &str) -> KnownKey {
        KnownKey { id: id.to_owned(), plan: plan.to_owned(), columns: KeyColumns::default() }
    }

    /// Returns the value in a column other than id and plan. `None` if the key has no value in a column of this name.
    pub fn column(&self, name: &str) -> Option<&str> {
        let index = self.columns.names.iter().position(|known| known == name)?;
        self.columns.values.get(index)?.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, name: &str, expected: Option<&str>) {
        let claims = Claims::new(serde_json::from_str(json).unwrap(), None);
        assert_eq!(claims.text(name).as_deref(), expected, "{name} of {json}");
    }

    #[test]
    fn a_claim_is_text_an_integer_or_a_boolean() {
        check(r#"{"plan":"free"}"#, "plan", Some("free"));
        check(r#"{"org":42}"#, "org", Some("42"));
        check(r#"{"org":"42"}"#, "org", Some("42"));
        check(r#"{"org":-7}"#, "org", Some("-7"));
        check(r#"{"org":18446744073709551615}"#, "org", Some("18446744073709551615"));
        check(r#"{"paid":true}"#, "paid", Some("true"));
        check(r#"{"plan":""}"#, "plan", Some(""));
        for value in [
            "null",
            "[]",
            r#"["enterprise"]"#,
            "{}",
            r#"{"enterprise":1}"#,
            "1.5",
            "1.0",
            "1e3",
            "1e400",
            "18446744073709551616",
        ] {
            // JSON with a number that is too large is rejected by the parser.
            if let Ok(values) = serde_json::from_str(&format!(r#"{{"plan":{value}}}"#)) {
                assert_eq!(Claims::new(values, None).text("plan"), None, "{value}");
            }
        }
        check(r#"{"Plan":"free"}"#, "plan", None);
    }

    #[test]
    fn a_list_is_a_value_for_match_alone() {
        let claims =
            Claims::new(serde_json::from_str(r#"{"realm":{"roles":["a",7]},"b":[],"c":["a",{}]}"#).unwrap(), None);
        assert_eq!(claims.text("realm.roles"), None);
        let AttributeValue::List(list) = claims.value("realm.roles") else { panic!("no list") };
        assert_eq!(list.elements(), [b"a", b"7"]);
        for name in ["b", "c", "d", "realm"] {
            assert!(matches!(claims.value(name), AttributeValue::Missing), "{name}");
            assert!(matches!(claims.words(name), AttributeValue::Missing), "{name}");
        }
    }

    #[test]
    fn the_literal_name_comes_before_the_nested_one() {
        check(r#"{"realm.plan":"a","realm":{"plan":"b"}}"#, "realm.plan", Some("a"));
        check(r#"{"realm":{"plan":"b"}}"#, "realm.plan", Some("b"));
        check(r#"{"a":{"b":{"c":1}}}"#, "a.b.c", Some("1"));
        check(r#"{"a":{"b":"c"}}"#, "a.b.c", None);
        check(r#"{"a":"b"}"#, "a.", None);
        check(r#"{"https://example.com/plan":"x"}"#, "https://example.com/plan", Some("x"));
    }
}

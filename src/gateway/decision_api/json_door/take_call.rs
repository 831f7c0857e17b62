//! Reads the body of a call of `/take`: strict JSON, in which no name is unknown or occurs twice.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Number;

use base::time::Micros;
use ledger::holds::LONGEST_HOLD;
use request::sent_descriptor::SentDescriptor;
use rules::descriptors_plan::Hits;

/// The maximum number of entries, as of a descriptor of the rate limit service.
const MOST_ENTRIES: usize = 64;

/// The maximum length of an id, in bytes.
const LONGEST_ID: usize = 256;

/// The maximum length of the text that describes a fault of a call, in bytes. The text may quote the call.
const LONGEST_FAULT: usize = 256;

/// A call that asks to take something from the limits that apply to these entries.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeCall {
    /// The caller's name for this call. A repeated call has the same id. `None` if repeated calls take again.
    #[serde(default, deserialize_with = "present")]
    pub id: Option<CallId>,
    entries: Entries,
    #[serde(default, deserialize_with = "present")]
    pub domain: Option<String>,
    #[serde(default)]
    cost: TakeCost,
    /// How long the service holds what it takes, until it settles. `None` if it takes it for good.
    #[serde(default, deserialize_with = "present")]
    pub hold_for: Option<HoldFor>,
}

/// A time from one second to an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldFor(pub Micros);

/// An id of 1 to 256 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallId(pub String);

/// How many times the cost of one request is taken. 0 asks whether one could be taken, and takes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TakeCost(u64);

/// The entries in the order of the text, each with a name of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entries(Vec<(String, String)>);

/// The reason why a call is invalid: the position, what must hold, and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidCall(pub String);

impl TakeCall {
    /// Reads the body of a call.
    ///
    /// # Errors
    /// If the body is not a JSON object of this form.
    pub fn read(body: &[u8]) -> Result<TakeCall, InvalidCall> {
        let call: TakeCall = read(body)?;
        if call.hold_for.is_some() && call.cost.0 == 0 {
            return Err(InvalidCall("`cost` must be at least 1 with `hold_for`, is 0".to_owned()));
        }
        Ok(call)
    }

    /// Returns the entries and the domain in the form that the rules read.
    pub fn descriptor(&self) -> SentDescriptor<'_> {
        let entries = self.entries.0.iter().map(|(name, value)| (&**name, &**value)).collect();
        SentDescriptor::of_call(self.domain.as_deref(), entries)
    }

    pub fn hits(&self) -> Hits {
        if self.cost.0 == 0 { Hits::Check } else { Hits::Charge(self.cost.0) }
    }

    /// Returns a hash of what the call asks for, without its id. It does not depend on the order of the entries, which
    /// some libraries do not keep.
    pub fn question(&self, hasher: &RandomState) -> u64 {
        let mut entries: Vec<&(String, String)> = self.entries.0.iter().collect();
        entries.sort_unstable();
        hasher.hash_one((entries, &self.domain, self.cost, self.hold_for))
    }
}

impl Default for TakeCost {
    fn default() -> TakeCost {
        TakeCost(1)
    }
}

/// Reads the body of a call.
///
/// # Errors
/// If the body is not a JSON object of this form.
pub(super) fn read<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, InvalidCall> {
    // A derived reader would also accept the values alone, as a list.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(InvalidCall("the body must be a JSON object".to_owned()));
    }
    serde_json::from_slice(body).map_err(|error| {
        let mut fault = error.to_string();
        let end = (0..=LONGEST_FAULT).rev().find(|end| fault.is_char_boundary(*end));
        fault.truncate(end.unwrap_or(0));
        InvalidCall(fault)
    })
}

/// Reads a value that may be missing, but is not `null`.
///
/// # Errors
/// If the value is `null`, or not of the type.
pub(super) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for CallId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CallId, D::Error> {
        let id = String::deserialize(deserializer)?;
        match id.len() {
            1..=LONGEST_ID => Ok(CallId(id)),
            length => Err(D::Error::custom(format_args!("`id` must have 1 to {LONGEST_ID} bytes, has {length}"))),
        }
    }
}

impl<'de> Deserialize<'de> for HoldFor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HoldFor, D::Error> {
        let text = String::deserialize(deserializer)?;
        let fault = || D::Error::custom(format_args!("`hold_for` must be a time from `1s` to `1h`, is {text:?}"));
        HoldFor::parse(&text).ok_or_else(fault)
    }
}

impl HoldFor {
    /// Parses a time such as `30s`. `None` for any other text.
    pub fn parse(text: &str) -> Option<HoldFor> {
        let seconds = |unit| match unit {
            's' => Some(1),
            'm' => Some(60),
            'h' => Some(3600),
            _ => None,
        };
        let parsed = text.char_indices().next_back().and_then(|(at, unit)| {
            let number = text.get(..at).filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))?;
            number.parse::<u64>().ok()?.checked_mul(seconds(unit)?)?.checked_mul(1_000_000)
        });
        let fits = |time: &Micros| (Micros(1_000_000)..=LONGEST_HOLD).contains(time);
        parsed.map(Micros).filter(fits).map(HoldFor)
    }
}

impl<'de> Deserialize<'de> for TakeCost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TakeCost, D::Error> {
        let number = Number::deserialize(deserializer)?;
        let whole = number.as_u64().map(TakeCost);
        whole.ok_or_else(|| D::Error::custom(format_args!("`cost` must be a whole number, is {number}")))
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of names and texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Entries, A::Error> {
        let mut entries: Vec<(String, String)> = Vec::new();
        while let Some(name) = members.next_key::<String>()? {
            if entries.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(format_args!("`entries` must have each name once, has {name:?} twice")));
            }
            if entries.len() == MOST_ENTRIES {
                return Err(A::Error::custom(format_args!("`entries` must have at most {MOST_ENTRIES} names")));
            }
            entries.push((name, members.next_value()?));
        }
        Ok(Entries(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_order_and_what_is_missing_has_a_default() {
        let call = TakeCall::read(br#" {"entries": {"user": "u1", "kind": "mail"}} "#).unwrap();
        assert_eq!((call.hits(), &call.id, &call.domain), (Hits::Charge(1), &None, &None));
        assert_eq!(call.descriptor().value("entries").as_deref(), Some("user/kind"));
        let body = br#"{"cost": 0, "id": "a", "domain": "", "entries": {}}"#;
        let call = TakeCall::read(body).unwrap();
        assert_eq!((call.hits(), call.domain.as_deref()), (Hits::Check, Some("")));
        let most = TakeCall::read(format!(r#"{{"entries": {{}}, "cost": {}}}"#, u64::MAX).as_bytes()).unwrap();
        assert_eq!(most.hits(), Hits::Charge(u64::MAX));
        for (text, seconds) in [("1s", 1), ("90s", 90), ("5m", 300), ("1h", 3600), ("3600s", 3600)] {
            let call = TakeCall::read(format!(r#"{{"entries": {{}}, "hold_for": "{text}"}}"#).as_bytes()).unwrap();
            assert_eq!(call.hold_for, Some(HoldFor(Micros(seconds * 1_000_000))));
        }
    }

    #[test]
    fn a_repeated_question_is_recognized_in_any_order() {
        let hasher = RandomState::new();
        let question = |body: &str| TakeCall::read(body.as_bytes()).unwrap().question(&hasher);
        let first = question(r#"{"id": "a", "entries": {"a": "1", "b": "2"}}"#);
        assert_eq!(first, question(r#"{"cost": 1, "entries": {"b": "2", "a": "1"}}"#));
        for other in [
            r#"{"entries": {"a": "1", "b": "2"}, "cost": 2}"#,
            r#"{"entries": {"a": "1", "b": "2"}, "domain": ""}"#,
            r#"{"entries": {"a": "1"}}"#,
            r#"{"entries": {"a": "12", "b": ""}}"#,
            r#"{"entries": {"a": "1", "b": "2"}, "hold_for": "30s"}"#,
        ] {
            assert_ne!(first, question(other), "{other}");
        }
    }

    #[test]
    fn everything_else_is_an_error_that_says_where() {
        let long = format!(r#"{{"entries": {{}}, "id": "{}"}}"#, "x".repeat(257));
        let many: Vec<String> = (0..65).map(|number| format!(r#""{number}": """#)).collect();
        let many = format!(r#"{{"entries": {{{}}}}}"#, many.join(","));
        let deep = format!(r#"{{"entries": {}"#, r#"{"a":"#.repeat(500));
        let quoted = format!(r#"{{"entries": {{}}, "cost": "{}"}}"#, "é".repeat(500));
        for (body, fault) in [
            ("", "the body must be a JSON object"),
            ("[null,{}]", "the body must be a JSON object"),
            ("{", "EOF while parsing an object at line 1 column 1"),
            ("{}", "missing field `entries` at line 1 column 2"),
            (r#"{"entries": {}} {}"#, "trailing characters at line 1 column 17"),
            (r#"{"entries": {}, "entries": {}}"#, "duplicate field `entries`"),
            (r#"{"entries": {}, "\u0069d": "a", "id": "a"}"#, "duplicate field `id`"),
            (r#"{"entries": {"a": "1", "\u0061": "2"}}"#, "`entries` must have each name once, has \"a\" twice"),
            (r#"{"entries": {}, "hold_for": "0s"}"#, "`hold_for` must be a time from `1s` to `1h`, is \"0s\""),
            (r#"{"entries": {}, "hold_for": "61m"}"#, "`hold_for` must be a time from `1s` to `1h`"),
            (r#"{"entries": {}, "hold_for": "30"}"#, "`hold_for` must be a time from `1s` to `1h`"),
            (r#"{"entries": {}, "hold_for": "+3s"}"#, "`hold_for` must be a time from `1s` to `1h`"),
            (r#"{"entries": {}, "hold_for": ""}"#, "`hold_for` must be a time from `1s` to `1h`"),
            (r#"{"entries": {}, "hold_for": 30}"#, "invalid type: integer `30`"),
            (r#"{"entries": {}, "hold_for": "30s", "cost": 0}"#, "`cost` must be at least 1 with `hold_for`, is 0"),
            (r#"{"entries": {}, "Hold_for": "30s"}"#, "unknown field `Hold_for`, expected one of"),
            (r#"{"entries": {}, "Cost": 1}"#, "unknown field `Cost`"),
            (r#"{"entries": {}, "cost": "1"}"#, "invalid type: string \"1\""),
            (r#"{"entries": {}, "cost": 1.5}"#, "`cost` must be a whole number, is 1.5"),
            (r#"{"entries": {}, "cost": -1}"#, "`cost` must be a whole number, is -1"),
            (r#"{"entries": {}, "cost": 18446744073709551616}"#, "`cost` must be a whole number"),
            (r#"{"entries": {}, "cost": null}"#, "invalid type: null"),
            (r#"{"entries": {}, "id": null}"#, "invalid type: null, expected a string"),
            (r#"{"entries": {}, "id": 7}"#, "invalid type: integer `7`, expected a string"),
            (r#"{"entries": {}, "id": ""}"#, "`id` must have 1 to 256 bytes, has 0"),
            (&long, "`id` must have 1 to 256 bytes, has 257"),
            (r#"{"entries": {}, "domain": null}"#, "invalid type: null, expected a string"),
            (r#"{"entries": {"a": 1}}"#, "invalid type: integer `1`, expected a string"),
            (r#"{"entries": {"a": {}}}"#, "invalid type: map, expected a string"),
            (r#"{"entries": [["a", "b"]]}"#, "invalid type: sequence, expected an object of names and texts"),
            (r#"{"entries": null}"#, "invalid type: null, expected an object of names and texts"),
            (&many, "`entries` must have at most 64 names"),
            (&deep, "invalid type: map, expected a string"),
            (&quoted, "invalid type: string"),
            ("{\"entries\": {\"a\": \"\u{1}\"}}", "control character"),
        ] {
            let InvalidCall(found) = TakeCall::read(body.as_bytes()).unwrap_err();
            assert!(found.starts_with(fault) && found.len() <= 256, "{body}: {found}");
        }
        assert!(TakeCall::read(b"{\"entries\": {\"a\": \"\xff\"}}").is_err());
    }
}

//! Tests properties of the calls of services, on any body.

use std::hash::RandomState;

use rules::descriptors_plan::Hits;
use serde_json::Value;
use tollgate::gateway::take_call::{InvalidCall, TakeCall};

use super::mutation::{fuzz, is_bug_planted};

const NAMES: [&str; 4] = ["id", "domain", "entries", "cost"];

/// Compares a call with the same body as it is read by a library.
fn compare(call: &TakeCall, body: &[u8]) {
    let Ok(Value::Object(members)) = serde_json::from_slice(body) else { panic!("no JSON object is a call") };
    assert!(members.keys().all(|name| NAMES.contains(&&**name)), "an unknown name is accepted");
    let sent = call.descriptor();
    let entries = members["entries"].as_object().unwrap();
    assert_eq!(sent.entries().len(), entries.len(), "an entry is repeated or lost");
    for (name, value) in sent.entries() {
        assert_eq!(entries[&**name].as_str(), Some(&**value));
    }
    let text = |name: &str| members.get(name).map(|value| value.as_str().unwrap());
    assert_eq!((call.domain.as_deref(), call.id.as_ref().map(|id| &*id.0)), (text("domain"), text("id")));
    let cost = members.get("cost").map_or(1, |cost| cost.as_u64().unwrap());
    assert_eq!(call.hits(), if cost == 0 { Hits::Check } else { Hits::Charge(cost) });
}

#[test]
pub fn take_call() {
    let words: &[&[u8]] = &[
        b"\"entries\": {",
        b"\"cost\": 2",
        b"\"id\": \"x\"",
        b"\"domain\": \"\"",
        b"\\u0061",
        b"null",
        b"1e3",
        b"18446744073709551616",
        b", ",
        b"}",
        b"{",
    ];
    let hasher = RandomState::new();
    // The planted bug: a bracket after the object counts as a part of it.
    let parse = |body: &[u8]| {
        let cut = if is_bug_planted() { body.strip_suffix(b"}}").map(|body| [body, b"}"].concat()) } else { None };
        TakeCall::read(cut.as_deref().unwrap_or(body))
    };
    fuzz("take-call", words, |body| match parse(body) {
        Ok(call) => {
            compare(&call, body);
            assert_eq!(call.question(&hasher), parse(body).unwrap().question(&hasher));
            (call.descriptor().entries().len(), call.id.is_some(), String::new())
        }
        Err(InvalidCall(fault)) => {
            assert!(!fault.is_empty() && fault.len() <= 256, "{fault}");
            // What the fault quotes, and its position, say nothing about the way through the parser.
            (0, false, fault.chars().filter(|letter| letter.is_ascii_lowercase()).take(24).collect())
        }
    });
}

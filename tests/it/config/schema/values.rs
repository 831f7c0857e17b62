//! The schema has the defaults, the bounds of numbers and the spellings of values that the code has.

use std::sync::LazyLock;

use config::Config;
use config::warning::Warnings;
use serde_json::{Value, json};

use super::whole_files::{algorithm_of, has, set, whole_files};
use super::{Property, Schema};
use crate::config::bad_files;
use crate::support::short_or_long;

/// Returns what a file means, without positions and warnings. Warnings are left out, because a key may state its default.
fn meaning(file: &Value) -> Option<String> {
    static POSITION: LazyLock<regex::Regex> = LazyLock::new(|| regex::Regex::new(r"Position \{[^}]*\}").unwrap());
    let config = bad_files::parse(file.to_string().as_bytes()).ok()?;
    let text = format!("{:?}", Config { hash: String::new(), warnings: Warnings::default(), ..config });
    Some(POSITION.replace_all(&text, "").into_owned())
}

#[test]
fn every_default_applies_without_the_key() {
    let schema = Schema::shipped();
    let mut defaults = 0;
    for Property { path, said, .. } in schema.declared_properties() {
        let Some(default) = said.get("default") else { continue };
        let mut tried = 0;
        for file in whole_files().iter().filter(|file| !has(file, &path)) {
            let mut with = file.clone();
            if let Some(found) = set(&mut with, &path, default).then(|| meaning(&with)).flatten() {
                assert_eq!(found, meaning(file).unwrap(), "{path:?}: {default}");
                tried += 1;
            }
        }
        assert!(tried > 0, "{path:?}: no file to try it in");
        defaults += 1;
    }
    assert!(defaults > 40, "{defaults} defaults");
}

#[test]
fn a_bound_of_a_number_is_that_of_check() {
    let schema = Schema::shipped();
    let mut bounds = 0;
    for Property { path, algorithm, resolved, .. } in schema.declared_properties() {
        for (bound, beyond) in [("minimum", -1), ("maximum", 1)] {
            let Some(bound) = schema.bound(resolved, bound) else { continue };
            let accepted = |value: i64| {
                let mut files = whole_files();
                files.retain(|file| algorithm.is_none_or(|named| named == algorithm_of(file)));
                files.retain_mut(|file| set(file, &path, &json!(value)));
                files.iter().filter(|file| bad_files::parse(file.to_string().as_bytes()).is_ok()).count()
            };
            assert!(accepted(bound) > 0, "{path:?}: check refuses {bound}");
            assert_eq!(accepted(bound + beyond), 0, "{path:?}: check accepts {}", bound + beyond);
            bounds += 1;
        }
    }
    assert!(bounds > 20, "{bounds} bounds");
}

const SPELLINGS_OF_VALUES: [&str; 54] = [
    "0",
    "1",
    "-1",
    "07",
    "+7",
    "1.5",
    "1.0",
    "1e3",
    ".5",
    "true",
    "True",
    "yes",
    "auto",
    "0s",
    "5m",
    "1d",
    "05h",
    "1.5s",
    "0B",
    "64KiB",
    "1GB",
    "unlimited",
    "a",
    "a/b",
    "a.b-c_d",
    "10.0.0.0/8",
    "10.0.0.1",
    "::1",
    "2001:db8::/32",
    "1.2.3.4:80",
    "[::1]:80",
    "[fe80::1%2]:80",
    "http://a",
    "http://a:080/",
    "http://[::1]:1",
    "https://a/b@c",
    "redis://a",
    "header:x",
    "rediss://u:p@[::1]:6380/2",
    "postgres://u@a,b:1/d",
    "limits.bucket",
    "async",
    "query:x+y",
    "cookie:a|b",
    "lower( host )",
    "trim( lower(host ) )",
    "a | b",
    "path |lower(query:a b)",
    "10/s",
    "100/15m",
    "shadow",
    "fixed",
    "2026-11-30T23:00:00Z",
    "2026-11-30 23:00:00.5+01:00",
];

#[test]
fn the_schema_accepts_every_spelling_that_check_accepts() {
    let schema = Schema::shipped();
    let quoted = SPELLINGS_OF_VALUES.iter().map(|text| json!(text));
    let plain = SPELLINGS_OF_VALUES.iter().filter_map(|text| serde_yaml::from_str(text).ok());
    let values: Vec<Value> = quoted.chain(plain.filter(|value: &Value| !value.is_string())).collect();
    let (mut accepted, mut refused) = (0, 0);
    for (number, Property { path, resolved, .. }) in schema.declared_properties().into_iter().enumerate() {
        let files = whole_files().into_iter().filter(|file| has(file, &path[..path.len() - 1]));
        for mut file in files.take(short_or_long(1, usize::MAX)) {
            // In the short form each key is tried with a third of the values.
            let step = short_or_long(3, 1);
            for value in values.iter().skip(number % step).step_by(step) {
                let value = if resolved["type"] == json!("array") { json!([value]) } else { value.clone() };
                set(&mut file, &path, &value);
                if !schema.refuses(&file) {
                    accepted += 1;
                    continue;
                }
                refused += 1;
                let right = bad_files::parse(file.to_string().as_bytes()).is_ok();
                assert!(!right, "{file}\n{:?}", schema.refusal(&file));
            }
        }
    }
    assert!(accepted > 300 && refused > 3000, "{accepted} {refused}");
}

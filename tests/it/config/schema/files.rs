//! The schema rejects nothing that `check` accepts, and everything that `check` rejects and a schema can detect.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::{Schema, nodes};
use crate::config::bad_files;
use crate::repository::docs;
use crate::support;

/// The knowledge that a validator would need to find the mistake in a file.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// The rules of YAML, which every editor knows without a schema.
    Yaml,
    /// The content of another file.
    Files,
    /// The environment.
    Environment,
    /// The spelling of a number, which is lost when it is parsed.
    Spelling,
    /// The relation of two values, such as an order, equality or another dependency.
    TwoValues,
    /// A grammar that a schema cannot express.
    Grammar,
    /// The number of bytes of a text.
    Bytes,
}

/// The files in `tests/config/bad` whose mistake a schema cannot detect.
const CANNOT_KNOW: [(&str, Why); 73] = [
    ("home-too-long", Why::Grammar),
    ("scope-without-home", Why::TwoValues),
    ("admin-write-twice", Why::TwoValues),
    ("records-thresholds-without-periods", Why::TwoValues),
    ("access-log-value-of-a-key", Why::TwoValues),
    ("addresses-shared", Why::TwoValues),
    ("addresses-shared-by-default", Why::TwoValues),
    ("alias-bomb", Why::Yaml),
    ("alias-of-itself", Why::Yaml),
    ("alias-of-nothing", Why::Yaml),
    ("api-keys-file-empty", Why::Files),
    ("api-keys-file-missing", Why::Files),
    ("api-keys-from-one-place-twice", Why::TwoValues),
    ("attribute-without-its-source", Why::TwoValues),
    ("ban-of-a-meter", Why::TwoValues),
    ("ban-on-several-nodes", Why::TwoValues),
    ("breaker-bounds-crossed", Why::TwoValues),
    ("budget-beside-rate-in-a-meter", Why::TwoValues),
    ("budget-override-below-reserve", Why::TwoValues),
    ("burst-below-rate", Why::TwoValues),
    ("burst-below-rate-of-a-minute", Why::TwoValues),
    ("burst-implied-too-large", Why::TwoValues),
    ("burst-too-large-to-be-exact", Why::TwoValues),
    ("cost-above-burst", Why::TwoValues),
    ("cost-bounds-crossed", Why::TwoValues),
    ("duplicate-key", Why::Yaml),
    ("duplicate-keys-deep", Why::Yaml),
    ("environment-missing", Why::Environment),
    ("flow-attribute-with-a-space", Why::Yaml),
    ("flow-text-with-a-colon", Why::Yaml),
    ("flow-variable-without-quotes", Why::Yaml),
    ("indentation-wrong", Why::Yaml),
    ("jwt-curve-unknown", Why::Files),
    ("jwt-jwks-is-no-set", Why::Files),
    ("jwt-jwks-without-keys", Why::Files),
    ("jwt-key-file-missing", Why::Files),
    ("jwt-key-is-no-pem", Why::Files),
    ("jwt-key-of-another-algorithm", Why::Files),
    ("jwt-rsa-too-small", Why::Files),
    ("jwt-secret-for-rsa", Why::TwoValues),
    ("jwt-secret-short-and-not-shown", Why::Bytes),
    ("jwt-secret-shorter-than-its-hash", Why::Bytes),
    ("key-is-a-list", Why::Yaml),
    ("limit-shown-as-another-rule", Why::TwoValues),
    ("listeners-of-one-address", Why::TwoValues),
    ("match-bad-regex", Why::Grammar),
    ("not-closed", Why::Yaml),
    ("override-burst-below-cost", Why::TwoValues),
    ("overrides-in-two-spellings", Why::TwoValues),
    ("policy-name-twice", Why::TwoValues),
    ("postgres-password-also-in-url", Why::TwoValues),
    ("postgres-url-with-parameters", Why::Grammar),
    ("postgres-url-with-sslmode", Why::Grammar),
    ("prices-default-unknown", Why::Files),
    ("prices-missing", Why::TwoValues),
    ("quotes-not-closed", Why::Yaml),
    ("rate-exponent", Why::Spelling),
    ("rate-four-decimals", Why::Spelling),
    ("rate-huge", Why::Spelling),
    ("redis-password-also-in-url", Why::TwoValues),
    ("redis-password-file-missing", Why::Files),
    ("redis-tls-authority-is-no-certificate", Why::Files),
    ("redis-tls-certificate-is-none", Why::Files),
    ("redis-tls-false-with-rediss", Why::TwoValues),
    ("redis-tls-host-impossible", Why::Grammar),
    ("redis-tls-key-of-another", Why::Files),
    ("rule-name-twice", Why::TwoValues),
    ("second-document", Why::Yaml),
    ("socket-port", Why::TwoValues),
    ("tab", Why::Yaml),
    ("tag", Why::Yaml),
    ("text-with-a-colon", Why::Yaml),
    ("thresholds-global", Why::TwoValues),
];

/// A file as an editor parses it. `None` if it is not YAML.
fn read(path: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("# ---\n").next().unwrap();
    serde_yaml::from_str(text).ok()
}

fn good_files() -> Vec<Value> {
    bad_files::files("good").iter().map(|path| read(path).unwrap()).collect()
}

#[test]
fn the_schema_accepts_every_good_file_and_every_example() {
    let schema = Schema::shipped();
    for path in bad_files::files("good") {
        assert_eq!(schema.refusal(&read(&path).unwrap()), None, "{}", path.display());
    }
    let shipped = serde_yaml::from_str(&docs::read("gateway.yaml")).unwrap();
    assert_eq!(schema.refusal(&shipped), None, "gateway.yaml");
    for name in docs::PAGES {
        for block in docs::blocks(&docs::read(name), "yaml") {
            let file = serde_yaml::from_str(&docs::whole(block)).unwrap();
            assert_eq!(schema.refusal(&file), None, "{name}:\n{block}");
        }
    }
}

#[test]
fn the_schema_rejects_every_bad_file_except_listed_ones() {
    let schema = Schema::shipped();
    let mut cannot_know: BTreeMap<_, _> = CANNOT_KNOW.into_iter().collect();
    let mut wrong = Vec::new();
    for path in bad_files::files("bad") {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let refused = read(&path).is_some_and(|file| schema.refuses(&file));
        match (refused, cannot_know.remove(name)) {
            (true, Some(why)) => wrong.push(format!("{name} is refused: it needs no {why:?}")),
            (false, None) => wrong.push(format!("{name} is not refused: refuse it, or say here why that cannot be")),
            _ => {}
        }
    }
    wrong.extend(cannot_know.keys().map(|name| format!("{name} is not there")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns all values and keys of the test files, and some additional values.
fn pool() -> (Vec<Value>, Vec<String>) {
    let extra = json!([
        null,
        true,
        "",
        "x",
        "${TEN}",
        "${EMPTY:-5m}",
        "a${TEN}",
        0,
        -1,
        7,
        0.5,
        1e3,
        "7",
        "+7",
        "007",
        [],
        {},
        "5m",
        "0s"
    ]);
    let files = bad_files::files("good").into_iter().chain(bad_files::files("bad")).filter_map(|path| read(&path));
    let files: Vec<Value> = files.chain([extra]).collect();
    let (mut values, mut keys) = (Vec::new(), BTreeSet::new());
    for file in &files {
        for pointer in nodes(file) {
            let value = file.pointer(&pointer).unwrap();
            keys.extend(value.as_object().into_iter().flat_map(|map| map.keys().cloned()));
            if !values.contains(value) {
                values.push(value.clone());
            }
        }
    }
    (values, keys.into_iter().collect())
}

/// Replaces, removes or adds one value.
fn change(file: &mut Value, pool: &(Vec<Value>, Vec<String>), (kind, at, with, key): &(u8, Index, Index, Index)) {
    let pointers = nodes(file);
    let pointer = at.get(&pointers);
    let value = with.get(&pool.0).clone();
    match kind {
        0 => *file.pointer_mut(pointer).unwrap() = value,
        1 => {
            let (parent, last) = pointer.rsplit_once('/').unwrap_or(("", ""));
            match file.pointer_mut(parent).unwrap() {
                Value::Object(map) => drop(map.remove(&last.replace("~1", "/").replace("~0", "~"))),
                Value::Array(list) => drop(last.parse().ok().map(|at: usize| list.remove(at))),
                _ => {}
            }
        }
        _ => match file.pointer_mut(pointer).unwrap() {
            Value::Object(map) => drop(map.insert(key.get(&pool.1).clone(), value)),
            Value::Array(list) => list.push(value),
            _ => {}
        },
    }
}

/// Counts the results for changed files.
#[derive(Debug, Default)]
struct Verdicts {
    right: usize,
    wrong: usize,
    refused: usize,
}

#[test]
fn the_schema_rejects_nothing_that_check_accepts() {
    let (schema, pool, files) = (Schema::shipped(), pool(), good_files());
    let verdicts = std::cell::RefCell::new(Verdicts::default());
    let changes = prop::collection::vec((0u8..3, any::<Index>(), any::<Index>(), any::<Index>()), 1..4);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(support::short_or_long(2000, 50_000))
    });
    let done = runner.run(&(any::<Index>(), changes), |(file, changes)| {
        let mut file = file.get(&files).clone();
        changes.iter().for_each(|one| change(&mut file, &pool, one));
        let refused = schema.refuses(&file);
        let mut verdicts = verdicts.borrow_mut();
        match bad_files::parse(file.to_string().as_bytes()) {
            Ok(_) => {
                verdicts.right += 1;
                prop_assert!(!refused, "{}\n{:?}", file, schema.refusal(&file));
            }
            Err(_) => {
                verdicts.wrong += 1;
                verdicts.refused += usize::from(refused);
            }
        }
        Ok(())
    });
    let verdicts = verdicts.into_inner();
    support::print_measured(&format!("schema: {verdicts:?}"));
    done.unwrap();
    assert!(verdicts.right > 50 && verdicts.refused > verdicts.wrong / 2, "{verdicts:?}");
}

#[test]
fn the_schema_accepts_a_reference_for_every_value() {
    let schema = Schema::shipped();
    for mut file in good_files() {
        for pointer in nodes(&file) {
            let Some(value) = file.pointer_mut(&pointer).filter(|value| !value.is_object() && !value.is_array()) else {
                continue;
            };
            let written = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            // A value that has a reference, or would end one too early, is left unchanged.
            if !written.contains('$') {
                *value = json!(format!("${{NOBODY:-{written}}}"));
            }
        }
        assert_eq!(schema.refusal(&file), None, "{file}");
        let problems = bad_files::parse(file.to_string().as_bytes()).err();
        assert_eq!(problems.map(|problems| problems.to_string()), None, "{file}");
    }
}

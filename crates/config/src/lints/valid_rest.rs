//! Removes the keys with problems from a file, so that lints can examine the other keys in the same run.

use std::collections::BTreeSet;

use crate::language::problem::Problem;
use crate::language::suggest::nearest_name;
use crate::language::tree::{Entry, Node, Scalar, Style, Value};

const RULES: [&str; 3] = ["rules", "policies", "exempt"];
const UPSTREAMS: [&str; 3] = ["upstream", "upstreams", "routes"];

/// Keys on which other keys depend, each with the dependent keys.
const READ_BY_OTHERS: [(&str, &[&str]); 7] = [
    ("jwt", &["rules", "policies", "exempt", "routes", "upstreams", "access_log", "records"]),
    ("api_keys", &["rules", "policies", "exempt", "routes", "upstreams", "access_log", "records"]),
    ("client_ip", &["rules", "policies", "exempt", "routes", "cors", "error_pages", "records"]),
    ("rules", &["records"]),
    ("policies", &["records"]),
    ("exempt", &["records"]),
    ("limits", &["cors"]),
];

/// Keys that few lints read. If a lint reads one of these keys, [`READS`] lists the lint.
const ALONE: [&str; 10] = [
    "log",
    "threads",
    "headers",
    "retry_after_jitter",
    "upstream_timeouts",
    "error_pages",
    "usage",
    "cors",
    "admin",
    "records",
];

/// The keys that each of these lints reads. All other lints may read every key that is not in [`ALONE`].
const READS: [(&str, &[&str]); 10] = [
    ("public_admin", &["admin"]),
    ("trust_everyone", &["client_ip", "listeners"]),
    ("open_proxy_protocol", &["listeners"]),
    ("guessable_names", &["access_log", "hash_key", "hash_key_file"]),
    ("readable_secret", &[]),
    ("clear_claim", &["access_log"]),
    ("cleartext_password", &["store"]),
    ("refused_preflight", &["jwt", "cors"]),
    ("host_bits", &[]),
    ("unknown_value", &[]),
];

/// The part of an invalid file that is valid. Used to run lints although the file has problems.
#[derive(Debug)]
pub(crate) struct ValidRest {
    pub tree: Node,
    removed: BTreeSet<String>,
}

impl ValidRest {
    /// Removes the top-level keys that have problems, and the keys that depend on them. `declared` are the known keys.
    /// `None` if it is unknown which keys are invalid, or if `check` is invalid.
    pub(crate) fn of(problems: &[Problem], tree: &Node, declared: &[&str]) -> Option<ValidRest> {
        let Value::Map(entries) = &tree.value else { return None };
        let mut removed = BTreeSet::new();
        for problem in problems {
            // A problem in another file may be caused by any key.
            if problem.file.is_some() || problem.path.is_empty() {
                return None;
            }
            let key = problem.path.split(['.', '[']).next().unwrap_or_default();
            // An unknown key may be a misspelled key, which then counts as invalid.
            let meant = if declared.contains(&key) { Some(key) } else { nearest_name(key, declared) };
            removed.extend(meant.map(str::to_owned));
        }
        // If `check` is invalid, it is unknown which warnings are turned off, so no warnings are shown.
        if removed.contains("check") {
            return None;
        }
        for (key, others) in READ_BY_OTHERS {
            if removed.contains(key) {
                removed.extend(others.iter().map(|other| (*other).to_owned()));
            }
        }
        for group in [RULES, UPSTREAMS] {
            if group.iter().any(|key| removed.contains(*key)) {
                removed.extend(group.map(str::to_owned));
            }
        }
        let is_valid = |entry: &&Entry| declared.contains(&&*entry.key) && !removed.contains(&entry.key);
        let mut kept: Vec<Entry> = entries.iter().filter(is_valid).cloned().collect();
        let stand_in = |key: &str, text: &str| {
            let scalar = Scalar::new(text, Style::Quoted);
            let value = Node { position: tree.position, value: Value::Scalar(scalar) };
            Entry { key: key.to_owned(), key_position: tree.position, value }
        };
        let has = |kept: &[Entry], keys: [&str; 2]| kept.iter().any(|entry| keys.contains(&&*entry.key));
        if !has(&kept, ["upstream", "upstreams"]) {
            kept.push(stand_in("upstream", "http://unknown.invalid"));
        }
        // An invalid `listen` gets a placeholder. Its default could be the address of another key, which would be a
        // false problem.
        if !has(&kept, ["listen", "listeners"]) && ["listen", "listeners"].iter().any(|key| removed.contains(*key)) {
            kept.push(stand_in("listen", "127.0.0.1:0"));
        }
        Some(ValidRest { tree: Node { position: tree.position, value: Value::Map(kept) }, removed })
    }

    /// Whether all keys that this lint reads are valid, so that the lint's warnings can be shown.
    pub(crate) fn decides(&self, lint: &str) -> bool {
        match READS.iter().find(|(name, _)| *name == lint) {
            Some((_, reads)) => !reads.iter().any(|key| self.removed.contains(*key)),
            None => self.removed.iter().all(|key| ALONE.contains(&&**key)),
        }
    }
}

//! Every declared key is read, and docs/configuration/keys.md is the list of the declarations.
//!
//! `scripts/keys-page` writes that page.

use std::path::Path;

use config::key::{Key, Mapping, Presence, Type};
use config::mappings;
use regex::Regex;

use crate::repository::docs;

const PAGE: &str = "docs/configuration/keys.md";

const HEAD: &str = "\
# All keys

<!-- Made of the declarations of the keys by scripts/keys-page. -->

Every key of [gateway.yaml](README.md), with a link to where it is explained. `[]` stands for each member of a list, `*` for a name
that you choose. \"As\" another key: it has the same keys. After a key stand the algorithms that have it, if not all do.

| key | type | default | meaning |
|---|---|---|---|
";

/// The section that explains the keys below a path. If several paths fit, the longest one applies.
const SECTIONS: &[(&str, &str)] = &[
    ("listen", "listeners.md#listeners"),
    ("listeners", "listeners.md#listeners"),
    ("listeners[].socket_mode", "listeners.md#unix-domain-sockets"),
    ("listeners[].tls", "listeners.md#tls"),
    ("listeners[].protocols", "listeners.md#http2"),
    ("admin", "listeners.md#process"),
    ("admin.write", "listeners.md#changes-of-buckets"),
    ("threads", "listeners.md#process"),
    ("drain", "listeners.md#process"),
    ("log", "listeners.md#process"),
    ("hash_key", "listeners.md#process"),
    ("access_log", "listeners.md#the-access-log"),
    ("records", "listeners.md#records"),
    ("limits", "listeners.md#bounds"),
    ("check", "README.md#errors"),
    ("client_ip", "identity.md#clients"),
    ("jwt", "identity.md#tokens"),
    ("api_keys", "identity.md#api-keys"),
    ("upstream", "upstreams.md#upstream"),
    ("upstream_timeouts.total", "upstreams.md#the-total-timeout"),
    ("upstreams", "upstreams.md#upstreams-and-routes"),
    ("upstreams.*.balance", "upstreams.md#balance"),
    ("upstreams.*.protocol", "upstreams.md#tls-to-upstreams"),
    ("upstreams.*.tls", "upstreams.md#tls-to-upstreams"),
    ("upstreams.*.retries", "upstreams.md#retries"),
    ("upstreams.*.ejection", "upstreams.md#ejection"),
    ("upstreams.*.health", "upstreams.md#health"),
    ("upstreams.*.panic_below", "upstreams.md#health"),
    ("routes", "upstreams.md#upstreams-and-routes"),
    ("routes[].split_by", "upstreams.md#shares"),
    ("routes[].redirect", "upstreams.md#answers-of-routes"),
    ("routes[].respond", "upstreams.md#answers-of-routes"),
    ("routes[].rewrite", "upstreams.md#rewrites"),
    ("routes[].request_headers", "upstreams.md#header-fields"),
    ("routes[].response_headers", "upstreams.md#header-fields"),
    ("routes[].timeouts", "upstreams.md#other-bounds"),
    ("routes[].retries", "upstreams.md#other-bounds"),
    ("routes[].body_bytes", "upstreams.md#other-bounds"),
    ("routes[].inspect_bytes", "upstreams.md#other-bounds"),
    ("routes[].llm", "upstreams.md#error-formats"),
    ("routes[].forward_client_cert", "listeners.md#tls"),
    ("headers", "upstreams.md#answers"),
    ("retry_after_jitter", "upstreams.md#answers"),
    ("usage", "upstreams.md#usage"),
    ("cors", "upstreams.md#cors"),
    ("error_pages", "upstreams.md#error_pages"),
    ("llm", "upstreams.md#error-formats"),
    ("llm.refund_on", "rules.md#costs-of-the-response"),
    ("llm.other", "rules.md#tokens-of-models"),
    ("llm.bytes_per_token", "rules.md#tokens-of-models"),
    ("routes[].llm.other", "rules.md#tokens-of-models"),
    ("routes[].llm.bytes_per_token", "rules.md#tokens-of-models"),
    ("routes[].llm.media", "rules.md#tokens-of-models"),
    ("routes[].llm.ask_for_usage", "rules.md#tokens-of-models"),
    ("routes[].llm.require_usage", "rules.md#tokens-of-models"),
    ("routes[].llm.refund_on", "rules.md#costs-of-the-response"),
    ("store", "store.md#store"),
    ("store.memory", "store.md#memory"),
    ("store.redis", "store.md#redis"),
    ("store.redis.sentinel", "store.md#sentinel"),
    ("store.redis.cluster", "store.md#redis-cluster"),
    ("store.postgres", "store.md#postgresql"),
    ("store.breaker", "store.md#breaker"),
    ("store.gateways", "store.md#when-the-store-fails"),
    ("on_store_failure", "store.md#when-the-store-fails"),
    ("rules", "rules.md#rules"),
    ("rules[].limit_keys", "rules.md#limit-keys"),
    ("rules[].algorithm_config", "rules.md#one-limit"),
    ("rules[].algorithm", "rules.md#one-limit"),
    ("rules[].algorithm_config.meter", "rules.md#meters"),
    ("rules[].algorithm_config.ban", "rules.md#bans"),
    ("rules[].algorithm_config.reserve", "rules.md#what-is-reserved"),
    ("prices", "rules.md#money"),
    ("rules[].algorithm_config.weights", "rules.md#tokens-of-models"),
    ("rules[].algorithm_config.count_on", "rules.md#requests-with-some-results"),
    ("rules[].algorithm_config.reset_on", "rules.md#requests-with-some-results"),
    ("rules[].algorithm_config.shadow", "rules.md#shadow"),
    ("rules[].limits", "rules.md#several-limits"),
    ("rules[].meter", "rules.md#meters"),
    ("rules[].ban", "rules.md#bans"),
    ("rules[].overrides", "rules.md#overrides"),
    ("rules[].overrides_file", "rules.md#overrides-in-a-file"),
    ("rules[].algorithm_config.rps.from", "rules.md#numbers-from-credentials"),
    ("rules[].algorithm_config.rps.default", "rules.md#numbers-from-credentials"),
    ("rules[].algorithm_config.rps.min", "rules.md#numbers-from-credentials"),
    ("rules[].algorithm_config.rps.max", "rules.md#numbers-from-credentials"),
    ("rules[].mode", "rules.md#shadow"),
    ("rules[].on_store_failure", "store.md#when-the-store-fails"),
    ("policies", "rules.md#policies"),
    ("policies[].mode", "rules.md#shadow"),
    ("exempt", "rules.md#exempt"),
    ("match", "rules.md#match"),
    ("match.*.in_file", "rules.md#lists-in-files"),
    ("match.*.cidr_file", "rules.md#lists-in-files"),
];

fn section(path: &str) -> &'static str {
    let below =
        |of: &str| path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[', '_']));
    let fitting = SECTIONS.iter().filter(|(of, _)| below(of));
    fitting.max_by_key(|(of, _)| of.len()).unwrap_or_else(|| panic!("no section explains {path}")).1
}

/// Returns the text between a key and the keys of its members.
fn members(kind: &Type) -> &'static str {
    match kind {
        Type::List { .. } | Type::ListOfOwnOr { .. } => "[]",
        Type::Named(_) | Type::NamedOneOf(_) => ".*",
        _ => "",
    }
}

/// The rows of the table, and the path of each of their mappings.
#[derive(Default)]
struct Table {
    rows: Vec<String>,
    paths: Vec<(&'static Mapping, String)>,
}

impl Table {
    /// Adds the keys of mappings that may be in one place. There are several if another key selects the mapping.
    fn add(&mut self, path: &str, mappings: &[&'static Mapping]) {
        let mut keys: Vec<(&'static Key, Vec<&'static Mapping>)> = Vec::new();
        for &mapping in mappings {
            self.paths.push((mapping, path.to_owned()));
            for key in mapping.keys {
                let cells = |of: &Key| (of.name, of.kind.text(), default(of), of.doc);
                match keys.iter_mut().find(|(known, _)| cells(known) == cells(key)) {
                    Some((_, having)) => having.push(mapping),
                    None => keys.push((key, vec![mapping])),
                }
            }
        }
        for (key, having) in keys {
            let path = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
            let of: Vec<_> =
                having.iter().filter(|_| having.len() < mappings.len()).map(|one| algorithm(one)).collect();
            self.add_key(&path, &of.join(", "), key);
        }
    }

    fn add_key(&mut self, path: &str, of: &str, key: &'static Key) {
        let explained = key.kind.mappings().iter().filter(|inner| inner.heading.is_some()).copied();
        let (known, new): (Vec<_>, Vec<_>) =
            explained.partition(|inner| self.paths.iter().any(|(of, _)| std::ptr::eq(*of, *inner)));
        let same = known.first().map(|inner| &self.paths.iter().find(|(of, _)| std::ptr::eq(*of, *inner)).unwrap().1);
        let same = same.map(|path| format!(", as `{}`", path.trim_end_matches(".*"))).unwrap_or_default();
        let of = if of.is_empty() { String::new() } else { format!(" {of}") };
        let (kind, default) = (key.kind.text(), default(key));
        self.rows.push(format!("| [`{path}`]({}){of} | {kind}{same} | {default} | {} |", section(path), key.doc));
        if !new.is_empty() {
            self.add(&format!("{path}{}", members(&key.kind)), &new);
        }
    }
}

/// Returns the algorithm of a limit's mapping.
fn algorithm(mapping: &Mapping) -> &'static str {
    mapping.heading.and_then(|heading| heading.split('`').nth(1)).expect("a heading with the algorithm")
}

fn default(key: &Key) -> String {
    match key.presence {
        Presence::Required => "required".to_owned(),
        Presence::Optional => String::new(),
        Presence::Default(default) => format!("`{default}`"),
        Presence::Depends(without) => without.to_owned(),
    }
}

fn page() -> String {
    let [file, operators] = [mappings()[0], mappings().into_iter().find(|of| of.heading == Some("operator")).unwrap()];
    let mut table = Table::default();
    table.add("", &[file]);
    table.add("match.*", &[operators]);
    let listed = |mapping: &Mapping| table.paths.iter().any(|(of, _)| std::ptr::eq(*of, mapping));
    for mapping in mappings().into_iter().filter(|mapping| mapping.heading.is_some()) {
        assert!(listed(mapping), "{:?} is not listed", mapping.heading);
    }
    format!("{HEAD}{}\n", table.rows.join("\n"))
}

#[test]
fn the_page_of_all_keys_is_the_list_of_the_declarations() {
    let page = page();
    if std::env::var_os("TOLLGATE_WRITE_PAGE").is_some() {
        std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE), &page).unwrap();
    }
    for (found, made) in docs::read(PAGE).lines().zip(page.lines()) {
        assert_eq!(found, made, "{PAGE} is made by scripts/keys-page");
    }
    assert_eq!(docs::read(PAGE), page);
}

#[test]
fn every_key_is_in_the_section_that_its_row_names() {
    let row = Regex::new(r"(?m)^\| \[`([^`]+)`\]\(([^)#]+)#([^)]+)\)").unwrap();
    let page = docs::read(PAGE);
    let mut missing = Vec::new();
    for found in row.captures_iter(&page) {
        let [path, file, anchor] = [1, 2, 3].map(|index| found.get(index).unwrap().as_str());
        let section = docs::section(&docs::read(&format!("docs/configuration/{file}")), anchor);
        let key = path.rsplit('.').next().unwrap();
        let named = Regex::new(&format!(r"(?:^|[^a-z_.-]){key}(?:[^a-z_-]|$)")).unwrap();
        if !named.is_match(&section) {
            missing.push(format!("{file}#{anchor} lacks {path}"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn a_mapping_without_a_table_has_the_keys_of_a_documented_one() {
    let explained: Vec<_> = mappings().into_iter().filter(|mapping| mapping.heading.is_some()).collect();
    for mapping in mappings().into_iter().filter(|mapping| mapping.heading.is_none()) {
        for key in mapping.keys {
            let same = |other: &Key| other.name == key.name && other.doc == key.doc;
            assert!(explained.iter().any(|mapping| mapping.keys.iter().any(same)), "{} is not explained", key.name);
        }
    }
}

#[test]
fn every_declared_key_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/config/src");
    let mut sources = std::fs::read_to_string(folder.join("document.rs")).unwrap();
    let mut entries = vec![folder.join("keys")];
    while let Some(path) = entries.pop() {
        if path.is_dir() {
            entries.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            sources.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    let calls = "get|need|value|optional|whole|count|size|duration|positive_duration|choice|file";
    for mapping in mappings() {
        // The sources of a token's keys are read by their declared names.
        for key in mapping.keys.iter().filter(|_| mapping.definition != Some("keys")) {
            let call = Regex::new(&format!(r#"\b({calls})\(\s*"{}""#, key.name)).unwrap();
            assert!(call.is_match(&sources), "nothing reads `{}`", key.name);
        }
    }
}

#[test]
fn every_key_is_declared_once_in_its_mapping() {
    for mapping in mappings() {
        let mut names = mapping.names();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), mapping.keys.len(), "{:?}", mapping.heading);
    }
}

//! The documentation agrees with the code.

use std::collections::BTreeSet;
use std::path::Path;

use base::time::Timestamp;
use config::lints::LINTS;
use config::problem::{Problems, Purpose};
use config::{Config, Environment};
use request::attribute::{SPELLINGS, WORDS_SPELLING};

use crate::support::Certificates;
use crate::support::authority::Authority;
use crate::support::mint::es256;

pub fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

pub const PAGES: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
    "benches/results.md",
    "docs/exactness.md",
    "tests/exactness.md",
    "docs/concepts.md",
    "docs/configuration/README.md",
    "docs/configuration/keys.md",
    "docs/configuration/listeners.md",
    "docs/configuration/upstreams.md",
    "docs/configuration/identity.md",
    "docs/configuration/rules.md",
    "docs/configuration/store.md",
    "docs/alerts.md",
    "docs/algorithms.md",
    "docs/deploy.md",
    "docs/edges.md",
    "docs/guide/1-first-file.md",
    "docs/guide/2-check.md",
    "docs/guide/3-tokens.md",
    "docs/guide/4-your-logs.md",
    "docs/guide/5-two-gateways.md",
    "docs/guide/6-tls.md",
    "docs/guide/7-alerts-and-logs.md",
    "docs/guide/8-upgrade.md",
    "docs/hardening.md",
    "docs/language-models.md",
    "docs/migration.md",
    "docs/logs.md",
    "docs/metrics.md",
    "docs/operations.md",
    "docs/performance.md",
    "docs/reasons.md",
    "docs/recipes.md",
    "docs/regions.md",
    "docs/replay.md",
    "docs/sizing.md",
    "docs/status-page.md",
    "docs/stores.md",
    "docs/troubleshooting.md",
    "docs/warnings.md",
];

/// Returns the fenced blocks of a language.
pub fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Completes a fragment to a whole file.
pub fn whole(block: &str) -> String {
    let file: serde_yaml::Mapping = serde_yaml::from_str(block).unwrap();
    let listeners = file.get("listeners").and_then(serde_yaml::Value::as_sequence);
    // Such a file needs no upstream.
    let decides = listeners.is_some_and(|all| all.iter().all(|one| one.get("decide").is_some()));
    let first = if decides || file.contains_key("upstream") || file.contains_key("upstreams") {
        ""
    } else {
        "upstream: http://127.0.0.1:9000\n"
    };
    format!("{first}{block}")
}

/// Returns the result of `check` for a block of a page.
pub fn checked(purpose: Purpose, name: &str, block: &str) -> Result<Config, Problems> {
    let keys = serde_json::json!({"keys": [es256().jwk]}).to_string();
    let certificates = Certificates::shared();
    // Whatever files a block names, they are there.
    let authority = Authority::new("ca");
    let (expired, revoked) = (authority.issue_until(&["localhost"], 2020), authority.revoke(&[]));
    let read = |path: &Path| match path.extension().and_then(|extension| extension.to_str()) {
        Some("pem") if path == Path::new("revoked.pem") => Ok(revoked.clone().into_bytes()),
        Some("pem") if path == Path::new("expired.pem") => Ok(expired.certificate.clone().into_bytes()),
        Some("key") if path == Path::new("expired.key") => Ok(expired.key.clone().into_bytes()),
        Some("pem") => Ok(certificates.client.0.clone().into_bytes()),
        Some("key") => Ok(certificates.client.1.clone().into_bytes()),
        _ if path == Path::new("blocked.txt") => Ok(b"192.0.2.0/24".to_vec()),
        _ if path == Path::new("prices.csv") => Ok(b"model,input,output\ngpt-4o*,2.50,10\nclaude-*,3,15".to_vec()),
        _ if path == Path::new("contracts.csv") => Ok(b"value,month.limit\nacme,50000".to_vec()),
        _ if path == Path::new("api-keys.txt") => Ok(b"#columns id plan rps burst region quota".to_vec()),
        _ if path == Path::new("admin-tokens.txt") => Ok(b"alice 0123456789abcdef".to_vec()),
        _ if path == Path::new("customers.txt") => Ok(format!("{} acme gold", "0".repeat(64)).into_bytes()),
        Some("json") => Ok(keys.clone().into_bytes()),
        _ => Ok(b"a secret that is long enough for everything".to_vec()),
    };
    // And the one variable that the shipped file wants.
    let variable = |name: &str| (name == "JWT_SECRET").then(|| "x".repeat(32));
    let surroundings = Environment { variable: &variable, folder: Path::new(""), read: &read };
    Config::parse_for(purpose, name, whole(block).as_bytes(), surroundings)
}

/// A time in 2100. Everything in pages that expires has expired by then, except the certificates of tests.
const LATER: Timestamp = Timestamp(4_102_444_800_000_000);

/// Returns the names of the warnings about a block of a page.
fn warnings(name: &str, block: &str) -> Vec<&'static str> {
    let config = checked(Purpose::Examine, name, block).unwrap_or_else(|problems| panic!("{problems}\nin:\n{block}"));
    config.warnings.at(LATER).warnings.iter().map(|warning| warning.name).collect()
}

#[test]
fn every_yaml_block_passes_check() {
    let mut count = 0;
    for name in PAGES {
        for block in blocks(&read(name), "yaml") {
            // One page has files that need a secret to run, and says so.
            let purpose = if *name == "docs/warnings.md" { Purpose::Examine } else { Purpose::Run };
            let result = checked(purpose, name, block);
            assert!(result.is_ok(), "{}\nin:\n{block}", result.unwrap_err());
            count += 1;
        }
    }
    assert!(count >= 10, "{count} blocks");
}

#[test]
fn every_warning_is_documented_with_a_file_that_has_it_and_one_without() {
    let name = "docs/warnings.md";
    let page = read(name);
    for (lint, _) in LINTS {
        let section = page.split(&format!("\n## {lint}\n")).nth(1).unwrap_or_else(|| panic!("{lint} is not explained"));
        let section = section.split("\n## ").next().unwrap();
        // It depends on the permissions of a file.
        if lint == "readable_secret" {
            continue;
        }
        let blocks = blocks(section, "yaml");
        let [unwise, wise @ ..] = &blocks[..] else { panic!("{lint} has no file") };
        assert_eq!(warnings(name, unwise), [lint]);
        assert!(!wise.is_empty(), "{lint} is not put right");
        for block in wise {
            assert_eq!(warnings(name, block), [""; 0], "{block}");
        }
    }
}

#[test]
fn the_readme_and_the_shipped_file_have_no_warnings() {
    for block in blocks(&read("README.md"), "yaml") {
        assert_eq!(warnings("README.md", block), [""; 0], "{block}");
    }
    assert_eq!(warnings("gateway.yaml", &read("gateway.yaml")), [""; 0]);
}

/// Returns the pages about the configuration as one text.
pub fn configuration() -> String {
    PAGES.iter().filter(|name| name.starts_with("docs/configuration/")).map(|name| read(name)).collect()
}

/// A row of docs/configuration/keys.md.
pub struct Row {
    pub key: String,
    pub default: String,
}

pub fn rows_of_keys() -> Vec<Row> {
    let page = read("docs/configuration/keys.md");
    let rows = page.lines().filter(|line| line.starts_with("| [`"));
    let row = |line: &str| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let path = cells[0].split('`').nth(1).unwrap();
        Row { key: path.rsplit('.').next().unwrap().to_owned(), default: cells[2].to_owned() }
    };
    rows.map(row).collect()
}

pub fn documented_keys() -> BTreeSet<String> {
    rows_of_keys().into_iter().map(|row| row.key).collect()
}

#[test]
fn every_attribute_is_documented() {
    let page = read("docs/configuration/rules.md");
    for spelling in SPELLINGS.iter().chain([&WORDS_SPELLING]) {
        assert!(page.contains(&format!("`{spelling}`")), "docs/configuration/rules.md does not explain `{spelling}`");
    }
}

#[test]
fn every_metric_is_documented() {
    let page = read("docs/metrics.md");
    let list = read("src/gateway/telemetry/metrics/list.rs");
    let names: Vec<_> = list.split('"').filter(|text| text.contains('_') && !text.contains(' ')).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "docs/metrics.md does not explain `{name}`");
    }
}

#[test]
fn every_variable_of_collectors_is_documented() {
    let page = read("docs/logs.md") + &read("docs/metrics.md");
    let telemetry = ["trace/settings.rs", "otlp/collector.rs", "metric_export/mod.rs"];
    let source = |file: &str| read(&format!("src/gateway/telemetry/{file}"));
    let sources: String = telemetry.map(source).iter().filter_map(|text| text.split("#[cfg(test)]").next()).collect();
    let names = sources.split('"').filter(|name| name.starts_with("OTEL_") || name.starts_with("TOLLGATE_"));
    // A variable for one signal alone may be documented under the name for all signals.
    let for_all = |name: &str| name.replace("OTLP_TRACES_", "OTLP_").replace("OTLP_METRICS_", "OTLP_");
    let names: BTreeSet<_> = names.collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let is_explained = |name: &str| page.contains(&format!("| `{name}` |"));
        assert!(
            is_explained(name) || is_explained(&for_all(name)),
            "docs/logs.md and docs/metrics.md do not explain `{name}`"
        );
    }
}

/// Returns the headings of a page outside of fenced blocks, with their line numbers and anchors.
fn headings(page: &str) -> Vec<(usize, &str, String)> {
    let mut fenced = false;
    let mut headings = Vec::new();
    for (number, line) in page.lines().enumerate() {
        fenced ^= line.starts_with("```");
        if !fenced && line.starts_with('#') {
            let words = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, '-' | '_');
            headings.push((number, line, words.chars().filter(kept).collect()));
        }
    }
    headings
}

/// Returns the anchors of the headings of a page.
fn anchors(page: &str) -> BTreeSet<String> {
    headings(page).into_iter().map(|(.., anchor)| anchor).collect()
}

/// Returns the section of a page below a heading, with its subsections.
pub fn section(page: &str, anchor: &str) -> String {
    let level = |line: &str| line.chars().take_while(|letter| *letter == '#').count();
    let headings = headings(page);
    let found = headings.iter().position(|(.., own)| own == anchor).unwrap_or_else(|| panic!("no section {anchor}"));
    let (start, line, _) = headings[found];
    let end = headings[found + 1..].iter().find(|(_, next, _)| level(next) <= level(line));
    let lines = page.lines().take(end.map_or(usize::MAX, |(number, ..)| *number)).skip(start);
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn links_between_pages_have_a_target() {
    for name in PAGES.iter().chain(&["CONTRIBUTING.md", "CHANGELOG.md"]) {
        let page = read(name);
        for target in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join(name).parent().unwrap().join(file);
            assert!(beside.exists(), "{name} links to {target}");
            if !anchor.is_empty() {
                let linked = if file.is_empty() { page.clone() } else { std::fs::read_to_string(beside).unwrap() };
                assert!(anchors(&linked).contains(anchor), "{name} links to {target}, which has no such heading");
            }
        }
    }
}

/// Whether the text between backticks is a path in this repository, and not a pattern for paths.
fn is_path(word: &str) -> bool {
    let roots = ["src/", "crates/", "tests/", "benches/", "deploy/", "scripts/", "docs/", ".ci/"];
    roots.iter().any(|root| word.starts_with(root)) && !word.contains([' ', '*', '{', '<']) && !word.contains("TARGET")
}

#[test]
fn files_that_pages_name_exist() {
    let mut count = 0;
    for name in PAGES.iter().chain(&["CONTRIBUTING.md", "CHANGELOG.md"]) {
        for path in read(name).split('`').filter(|word| is_path(word)) {
            assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists(), "{name} names {path}");
            count += 1;
        }
    }
    assert!(count >= 30, "{count} paths");
}

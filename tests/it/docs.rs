//! Holds the documentation to the code.

use std::collections::BTreeSet;
use std::path::Path;

use tollgate::config::{Config, Surroundings};

use super::support::Certificates;
use super::support::mint::es256;

pub fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

pub const PAGES: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
    "docs/configuration.md",
    "docs/alerts.md",
    "docs/algorithms.md",
    "docs/deploy.md",
    "docs/hardening.md",
    "docs/operations.md",
    "docs/performance.md",
    "docs/reasons.md",
    "docs/recipes.md",
    "docs/replay.md",
];

/// The fenced blocks of a language.
pub fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// A fragment stands in a file that is otherwise complete.
pub fn whole(block: &str) -> String {
    let file: serde_yaml::Mapping = serde_yaml::from_str(block).unwrap();
    let first = if file.contains_key("upstream") { "" } else { "upstream: http://127.0.0.1:9000\n" };
    format!("{first}{block}")
}

#[test]
fn every_yaml_block_passes_check() {
    let mut checked = 0;
    let keys = serde_json::json!({"keys": [es256().jwk]}).to_string();
    for name in PAGES {
        let page = read(name);
        for block in blocks(&page, "yaml") {
            let whole = whole(block);
            let certificates = Certificates::get();
            // Whatever files a block names, they are there.
            let read = |path: &Path| match path.extension().and_then(|extension| extension.to_str()) {
                Some("pem") => Ok(certificates.client.0.clone().into_bytes()),
                Some("key") => Ok(certificates.client.1.clone().into_bytes()),
                _ if path == Path::new("api-keys.txt") => Ok(b"# none yet".to_vec()),
                Some("json") => Ok(keys.clone().into_bytes()),
                _ => Ok(b"a secret that is long enough for everything".to_vec()),
            };
            // And the one variable that the shipped file wants.
            let variable = |name: &str| (name == "JWT_SECRET").then(|| "x".repeat(32));
            let surroundings = Surroundings { variable: &variable, folder: Path::new(""), read: &read };
            let result = Config::parse(name, whole.as_bytes(), surroundings);
            assert!(result.is_ok(), "{}\nin:\n{whole}", result.unwrap_err());
            checked += 1;
        }
    }
    assert!(checked >= 10, "{checked} blocks");
}

/// The keys that the code asks for.
pub fn asked_keys() -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config");
    for entry in std::fs::read_dir(folder).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let source = source.split("#[cfg(test)]").next().unwrap();
        for call in ["get(\"", "need(\"", "timeout(&section, \"", "cost(\""] {
            keys.extend(source.split(call).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
        // The sources of a token's keys are looked for one after the other.
        if let Some(list) = source.split("const SOURCES").nth(1).and_then(|rest| rest.split(';').nth(1)) {
            keys.extend(list.split('"').skip(1).step_by(2).map(str::to_owned));
        }
    }
    keys
}

/// A row of docs/configuration.md that explains keys, or operators.
pub struct Row {
    pub keys: Vec<String>,
    /// The table's column `default`, if it has one.
    pub default: Option<String>,
}

pub fn rows_of_keys() -> Vec<Row> {
    let page = read("docs/configuration.md");
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let (mut rows, mut heads) = (Vec::new(), Vec::new());
    for (before, line) in std::iter::once("").chain(page.lines()).zip(page.lines()) {
        if !before.starts_with('|') {
            heads = cells(line);
        } else if line.starts_with("| `") && (heads[0].starts_with("key") || heads[0].starts_with("operator")) {
            let cells = cells(line);
            let keys: Vec<_> = cells[0].split('`').skip(1).step_by(2).map(str::to_owned).collect();
            let default = heads.iter().position(|head| head == "default").map(|at| cells[at].clone());
            rows.push(Row { keys, default });
        }
    }
    rows
}

pub fn documented_keys() -> BTreeSet<String> {
    rows_of_keys().into_iter().flat_map(|row| row.keys).collect()
}

#[test]
fn every_key_of_the_file_is_documented_and_no_other() {
    let (asked, documented) = (asked_keys(), documented_keys());
    assert_eq!(asked.symmetric_difference(&documented).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn every_attribute_is_documented() {
    let page = read("docs/configuration.md");
    for spelling in tollgate::limit::attribute::SPELLINGS {
        assert!(page.contains(&format!("`{spelling}`")), "docs/configuration.md does not explain `{spelling}`");
    }
}

#[test]
fn every_metric_is_documented() {
    let page = read("docs/operations.md");
    for rest in read("src/gateway/metrics.rs").split("    (\"").skip(1) {
        let name = rest.split('"').next().unwrap();
        assert!(page.contains(&format!("`{name}`")), "docs/operations.md does not explain `{name}`");
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    for name in PAGES.iter().chain(&["CONTRIBUTING.md", "CHANGELOG.md"]) {
        let page = read(name);
        for target in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join(name).parent().unwrap().join(file);
            assert!(beside.exists(), "{name} links to {target}");
        }
    }
}

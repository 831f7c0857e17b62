//! Holds the documentation to the code.

use std::path::Path;

use tollgate::config::{Config, Surroundings};

use super::support::Certificates;

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

const PAGES: [&str; 9] = [
    "README.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
    "docs/configuration.md",
    "docs/algorithms.md",
    "docs/hardening.md",
    "docs/operations.md",
    "docs/performance.md",
    "docs/reasons.md",
];

/// The fenced blocks of a language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn every_yaml_block_passes_check() {
    let mut checked = 0;
    for name in PAGES {
        let page = read(name);
        for block in blocks(&page, "yaml") {
            // A fragment stands in a file that is otherwise complete.
            let whole = if block.contains("upstream:") {
                block.to_owned()
            } else {
                format!("upstream: http://127.0.0.1:9000\n{block}")
            };
            let certificates = Certificates::get();
            // Whatever files a block names, they are there.
            let read = |path: &Path| match path.extension().and_then(|extension| extension.to_str()) {
                Some("pem") => Ok(certificates.client.0.clone().into_bytes()),
                Some("key") => Ok(certificates.client.1.clone().into_bytes()),
                _ if path == Path::new("api-keys.txt") => Ok(b"# none yet".to_vec()),
                _ => Ok(b"secret".to_vec()),
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

#[test]
fn every_key_of_the_file_is_documented() {
    let page = read("docs/configuration.md");
    for folder in [
        "config/check.rs",
        "config/access_log.rs",
        "config/listeners.rs",
        "config/tokens.rs",
        "config/api_keys.rs",
        "config/bounds.rs",
        "config/rules.rs",
        "config/limits.rs",
        "config/stores.rs",
        "config/expires.rs",
        "config/hashing.rs",
    ] {
        let source = read(&format!("src/{folder}"));
        for (call, quote) in
            [(".get(\"", '"'), (".need(\"", '"'), ("timeout(&section, \"", '"'), ("cost(\"", '"'), (" get(\"", '"')]
        {
            for rest in source.split(call).skip(1) {
                let key = rest.split(quote).next().unwrap();
                assert!(page.contains(&format!("`{key}`")), "docs/configuration.md does not explain `{key}`");
            }
        }
    }
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
fn every_reason_is_documented() {
    let page = read("docs/reasons.md");
    let source = read("src/gateway/reply.rs");
    let names = source.split("Reason::").filter_map(|rest| rest.split_once("=> \"")?.1.split('"').next());
    let mut found = 0;
    for name in names.filter(|name| name.contains('_') || *name == "denied") {
        assert!(page.contains(&format!("`{name}`")), "docs/reasons.md does not explain `{name}`");
        found += 1;
    }
    assert!(found >= 5, "{found} reasons");
}

#[test]
fn links_between_pages_lead_somewhere() {
    for name in PAGES.into_iter().chain(["CONTRIBUTING.md", "CHANGELOG.md"]) {
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

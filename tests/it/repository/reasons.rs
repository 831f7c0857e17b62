//! docs/reasons.md agrees with the code: each reason has its statuses, its meaning, and a recommended action.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ledger::algorithm::AlgorithmKind;
use regex::Regex;

use super::docs::read;

/// Returns the names of the reasons, by their variants.
fn reasons() -> BTreeMap<String, String> {
    let source = read("crates/decision/src/reason.rs");
    let arms = Regex::new(r#"Reason::(\w+) => "([a-z_]+)""#).unwrap();
    let reasons: BTreeMap<_, _> =
        arms.captures_iter(&source).map(|arm| (arm[1].to_owned(), arm[2].to_owned())).collect();
    assert!(reasons.len() >= 9, "{reasons:?}");
    let exceeded = AlgorithmKind::ALL.map(|kind| (format!("{kind:?}"), kind.exceeded().to_owned()));
    reasons.into_iter().chain(exceeded).collect()
}

/// Returns the statuses in the table, by reason.
fn table(page: &str) -> BTreeMap<String, BTreeSet<u16>> {
    let rows = Regex::new(r"(?m)^\| \[`([a-z_]+)`\]\(#([a-z_]+)\) \| ([0-9, or]+) \| .{10,} \|$").unwrap();
    let row = |row: regex::Captures<'_>| {
        assert_eq!(row[1], row[2], "a link that leads elsewhere");
        let statuses = Regex::new("[0-9]+").unwrap();
        (row[1].to_owned(), statuses.find_iter(&row[3]).map(|found| found.as_str().parse().unwrap()).collect())
    };
    rows.captures_iter(page).map(row).collect()
}

#[test]
fn every_reason_has_its_row_and_no_other() {
    let page = read("docs/reasons.md");
    let table = table(&page);
    assert_eq!(table.keys().collect::<BTreeSet<_>>(), reasons().values().collect());
}

#[test]
fn every_reason_has_a_meaning_and_an_action() {
    let page = read("docs/reasons.md");
    for (name, statuses) in table(&page) {
        let section = page.split(&format!("\n## {name}\n")).nth(1).unwrap_or_else(|| panic!("{name} has no section"));
        let section = section.split("\n## ").next().unwrap();
        let (meaning, what_to_do) =
            section.split_once("\n- **The client**").unwrap_or_else(|| panic!("{name}: what to do?"));
        assert!(what_to_do.contains("\n- **The operator**"), "{name}: what does the operator do?");
        for status in statuses {
            assert!(meaning.contains(&status.to_string()), "{name}: when is it {status}?");
        }
    }
}

#[test]
fn the_documented_order_of_checks_names_every_reason() {
    let page = read("docs/reasons.md");
    let order = page.split("They are checked in this order:").nth(1).unwrap().split("\n\n").next().unwrap();
    for name in reasons().values() {
        assert!(order.contains(&format!("`{name}`")), "{name}");
    }
}

fn sources(folder: &Path, found: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            *found += &std::fs::read_to_string(path).unwrap();
        }
    }
}

#[test]
fn every_status_in_the_code_is_in_the_table() {
    let page = read("docs/reasons.md");
    let (table, reasons) = (table(&page), reasons());
    let mut source = String::new();
    for room in ["crates/decision/src", "src/gateway"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(room), &mut source);
    }
    let given = Regex::new(r"\(([0-9]{3}), Reason::(\w+)\)").unwrap();
    let mut seen = 0;
    for one in given.captures_iter(&source) {
        let (status, name) = (one[1].parse().unwrap(), &reasons[&one[2]]);
        assert!(table[name].contains(&status), "{name} is {status} too");
        seen += 1;
    }
    assert!(seen >= 8, "{seen} statuses");
}

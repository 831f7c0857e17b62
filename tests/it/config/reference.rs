//! Every declared key is read, and the tables of docs/configuration.md are made of the declarations.

use std::path::Path;

use config::key::{Key, Mapping, Presence};
use config::mappings;
use regex::Regex;

use crate::repository::docs;

/// Whether the table of a mapping has a column of defaults.
fn has_defaults(mapping: &Mapping) -> bool {
    mapping.keys.iter().any(|key| !matches!(key.presence, Presence::Optional))
}

fn head(mapping: &Mapping, heading: &str) -> String {
    let default = if has_defaults(mapping) { "default | " } else { "" };
    format!("| {heading} | type | {default}meaning |")
}

fn row(mapping: &Mapping, key: &Key) -> String {
    let default = match key.presence {
        Presence::Required => "required".to_owned(),
        Presence::Optional => "none".to_owned(),
        Presence::Default(default) => format!("`{default}`"),
        Presence::Depends(without) => without.to_owned(),
    };
    let default = if has_defaults(mapping) { format!("{default} | ") } else { String::new() };
    format!("| `{}` | {} | {default}{} |", key.name, key.kind.text(), key.doc)
}

/// The tables that explain keys: the head of each, and its rows.
fn tables(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut tables = Vec::new();
    let mut lines = page.lines();
    while let Some(head) = lines.find(|line| line.starts_with('|')) {
        // After the line of dashes.
        let rows = lines.by_ref().take_while(|line| line.starts_with('|')).skip(1).collect();
        if head.ends_with(" meaning |") {
            tables.push((head, rows));
        }
    }
    tables
}

#[test]
fn the_documented_tables_of_keys_match_the_declarations() {
    let page = docs::read("docs/configuration.md");
    let mut tables = tables(&page);
    let mut wrong = Vec::new();
    for mapping in mappings() {
        let Some(heading) = mapping.heading else { continue };
        let head = head(mapping, heading);
        let mut expected: Vec<_> = mapping.keys.iter().map(|key| row(mapping, key)).collect();
        let table = format!("{head}\n{}", expected.join("\n"));
        // The keys of the whole file are explained section by section.
        let mut found: Vec<_> = tables.extract_if(.., |(found, _)| *found == head).flat_map(|(_, rows)| rows).collect();
        if heading == "key" {
            expected.sort();
            found.sort_unstable();
        }
        if found != expected {
            wrong.push(table);
        }
    }
    assert!(wrong.is_empty(), "docs/configuration.md must have these tables:\n{}", wrong.join("\n\n"));
    let undeclared: Vec<_> = tables.iter().map(|(head, _)| *head).filter(|head| head.starts_with("| key")).collect();
    assert_eq!(undeclared, [""; 0]);
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
    let entries = [folder.clone(), folder.join("algorithms")].map(|folder| std::fs::read_dir(folder).unwrap());
    let files = entries.into_iter().flatten().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let sources: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
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

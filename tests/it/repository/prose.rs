//! Refuses idioms whose meaning a reader has to guess: the repository is written in plain, standard English.

use std::process::Command;

use regex::Regex;

use super::imports::root;

/// The idioms that are refused, as regular expressions, and what to write instead.
const IDIOMS: [(&str, &str); 14] = [
    (r"\b(?:is|are|was|were) none\b", "say what is missing or invalid"),
    (r"\bhangs? on\b", "depends on"),
    (r"\banew\b", "again, new, reset"),
    (r"\btaken up\b", "accepted, applied, in force"),
    (r"\bdrawn by lot\b", "random"),
    (r"\bfor want of\b", "without, because there is no"),
    (r"\bnobody has use\b", "unused"),
    (r"\b[Ww]hoever\b", "a client, a caller, an operator"),
    (r"\b[Ww]ho (?:is|has|comes|waits|asks|was) (?:told|kept|not|for|then|late|gone)\b", "a noun as the subject"),
    (r"\bbelongs? into\b", "belongs to, belongs in"),
    (r"\b(?:is|are|was|were|be|been) told\b", "is reported, is sent, is answered"),
    (r"\bstands? (?:twice|inside|in line|in brackets|below|around)\b", "is, occurs, is listed"),
    (r"\bbehind (?:the (?:colon|version|request line)|`[=:#])", "after"),
    (r"^//! (?:Who|Whoever|Whether|When|What|How|Where|That) ", "a first line says what the file holds"),
];

/// Returns the lines of a file that are checked, with their numbers: all lines of documents and of Rust code, and the
/// comments of other code.
fn prose<'t>(name: &str, text: &'t str) -> Vec<(usize, &'t str)> {
    let comment = |line: &'t str| match name.rsplit('.').next() {
        Some("md" | "rs" | "html" | "json" | "py") => Some(line),
        Some("lua") => line.find("--").and_then(|start| line.get(start..)),
        Some("yaml" | "toml") => line.find("# ").and_then(|start| line.get(start..)),
        _ if name.starts_with("scripts/") => line.find("# ").and_then(|start| line.get(start..)),
        _ => None,
    };
    (1..).zip(text.lines()).filter_map(|(number, line)| Some((number, comment(line)?))).collect()
}

#[test]
fn the_repository_is_written_in_plain_english() {
    let idioms: Vec<(Regex, &str)> = IDIOMS.iter().map(|(idiom, plain)| (Regex::new(idiom).unwrap(), *plain)).collect();
    let output = Command::new("git").args(["ls-files"]).current_dir(root()).output().unwrap();
    let mut found = Vec::new();
    for name in String::from_utf8(output.stdout).unwrap().lines() {
        // This file names what it refuses.
        if name == "tests/it/repository/prose.rs" {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(root().join(name)) else { continue };
        for (number, line) in prose(name, &text) {
            for (idiom, plain) in &idioms {
                if idiom.is_match(line) {
                    found.push(format!("{name}:{number}: {} (better: {plain})", line.trim()));
                }
            }
        }
    }
    assert!(found.is_empty(), "{} idioms:\n{}", found.len(), found.join("\n"));
}

//! docs/logs.md explains exactly the lines that the code logs at error, warn and info, each with its level.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;

use super::docs::read;
use super::imports::source_folders;

/// Returns the text of all sources in a folder. Broken string literals are joined.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &std::fs::read_to_string(path).unwrap();
        }
    }
    Regex::new(r"\\\n\s*").unwrap().replace_all(&text, "").into_owned()
}

/// A logged line: its level, and its message.
type Line = (String, String);

/// Returns the arguments of a macro call, from the text after its parenthesis.
fn arguments(text: &str) -> &str {
    let (mut depth, mut is_text, mut is_escaped) = (1, false, false);
    for (index, letter) in text.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if is_text => is_escaped = true,
            '"' => is_text = !is_text,
            '(' if !is_text => depth += 1,
            ')' if !is_text => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..index];
        }
    }
    panic!("no end: {text}");
}

/// Returns the lines that the sources log. The level `any` stands for a level that is chosen at run time.
fn logged_lines() -> BTreeSet<Line> {
    let sources = source_folders().iter().map(|folder| sources(folder)).collect::<String>();
    let call = Regex::new(r"log::(error|warn|info|log)!\(").unwrap();
    let text = Regex::new(r#""((?:[^"\\]|\\.)*)""#).unwrap();
    let line = |call: regex::Captures<'_>| {
        let level = call[1].replace("log", "any");
        let arguments = arguments(&sources[call.get(0).unwrap().end()..]);
        // The message is the last of the arguments.
        let message =
            text.captures_iter(arguments).last().unwrap_or_else(|| panic!("no message: {arguments}"))[1].to_owned();
        (level, message)
    };
    let lines = call.captures_iter(&sources).map(line);
    lines.filter(|(_, message)| !message.starts_with("test-hooks:")).collect()
}

#[test]
fn the_table_of_log_lines_matches_what_the_code_logs() {
    let page = read("docs/logs.md");
    let section = page.split("\n## Logs\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut documented = BTreeSet::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let [_, messages, level, ..] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else { panic!("{row}") };
        documented.extend(messages.split('`').skip(1).step_by(2).map(|message| (level.to_owned(), message.to_owned())));
    }
    // Pingora writes the line with the dots.
    documented.retain(|(_, message)| !message.contains('…'));
    let logged = logged_lines();
    assert!(logged.len() > 70, "{logged:#?}");
    let is_documented = |(level, message): &&Line| match &**level {
        "any" => documented.iter().any(|(_, known)| known == message),
        _ => documented.contains(&(level.clone(), message.clone())),
    };
    let missing: Vec<_> = logged.iter().filter(|line| !is_documented(line)).collect();
    assert!(missing.is_empty(), "docs/logs.md does not explain {missing:#?}");
    let is_logged = |(level, message): &&Line| {
        logged.iter().any(|(known, text)| text == message && (known == level || known == "any"))
    };
    let unknown: Vec<_> = documented.iter().filter(|line| !is_logged(line)).collect();
    assert!(unknown.is_empty(), "nothing logs {unknown:#?}");
}

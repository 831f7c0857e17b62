//! Holds the house in order: rooms look only leftwards, and the repository says nothing that it should not.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// From left to right; rooms of one entry never look at each other.
const ROOMS: [&[&str]; 6] =
    [&["base"], &["limit"], &["store", "auth", "access_log_line"], &["config"], &["gateway", "replay"], &["cli"]];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The room that a source file stands in, by the first part of its path.
fn room(path: &Path) -> String {
    let inner = path.strip_prefix(root().join("src")).unwrap();
    inner.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// The modules of a source file, from the crate's root: `["gateway", "proxy"]` for `src/gateway/proxy/mod.rs`.
fn module(path: &Path) -> Vec<String> {
    let inner = path.strip_prefix(root().join("src")).unwrap().with_extension("");
    let mut names: Vec<String> = inner.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    if matches!(names.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

/// Every path that a source file names by `crate::` or `super::`, from the crate's root, groups in braces taken apart.
fn imports(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let here = module(path);
    let mut found = Vec::new();
    let mut inner = false;
    for line in statements(&text) {
        inner |= line.starts_with("mod ") && line.ends_with('{');
        for start in ["crate::", "super::"] {
            let mut rest = line.as_str();
            while let Some(at) = rest.find(start) {
                let free =
                    !rest[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':');
                let path = &rest[at..];
                rest = &rest[at + start.len()..];
                if free {
                    expand(&[], path, &mut |names| found.extend(resolve(&here, inner, names)));
                }
            }
        }
    }
    found
}

/// The lines of a text without comments, those of a `use` joined to one.
fn statements(text: &str) -> Vec<String> {
    let mut statements: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in text.lines().map(|line| line.split("//").next().unwrap().trim_end()) {
        let begins = line.trim_start().starts_with("use ") || line.trim_start().starts_with("pub use ");
        let continues = is_open;
        is_open = (begins || is_open) && !line.ends_with(';');
        match statements.last_mut() {
            Some(last) if continues => last.push_str(line.trim()),
            _ => statements.push(line.to_owned()),
        }
    }
    statements
}

fn expand(before: &[String], text: &str, found: &mut impl FnMut(&[String])) {
    let mut names = before.to_vec();
    let mut rest = text.trim_start();
    loop {
        if let Some(group) = rest.strip_prefix('{') {
            let (mut depth, mut begin) = (0, 0);
            for (at, character) in group.char_indices() {
                match character {
                    '{' => depth += 1,
                    '}' if depth > 0 => depth -= 1,
                    ',' | '}' if depth == 0 => {
                        expand(&names, &group[begin..at], found);
                        begin = at + 1;
                        if character == '}' {
                            return;
                        }
                    }
                    _ => {}
                }
            }
            return;
        }
        let end = rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len());
        if end > 0 {
            names.push(rest[..end].to_owned());
        }
        match rest[end..].strip_prefix("::") {
            Some(more) if end > 0 => rest = more,
            _ => break,
        }
    }
    if !names.is_empty() {
        found(&names);
    }
}

/// `inner` says that the path stands in a module inside of its file, for which `super` is that file.
fn resolve(here: &[String], inner: bool, names: &[String]) -> Option<Vec<String>> {
    let mut from = here.to_vec();
    let mut names = names;
    if names.first()? == "crate" {
        return Some(names[1..].to_vec());
    }
    if inner {
        from.push("tests".to_owned());
    }
    while names.first().is_some_and(|name| name == "super") {
        from.pop()?;
        names = &names[1..];
    }
    from.extend_from_slice(names);
    Some(from)
}

/// Asserts that every file below `folder` names only rooms to the left of its own. A room is the module at `depth`.
#[track_caller]
fn check_order(folder: &str, depth: usize, rooms: &[&[&str]]) {
    let index: HashMap<&str, usize> =
        (0..).zip(rooms).flat_map(|(index, rooms)| rooms.iter().map(move |room| (*room, index))).collect();
    let parent = module(&root().join("src").join(folder).join("mod.rs"));
    let mut wrong = Vec::new();
    for path in sources(&root().join("src").join(folder)) {
        let own = module(&path);
        let Some(here) = own.get(depth) else { continue };
        let Some(own) = index.get(here.as_str()) else {
            wrong.push(format!("{} stands in no room", path.display()));
            continue;
        };
        for import in imports(&path) {
            if import.get(..depth) != Some(&parent) {
                continue;
            }
            let Some(there) = import.get(depth) else { continue };
            match index.get(there.as_str()) {
                Some(other) if there == here || other < own => {}
                _ => wrong.push(format!("{} looks at {}", path.display(), import.join("::"))),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rooms_look_only_leftwards() {
    check_order("", 0, &ROOMS);
}

#[test]
fn only_the_gateway_knows_pingora_and_metrics_and_only_config_reads_yaml() {
    for path in sources(&root().join("src")) {
        let text = std::fs::read_to_string(&path).unwrap();
        // `pingora_timeout` is another package than `pingora`.
        let used = |rest: &str| !rest.starts_with(|next: char| next == '_' || next.is_alphanumeric());
        let mentions = |package: &str| {
            text.split(&format!("use {package}")).skip(1).any(used) || text.contains(&format!(" {package}::"))
        };
        for (package, owner) in [
            ("pingora", "gateway"),
            ("pingora_timeout", "base"),
            ("metrics_exporter_prometheus", "gateway"),
            ("serde_yaml", "config"),
            ("saphyr_parser", "config"),
            ("redis", "store"),
        ] {
            assert!(room(&path) == owner || !mentions(package), "{} mentions {package}", path.display());
        }
    }
}

#[test]
fn the_decision_does_no_input_or_output() {
    for path in sources(&root().join("src/limit")) {
        let text = std::fs::read_to_string(&path).unwrap();
        for word in ["async fn", "std::fs", "std::io", "std::time", "tokio", "log::", "println"] {
            assert!(!text.contains(word), "{} has {word}", path.display());
        }
    }
}

#[test]
fn one_file_asks_what_the_machine_is_called() {
    let asks = |path: &PathBuf| std::fs::read_to_string(path).unwrap().contains("uname()");
    let found: Vec<PathBuf> = sources(&root().join("src")).into_iter().filter(asks).collect();
    assert_eq!(found, [root().join("src/base/host_name.rs")]);
}

#[test]
fn no_file_has_grown_a_second_subject() {
    for path in sources(&root().join("src")) {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 450, "{} has {lines} lines: is there a second subject in it?", path.display());
    }
}

#[test]
fn every_file_begins_by_saying_what_it_holds() {
    for path in ["src", "tests", "benches"].iter().flat_map(|folder| sources(&root().join(folder))) {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//! "), "{} has no module doc", path.display());
    }
}

#[test]
fn the_repository_names_no_path_of_a_machine() {
    let output = Command::new("git").args(["ls-files"]).current_dir(root()).output().unwrap();
    for name in String::from_utf8(output.stdout).unwrap().lines() {
        let Ok(text) = std::fs::read_to_string(root().join(name)) else { continue };
        // Spelt in two parts, or this file would name them.
        for path in [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")] {
            assert!(!text.contains(path), "{name} names {path}");
        }
    }
}

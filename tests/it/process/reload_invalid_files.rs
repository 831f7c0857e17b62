//! Replaces gateway.yaml by invalid files while a gateway runs: each is reported, and nothing changes.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::support::{Gateway, Upstream, eventually};

/// A name, a function that writes the invalid file, and the expected message.
type Wrong = (&'static str, Box<dyn Fn(&Path)>, &'static str);

fn written(name: &'static str, bytes: impl Into<Vec<u8>>, says: &'static str) -> Wrong {
    let bytes = bytes.into();
    (name, Box::new(move |file| std::fs::write(file, &bytes).unwrap()), says)
}

fn wrong_files() -> Vec<Wrong> {
    let doubling = |level: i32| format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 9].join(", "));
    let bomb = "a0: &a0 x\n".to_owned() + &(1..30).map(doubling).collect::<String>();
    vec![
        written("nothing", "", "must be a mapping, is empty"),
        written(
            "half of one",
            "upstream: http://127.0.0.1:9\nrules:\n  - {name: a, limit_keys: [ip:add",
            "gateway.yaml:",
        ),
        written("bytes", [0, 159, 146, 150], "must be UTF-8 text"),
        written("much", "# filler\n".repeat(10 << 17), "must be at most 4194304 bytes"),
        written("what doubles itself", bomb, "gateway.yaml:"),
        written("what is nested", "[".repeat(100_000), "gateway.yaml:"),
        ("a folder", Box::new(|file| std::fs::create_dir(file).unwrap()), "must be a readable file"),
        (
            "a pipe",
            Box::new(|file| assert!(Command::new("mkfifo").arg(file).status().unwrap().success())),
            "must be a readable file",
        ),
        ("a link to itself", Box::new(|file| symlink(file, file).unwrap()), "must be a readable file"),
        ("a link to nothing", Box::new(|file| symlink("nowhere", file).unwrap()), "must be a readable file"),
    ]
}

#[test]
fn invalid_files_are_reported_and_change_nothing() {
    let upstream = Upstream::start();
    let rest = "rules: [{name: a, limit_keys: [query:u], algorithm_config: {rps: 1000, burst: 1000}}]";
    let gateway = Gateway::start(&upstream, rest);
    let file = gateway.file("gateway.yaml");
    let mut client = gateway.client();
    for (number, (name, put, says)) in wrong_files().into_iter().enumerate() {
        std::fs::remove_file(&file).or_else(|_| std::fs::remove_dir(&file)).unwrap();
        put(&file);
        let before = gateway.errors().len();
        gateway.signal("HUP");
        eventually(name, || gateway.errors()[before..].contains("WARN configuration rejected"));
        let errors = gateway.errors();
        let line = errors[before..].lines().find(|line| line.contains("configuration rejected")).unwrap();
        assert!(line.contains(says) && line.len() < 3000, "{name}: {line}");
        assert_eq!(client.get("/?u=a", &[]).number("ratelimit-limit"), 1000, "{name}");
        gateway.expect("tollgate_config_last_reload_successful", &[], 0.0);
        assert!(
            gateway.metric("tollgate_config_reloads_total", &["failure"]) > f64::from(u32::try_from(number).unwrap())
        );
    }
    assert!(gateway.metric("process_resident_memory_bytes", &[]) < 200e6);
    std::fs::remove_file(&file).unwrap();
    gateway.reload(&upstream, &rest.replace("1000", "2000"));
    assert_eq!(client.get("/?u=a", &[]).number("ratelimit-limit"), 2000);
}

//! Watched files that cannot be read: a named pipe, or a file on a file system that hangs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{Gateway, GatewayBuilder, Upstream, eventually, now};

const CONFIG: &str = "
api_keys: {from: header:x-api-key, file: keys.txt}
jwt: {algorithms: [HS256], keys: {secret_file: secret}}
error_pages: [{match: {path: /page}, status: [429], body_file: page.html, content_type: text/html}]
rules:
  - {name: partner, match: {header:x-partner: {in_file: partners.txt}}, action: allow}
  - {name: rest, limit_keys: [header:x-user], algorithm_config: {rps: 1, burst: 5}, overrides_file: overrides.yaml}
check: {allow: [unverified_key]}
";
/// The SHA-256 hash of `abc`.
const KEY: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad acme gold\n";
const FILES: [(&str, &str); 5] = [
    ("keys.txt", KEY),
    ("secret", "ssssssssssssssssssssssssssssssssssssssss"),
    ("page.html", "<h1>enough</h1>"),
    ("partners.txt", "acme\n"),
    ("overrides.yaml", "ann: {rps: 7, burst: 70}\n"),
];

fn before(upstream: &Upstream) -> GatewayBuilder {
    Gateway::before(upstream).with(CONFIG).files(&FILES)
}

fn mkfifo(file: &Path) {
    std::fs::remove_file(file).unwrap();
    assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
}

fn key_is_known(gateway: &Gateway) -> bool {
    gateway.client().get("/", &[("X-API-Key", "abc"), ("X-User", "key")]).status != 401
}

#[test]
fn a_named_pipe_in_place_of_a_file_is_a_problem_and_the_others_are_followed() {
    let upstream = Upstream::start();
    for (name, content) in &FILES[1..] {
        let gateway = before(&upstream).start();
        assert!(key_is_known(&gateway));
        mkfifo(&gateway.file(name));
        eventually(name, || gateway.has_logged("configuration rejected"));
        let line = gateway.errors().lines().find(|line| line.contains("configuration rejected")).unwrap().to_owned();
        assert!(line.contains("(not a regular file)") && line.contains(name), "{line}");
        gateway.expect("tollgate_config_last_reload_successful", &[], 0.0);
        // A revoked key is revoked, and a repaired file is in force.
        std::fs::write(gateway.file("keys.txt"), KEY.replace("ba78", "ba79")).unwrap();
        eventually("the key is gone", || !key_is_known(&gateway));
        std::fs::remove_file(gateway.file(name)).unwrap();
        std::fs::write(gateway.file(name), content).unwrap();
        eventually("all is well", || gateway.metric("tollgate_config_last_reload_successful", &[]) == 1.0);
    }
    let gateway = before(&upstream).start();
    mkfifo(&gateway.file("keys.txt"));
    eventually("the pipe is reported", || gateway.has_logged("API keys rejected"));
    gateway.expect_logged("must be a readable file (not a regular file)");
    assert!(key_is_known(&gateway));
}

#[test]
fn a_start_and_check_name_a_pipe_and_do_not_wait_for_it() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("gateway.yaml");
    std::fs::write(&file, Gateway::text("http://127.0.0.1:9", CONFIG)).unwrap();
    for (name, content) in &FILES {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    for (name, content) in &FILES {
        mkfifo(&folder.path().join(name));
        for command in ["check", "run"] {
            let mut child = match command {
                "check" => {
                    Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("check").arg(&file).stderr(Stdio::piped()).spawn()
                }
                _ => Gateway::command(&file).stderr(Stdio::piped()).spawn(),
            }
            .unwrap();
            let begin = now();
            while child.try_wait().unwrap().is_none() {
                assert!(begin.elapsed() < Duration::from_secs(60), "{command} waits for {name}");
                std::thread::sleep(Duration::from_millis(20));
            }
            let ended = child.wait_with_output().unwrap();
            let errors = String::from_utf8(ended.stderr).unwrap();
            // A command need not know a secret.
            let (says, code) = match (command, *name) {
                ("check", "secret") => ("cannot be read here (not a regular file)", 0),
                _ => ("must be a readable file (not a regular file), is", 1),
            };
            assert!(errors.contains(says), "{command} {name}: {errors}");
            assert_eq!(ended.status.code(), Some(code), "{command} {name}");
        }
        std::fs::remove_file(folder.path().join(name)).unwrap();
        std::fs::write(folder.path().join(name), content).unwrap();
    }
}

#[test]
#[cfg(feature = "test-hooks")]
fn a_file_system_that_hangs_is_reported_and_keeps_no_other_file_from_being_followed() {
    let upstream = Upstream::start();
    let folder = TempDir::new().unwrap();
    let hanging = folder.path().join("hanging");
    let set = format!("export TOLLGATE_TEST_HANG={} TOLLGATE_TEST_INTERVALS=look=300,watch=50", hanging.display());
    let gateway = before(&upstream).shell(&set).start();
    let looked = |files: &str| {
        gateway.metric("tollgate_files_last_looked_at_timestamp_seconds", &[&format!("files=\"{files}\"")])
    };
    let limit = || gateway.client().get("/", &[("X-User", "ann")]).number("ratelimit-limit");
    assert!(looked("config") > 1e9 && looked("api_keys") > 1e9);
    let before = looked("config");
    eventually("it is looked at again", || looked("config") > before);
    std::fs::write(&hanging, "partners.txt\n").unwrap();
    std::fs::write(gateway.file("overrides.yaml"), "ann: {rps: 8, burst: 80}\n").unwrap();
    eventually("the hanging list is reported", || gateway.has_logged("their changes are not followed"));
    gateway.expect_logged("files=config");
    let (config, keys) = (looked("config"), looked("api_keys"));
    std::fs::write(gateway.file("keys.txt"), KEY.replace("ba78", "ba79")).unwrap();
    eventually("the key is gone", || !key_is_known(&gateway));
    assert_eq!((looked("config"), limit()), (config, 70));
    assert!(looked("api_keys") > keys);
    std::fs::remove_file(&hanging).unwrap();
    eventually("the new limit is in force", || limit() == 80);
    gateway.expect_logged("files can be read again");
    assert!(looked("config") > config);
    assert_eq!(gateway.errors().matches("their changes are not followed").count(), 1);
}

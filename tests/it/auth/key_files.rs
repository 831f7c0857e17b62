//! The file of API keys: its changes, its faults, and the command that makes its lines.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use super::api_keys::{GOLD, OLD_GOLD, RULES, SILVER, UNKNOWN, before, keys, line, start, start_by_header, status};
use crate::support::{Gateway, Lateness, Upstream, eventually, now};

/// A way to replace the content of a file: the arguments are a name for temporary files, and the new text.
type Way<'w> = &'w dyn Fn(&str, &str);

#[test]
fn a_changed_file_is_applied_however_it_is_changed() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: known, limit_keys: [key:id], algorithm_config: {rate: 1000/day}}]";
    let gateway = start(&upstream, "from: header:x-api-key, max_shrink: 100%", rules);
    let file = gateway.file("api-keys.txt");
    let write = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
    let ways: [Way<'_>; 4] = [
        &|_, text| write(&file, text),
        &|name, text| {
            write(&gateway.file(name), text);
            std::fs::rename(gateway.file(name), &file).unwrap();
        },
        &|name, text| {
            write(&gateway.file(name), text);
            symlink(name, gateway.file("link")).unwrap();
            std::fs::rename(gateway.file("link"), &file).unwrap();
        },
        // As Kubernetes does: the file leads into a folder that is itself a link.
        &|name, text| {
            std::fs::create_dir(gateway.file(name)).unwrap();
            write(&gateway.file(name).join("api-keys.txt"), text);
            symlink(name, gateway.file("link")).unwrap();
            std::fs::rename(gateway.file("link"), gateway.file("data")).unwrap();
            symlink("data/api-keys.txt", gateway.file("link")).unwrap();
            std::fs::rename(gateway.file("link"), &file).unwrap();
        },
    ];
    let late = Lateness::measure();
    let mut before = GOLD.to_owned();
    for (number, way) in [0, 1, 2, 3, 3].into_iter().enumerate() {
        let key = format!("another-key-{number}-0123456789");
        let start = now();
        ways[way](&format!("file-{number}"), &line(key.as_bytes(), "acme", "gold"));
        eventually("the new key is known", || status(&gateway, &key) == 200);
        assert!(start.elapsed() < Duration::from_secs(2) + late.of_a_request(), "{:?}", start.elapsed());
        assert_eq!(status(&gateway, &before), 401, "change {number}");
        before = key;
    }
    gateway.expect("tollgate_config_reloads_total", &["success"], 5.0);
    // The bucket is that of the id, whatever the key.
    assert!(gateway.metric("rate_limiter_allowed_total", &["known"]) >= 5.0);
}

#[test]
fn an_invalid_file_of_keys_changes_nothing_and_is_logged_once() {
    let upstream = Upstream::start();
    let watch = Duration::from_millis(50);
    let settings = "from: header:x-api-key, max_shrink: 100%";
    let gateway = before(&upstream, settings, RULES).short_interval("watch", watch).start();
    let file = gateway.file("api-keys.txt");
    let said = |line: &str| gateway.errors().matches(line).count();
    // Renamed over, since the watch would see a file that is written in place while it is empty.
    gateway.replace("api-keys.txt", &format!("{}{UNKNOWN} acme gold\n{UNKNOWN}\n", keys()));
    eventually("it is said", || said("WARN API keys rejected") == 1);
    // That the same wrong file is not reported again, a test of the watch shows without waiting; here the numbers below do.
    gateway.expect_logged("problems=2");
    gateway.expect_logged("6:1: hash: must be");
    assert!(!gateway.errors().contains(UNKNOWN));
    assert_eq!((status(&gateway, GOLD), status(&gateway, UNKNOWN)), (200, 401));
    gateway.expect("tollgate_config_reloads_total", &["failure"], 1.0);
    gateway.expect("tollgate_config_last_reload_successful", &[], 0.0);
    std::fs::remove_file(&file).unwrap();
    eventually("it is said", || said("must be a readable file") == 1);
    assert_eq!(status(&gateway, SILVER), 200);
    gateway.replace("api-keys.txt", "# Nobody any more.\n");
    eventually("it is mended", || said("INFO API keys reloaded") == 1);
    assert_eq!(said("API keys rejected"), 2);
    assert_eq!(status(&gateway, GOLD), 401);
    gateway.expect("tollgate_config_last_reload_successful", &[], 1.0);
}

#[test]
fn a_file_that_has_lost_too_many_keys_changes_nothing_and_keeps_a_new_configuration_out() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "from: header:x-api-key, max_shrink: 40%", RULES);
    let entries = || gateway.metric("tollgate_list_entries", &["file=\"api-keys.txt\""]);
    assert_eq!(entries(), 3.0);
    let one_less =
        keys().lines().filter(|line| !line.contains("silver")).fold(String::new(), |text, l| text + l + "\n");
    gateway.replace("api-keys.txt", &one_less);
    eventually("one of three may go", || entries() == 2.0);
    assert_eq!((status(&gateway, SILVER), status(&gateway, OLD_GOLD)), (401, 200));
    let one = line(GOLD.as_bytes(), "acme", "gold");
    gateway.replace("api-keys.txt", &one);
    eventually("one of two may not", || gateway.has_logged("the file has 1 of 2 keys left, and may lose 40% at once"));
    gateway.expect("tollgate_config_last_reload_successful", &[], 0.0);
    assert_eq!((status(&gateway, OLD_GOLD), entries()), (200, 2.0));
    // Nor with another configuration that was meant for all, until it says so or the file is whole.
    let text = std::fs::read_to_string(gateway.file("gateway.yaml")).unwrap();
    gateway.replace("gateway.yaml", &text.replace("rate: 2/day", "rate: 9/day"));
    eventually("it is kept out", || gateway.has_logged("the list has 1 of 2 entries left, and may lose 40% at once"));
    let anonymous = || gateway.client().get("/", &[]).number("ratelimit-limit");
    assert_eq!((anonymous(), status(&gateway, OLD_GOLD)), (2, 200));
    gateway.replace("api-keys.txt", &keys());
    eventually("both are in force", || anonymous() == 9 && entries() == 3.0);
    gateway.replace("gateway.yaml", &text.replace("40%", "90%"));
    eventually("the former limit is in force", || anonymous() == 2);
    gateway.replace("api-keys.txt", &one);
    eventually("two of three may go", || entries() == 1.0);
    // The other key of the same bucket has used that up.
    assert_eq!((status(&gateway, OLD_GOLD), status(&gateway, GOLD)), (401, 429));
    gateway.expect("tollgate_config_last_reload_successful", &[], 1.0);
}

#[test]
fn sighup_reads_the_file_and_logs_it() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    gateway.signal("HUP");
    eventually("it is said", || gateway.has_logged("API keys reloaded"));
    gateway.expect_logged("keys=3");
    assert_eq!(status(&gateway, GOLD), 200);
}

fn key_command(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("key").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn the_line_that_the_command_prints_makes_a_key_valid() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    assert_eq!(status(&gateway, UNKNOWN), 401);
    let output = key_command(&["new@example.com", "gold"], &format!("{UNKNOWN}\n"));
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
    let mut file = std::fs::OpenOptions::new().append(true).open(gateway.file("api-keys.txt")).unwrap();
    file.write_all(&output.stdout).unwrap();
    eventually("the key is known", || status(&gateway, UNKNOWN) == 200);
    assert_eq!(status(&gateway, GOLD), 200);
}

#[test]
fn the_command_rejects_an_invalid_key_and_prints_no_key() {
    let output = |arguments: &[&str], input: &str| {
        let output = key_command(arguments, input);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.stdout.is_empty() && !errors.contains("0123456789"), "{errors}");
        (output.status.code().unwrap(), errors)
    };
    let short = "a key must have 16 to 1024 characters in one line\n";
    for input in ["", "\n", "0123456789abcde\n"] {
        assert_eq!(output(&["acme", "gold"], input), (1, format!("standard input: {short}")));
    }
    assert_eq!(output(&["acme", "gold"], "0123456789 abcdef\n").0, 1);
    let name = "must be 1 to 128 of letters, digits, `_`, `.`, `@` and `-`";
    assert_eq!(output(&["ac me", "gold"], GOLD), (1, format!("ID: {name}, is `ac me`\n")));
    assert_eq!(output(&["acme", ""], GOLD), (1, format!("PLAN: {name}, is ``\n")));
    assert_eq!(output(&["acme"], GOLD).0, 2);
}

#[test]
fn an_invalid_file_of_keys_prevents_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    std::fs::write(
        &file,
        "upstream: http://127.0.0.1:9\napi_keys: {from: header:x-api-key, file: keys/a.txt}\nlisen: 1\n",
    )
    .unwrap();
    std::fs::create_dir(directory.path().join("keys")).unwrap();
    std::fs::write(directory.path().join("keys/a.txt"), format!("# {GOLD}\n{GOLD} acme gold\n")).unwrap();
    let (yaml, keys) = (file.display(), directory.path().join("keys/a.txt"));
    let expected = format!(
        "{yaml}:3:1: lisen: unknown key\n  hint: did you mean `listen`?\n{}:2:1: api_keys.file: hash: must be SHA-256 of \
         a key, as 64 hexadecimal digits; the value is not shown: it may be a key\n2 problems\n",
        keys.display()
    );
    for command in ["check", "run"] {
        let mut command = match command {
            "run" => Gateway::command(&file),
            _ => Command::new(env!("CARGO_BIN_EXE_tollgate")),
        };
        if command.get_args().count() == 0 {
            command.arg("check").arg(&file);
        }
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
    }
}

//! Faults of the process: signals, panics, a kill, and a log that nobody reads.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{Gateway, Lateness, Upstream, eventually, free_port, now, tollgate};

#[test]
fn only_exit_signals_end_the_process_at_any_time() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "");
    let mut random = fastrand::Rng::with_seed(7);
    let mut client = gateway.client();
    for _ in 0..40 {
        gateway.signal(["HUP", "USR1"][random.usize(..2)]);
        for _ in 0..random.usize(..4) {
            assert_eq!(client.get("/", &[]).status, 200);
        }
    }
    assert!(gateway.is_running());
    eventually("it says so", || gateway.has_logged("SIGUSR1: reopening the access log"));
    gateway.signal("TERM");
    gateway.signal("INT");
    assert_eq!(gateway.wait().0.code(), Some(0));
}

#[test]
fn an_early_signal_does_not_end_the_process() {
    let (upstream, directory) = (Upstream::start(), TempDir::new().unwrap());
    let [file, out] = ["gateway.yaml", "out"].map(|name| directory.path().join(name));
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let output = std::fs::File::create(&out).unwrap();
    let mut child = Gateway::command(&file).stdout(output).stderr(Stdio::null()).spawn().unwrap();
    // Somebody reads the file as soon as this can be opened, and waits for the rest of it.
    let mut writer = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    for name in ["USR1", "HUP"] {
        assert!(Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap().success());
    }
    writer.write_all(Gateway::text(&format!("http://{}", upstream.address), "").as_bytes()).unwrap();
    drop(writer);
    eventually("it is ready", || {
        assert_eq!(child.try_wait().unwrap(), None);
        std::fs::read_to_string(&out).unwrap().contains("ready")
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[cfg(feature = "test-hooks")]
fn a_panic_costs_the_connection_on_which_it_happens() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::before(&upstream).shell("export TOLLGATE_STUMBLE=/stumble").start();
    let mut other = gateway.client();
    for _ in 0..5 {
        assert_eq!(other.get("/", &[]).status, 200);
        let mut client = gateway.client();
        client.write("GET /stumble?secret=x HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.response("GET").is_err());
    }
    assert_eq!(other.get("/", &[]).status, 200);
    gateway.expect("tollgate_http_connections", &[], 1.0);
    eventually("each panic is logged", || gateway.errors().matches("ERROR panicked, which is a bug").count() == 5);
    assert!(!gateway.errors().contains("secret=x") && gateway.is_running());
}

#[test]
#[cfg(feature = "test-hooks")]
fn a_panic_in_a_critical_task_is_logged_and_ends_the_process() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("gateway.yaml");
    std::fs::write(&file, Gateway::text("http://127.0.0.1:9", "")).unwrap();
    for task in ["housekeeping", "listener"] {
        let ended = Gateway::command(&file).env("TOLLGATE_STUMBLE", task).output().unwrap();
        let errors = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{errors}");
        assert!(errors.contains(&format!("ERROR panicked, leaving task={task}")), "{errors}");
    }
}

#[test]
fn killed_it_starts_again_at_once_at_the_same_address() {
    let (upstream, port) = (Upstream::start(), free_port());
    let late = Lateness::measure();
    for _ in 0..5 {
        let begin = now();
        let mut gateway = Gateway::start(&upstream, &format!("listeners: [{{address: 127.0.0.1:{port}}}]"));
        let mut client = gateway.client();
        assert_eq!(client.get("/", &[]).status, 200);
        assert!(begin.elapsed() < Duration::from_secs(2) + late.of_a_request(), "{:?}", begin.elapsed());
        gateway.signal("KILL");
        assert_eq!(gateway.wait().0.code(), None);
    }
}

/// Causes more log lines than a pipe and a queue hold, and then sends a request.
fn flood(gateway: &mut Gateway) {
    for number in 0..3000 {
        let mut client = gateway.client();
        client.write("GET /\r\n\r\n");
        let status = client.response("GET").map(|response| response.status);
        assert!(matches!(status, Ok(400)), "request {number}: {status:?}, running: {}", gateway.is_running());
    }
    assert_eq!(gateway.client().get("/", &[]).status, 200);
}

const TALKATIVE: &str = "log: {level: debug}";

#[test]
fn an_unread_log_blocks_nothing_and_reports_later_what_was_lost() {
    let (upstream, directory) = (Upstream::start(), TempDir::new().unwrap());
    let [pipe, go, out] = ["pipe", "go", "out"].map(|name| directory.path().join(name));
    // Reads nothing until it may.
    let reader = format!(
        "mkfifo {pipe}; (until [ -e {go} ]; do sleep 0.1; done; exec cat > {out}) < {pipe} & exec 2> {pipe}",
        pipe = pipe.display(),
        go = go.display(),
        out = out.display()
    );
    let mut gateway = Gateway::before(&upstream).with(TALKATIVE).shell(&reader).start();
    flood(&mut gateway);
    std::fs::write(go, "").unwrap();
    eventually("what was lost is said", || {
        let _ = gateway.client().get("/", &[]);
        std::fs::read_to_string(&out).is_ok_and(|text| text.contains("WARN lines of the log were dropped lines="))
    });
}

#[test]
fn a_log_on_a_full_disk_stops_nothing_and_neither_does_a_closed_one() {
    let upstream = Upstream::start();
    for line in ["exec 2> /dev/full", "exec 2>&-"] {
        let mut gateway = Gateway::before(&upstream).with(TALKATIVE).shell(line).start();
        flood(&mut gateway);
        assert!(gateway.is_running(), "{line}");
    }
}

#[test]
fn a_world_readable_secret_is_reported_at_the_start_as_by_check() {
    let upstream = Upstream::start();
    let store = format!(
        "store: {{redis: {{url: \"redis://127.0.0.1:{}\", password_file: \"redis password\"}}}}\non_store_failure: deny",
        free_port()
    );
    // A page that every client may see is no secret.
    let page = "error_pages: [{body_file: limit.html}]";
    let files = [("redis password", "correct horse"), ("limit.html", "<h1>later</h1>")];
    let gateway = Gateway::before(&upstream).with(&store).with(page).files(&files).start();
    gateway.expect_logged("name=readable_secret");
    let errors = gateway.errors();
    assert_eq!(errors.matches("every user of this machine can read `").count(), 1, "{errors}");
    let file = gateway.file("gateway.yaml");
    let check = || tollgate(&["check", file.to_str().unwrap()]).err;
    let warned = check();
    let expected = "warning readable_secret: store.redis.password_file: every user of this machine can read `";
    assert_eq!(warned.matches(expected).count(), 1, "{warned}");
    let secret = gateway.file("redis password");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o640)).unwrap();
    assert!(!check().contains("readable_secret"), "{}", check());
    assert!(!errors.contains("horse") && !errors.contains("file is writable by all users"), "{errors}");
    let gateway = Gateway::before(&upstream).shell("chmod 666 \"$3\"").start();
    gateway.expect_logged("file is writable by all users");
    let errors = gateway.errors();
    assert_eq!(errors.matches("file is writable by all users").count(), 1, "{errors}");
}

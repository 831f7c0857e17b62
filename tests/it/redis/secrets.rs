//! Passwords and certificates for Redis change without a restart. Also tests the settings of `tls`.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::connection::{says, statuses, store};
use crate::support::{Certificates, Gateway, Redis, SYSTEM_ROOTS, Upstream, eventually};

/// Runs a command on a connection with this password.
fn command(redis: &Redis, password: &str, words: &[&str]) {
    let url = format!("redis://:{password}@127.0.0.1:{}", redis.port);
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).unwrap();
}

/// Replaces a file in one step.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// Waits until every connection works again that Redis has closed.
#[track_caller]
fn recovers(gateway: &Gateway, user: &str) {
    let mut client = gateway.client();
    eventually("a request is decided by Redis", || client.get("/", &[("X-User", user)]).status == 200);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
}

/// Starts a gateway that reads its password from `file`, and waits until it is connected.
#[track_caller]
fn with_password_file(redis: &Redis, upstream: &Upstream, file: &Path) -> Gateway {
    let rest = format!("    password_file: {}", file.display());
    let gateway = Gateway::start(upstream, &store(&format!("redis://127.0.0.1:{}", redis.port), &rest));
    assert_eq!(statuses(&gateway), [200, 200, 429]);
    gateway
}

const KILL: [&str; 4] = ["CLIENT", "KILL", "TYPE", "normal"];

#[test]
fn a_changed_password_file_is_used_at_the_next_connection() {
    let (redis, upstream) = (Redis::start_with(&["--requirepass", "one"]), Upstream::start());
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("redis-password");
    std::fs::write(&file, "one\n").unwrap();
    let gateway = with_password_file(&redis, &upstream, &file);
    for (old, new) in [("one", "two"), ("two", "three")] {
        command(&redis, old, &["CONFIG", "SET", "requirepass", new]);
        replace(&file, &format!("{new}\r\n"));
        command(&redis, new, &KILL);
        recovers(&gateway, new);
    }
    assert!(!gateway.errors().contains("only after a restart"), "{}", gateway.errors());
}

#[test]
fn a_password_file_that_kubernetes_replaces_is_used_at_the_next_connection() {
    let (redis, upstream) = (Redis::start_with(&["--requirepass", "one"]), Upstream::start());
    let folder = TempDir::new().unwrap();
    let version = |name: &str| {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        std::fs::write(folder.path().join(name).join("redis-password"), name).unwrap();
        std::os::unix::fs::symlink(name, folder.path().join("..new")).unwrap();
        std::fs::rename(folder.path().join("..new"), folder.path().join("..data")).unwrap();
    };
    version("one");
    let file = folder.path().join("redis-password");
    std::os::unix::fs::symlink("..data/redis-password", &file).unwrap();
    let gateway = with_password_file(&redis, &upstream, &file);
    version("two");
    command(&redis, "one", &["CONFIG", "SET", "requirepass", "two"]);
    command(&redis, "two", &KILL);
    recovers(&gateway, "two");
}

#[test]
fn a_password_file_that_cannot_be_read_fails_the_connection_and_is_named() {
    let (redis, upstream) = (Redis::start_with(&["--requirepass", "one"]), Upstream::start());
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("redis-password");
    std::fs::write(&file, "one").unwrap();
    let gateway = with_password_file(&redis, &upstream, &file);
    std::fs::remove_file(&file).unwrap();
    command(&redis, "one", &KILL);
    says(&gateway, &["unusable_file", "password_file", &file.display().to_string(), "No such file"]);
    assert_eq!(statuses(&gateway), [503; 3]);
    let tries = || gateway.metric("rate_limiter_store_errors_total", &["kind=\"unusable_file\""]);
    eventually("it tries again", || tries() >= 8.0);
    // Once for each thread at most.
    assert!(gateway.errors().matches("kind=unusable_file").count() <= 2, "{}", gateway.errors());
    std::fs::write(&file, b"\xff\xfe").unwrap();
    let before = tries();
    eventually("the other mistake fails it as well", || tries() >= before + 4.0);
    std::fs::write(&file, "one").unwrap();
    recovers(&gateway, "again");
}

#[test]
fn a_reload_changes_the_password_without_a_restart() {
    let (redis, upstream) = (Redis::start_with(&["--requirepass", "one"]), Upstream::start());
    let text =
        |password: &str| store(&format!("redis://127.0.0.1:{}", redis.port), &format!("    password: {password}"));
    let gateway = Gateway::start(&upstream, &text("one"));
    assert_eq!(statuses(&gateway), [200, 200, 429]);
    command(&redis, "one", &["CONFIG", "SET", "requirepass", "two"]);
    gateway.reload(&upstream, &text("two"));
    assert!(!gateway.errors().contains("only after a restart"), "{}", gateway.errors());
    command(&redis, "two", &KILL);
    recovers(&gateway, "two");
    // Another address still needs one, and the password is that of the other address.
    gateway.reload(&upstream, &store(&format!("redis://127.0.0.2:{}", redis.port), "    password: three"));
    gateway.expect_logged("only after a restart");
    command(&redis, "two", &KILL);
    recovers(&gateway, "three");
}

#[test]
fn a_changed_client_certificate_is_used_at_the_next_connection() {
    let (old, new) = (Certificates::new(), Certificates::new());
    let ((redis, port), upstream) = (Redis::start_tls(&old), Upstream::start());
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let write = |certificates: &Certificates| {
        replace(&path("gw.pem"), &certificates.client.0);
        replace(&path("gw.key"), &certificates.client.1);
    };
    write(&old);
    std::fs::write(path("ca.pem"), &old.authority).unwrap();
    std::fs::write(path("clients.pem"), &new.authority).unwrap();
    let files = [("ca_file", "ca.pem"), ("cert_file", "gw.pem"), ("key_file", "gw.key")];
    let files = files.map(|(key, name)| format!("{key}: {}", path(name).display())).join(", ");
    let text = store(&format!("rediss://localhost:{port}"), &format!("    tls: {{{files}}}"));
    let gateway = Gateway::start(&upstream, &text);
    assert_eq!(statuses(&gateway), [200, 200, 429], "{}", gateway.errors());
    let clients: PathBuf = path("clients.pem");
    redis.command::<()>(&["CONFIG", "SET", "tls-ca-cert-file", clients.to_str().unwrap()]);
    write(&new);
    redis.command::<()>(&KILL);
    recovers(&gateway, "new");
    // The key of another certificate cannot be used.
    replace(&path("gw.key"), &old.client.1);
    redis.command::<()>(&KILL);
    says(&gateway, &["unusable_file", "key_file"]);
    write(&new);
    recovers(&gateway, "newer");
}

#[test]
fn tls_true_trusts_the_authorities_of_the_system_and_no_others() {
    let certificates = Certificates::new();
    let ((redis, port), upstream) = (Redis::start_tls(&certificates), Upstream::start());
    redis.command::<()>(&["CONFIG", "SET", "tls-auth-clients", "no"]);
    for scheme in ["redis", "rediss"] {
        let text = store(&format!("{scheme}://localhost:{port}"), "    tls: true");
        let others = Certificates::new();
        let gateway = Gateway::before(&upstream).with(&text).files(&[(SYSTEM_ROOTS, &others.authority)]).start();
        assert_eq!(statuses(&gateway), [503; 3], "{scheme}");
        says(&gateway, &["unreachable", "TLS: ", "invalid peer certificate"]);
        let gateway = Gateway::before(&upstream).with(&text).files(&[(SYSTEM_ROOTS, &certificates.authority)]).start();
        recovers(&gateway, scheme);
    }
}

#[test]
fn server_name_is_the_name_that_the_certificate_must_have() {
    let certificates = Certificates::new();
    let ((redis, port), upstream) = (Redis::start_tls(&certificates), Upstream::start());
    redis.command::<()>(&["CONFIG", "SET", "tls-auth-clients", "no"]);
    let files = [("ca.pem", &*certificates.authority)];
    let start = |name: &str| {
        let tls = format!("    tls: {{ca_file: ca.pem, server_name: {name}}}");
        Gateway::before(&upstream).with(&store(&format!("redis://127.0.0.1:{port}"), &tls)).files(&files).start()
    };
    recovers(&start("localhost"), "a");
    let gateway = start("redis.internal");
    assert_eq!(statuses(&gateway), [503; 3]);
    says(&gateway, &["unreachable", "it is not for `redis.internal`, but for localhost"]);
}

#[test]
fn without_verification_any_certificate_will_do_but_never_the_clear() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let ((redis, port), upstream) = (Redis::start_tls(&certificates), Upstream::start());
    redis.command::<()>(&["CONFIG", "SET", "tls-auth-clients", "no"]);
    let files = [("ca.pem", &*others.authority)];
    let start = |port: u16| {
        let text = store(&format!("rediss://127.0.0.1:{port}"), "    tls: {ca_file: ca.pem, verify: false}");
        Gateway::before(&upstream).with(&text).files(&files).start()
    };
    let gateway = start(port);
    recovers(&gateway, "a");
    gateway.expect_logged("unverified_server");
    let gateway = start(redis.port);
    assert_eq!(statuses(&gateway), [503; 3]);
    says(&gateway, &["unreachable", "TLS"]);
}

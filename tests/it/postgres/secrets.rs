//! Passwords and certificates of a PostgreSQL store.

use std::path::Path;

use tempfile::TempDir;

use crate::support::{Certificates, Gateway, Postgres, Upstream, eventually};

const RULES: &str = "rules:\n  - {name: one, limit_keys: [], algorithm_config: {rate: 1000/day}}\n";

fn disconnect(postgres: &Postgres) {
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tollgate'");
}

#[track_caller]
fn says(gateway: &Gateway, what: &str) {
    eventually(what, || gateway.errors().contains(what));
}

#[test]
fn another_password_needs_no_restart() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    postgres.sql("ALTER ROLE tollgate PASSWORD 'one'");
    postgres.set_hba("host all tollgate 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n");
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "one\n").unwrap();
    let keys = format!(", timeout: 2s, password_file: {}", file.display());
    let gateway = Gateway::start(&upstream, &(postgres.store_with(&keys, "deny") + RULES));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    postgres.sql("ALTER ROLE tollgate PASSWORD 'two'");
    disconnect(&postgres);
    says(&gateway, "kind=unauthorized");
    gateway.expect("rate_limiter_store_up", &[], 0.0);
    std::fs::write(&file, "two\n").unwrap();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    assert!(!gateway.errors().contains("one\n") && !gateway.errors().contains("two\n"));
}

#[test]
fn a_reload_changes_the_user_and_the_password_file_without_a_restart() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    postgres.sql("ALTER ROLE tollgate PASSWORD 'one'");
    postgres.sql("CREATE ROLE other LOGIN PASSWORD 'two' IN ROLE tollgate");
    postgres.set_hba("host all admin 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
    let folder = TempDir::new().unwrap();
    let text = |user: &str, host: &str| {
        let file = folder.path().join(user);
        let place = format!("url: \"postgres://{user}@{host}:{}/limits\", timeout: 2s", postgres.port);
        let store = format!("store: {{postgres: {{{place}, password_file: {}}}}}\n", file.display());
        format!("{store}on_store_failure: deny\n{RULES}")
    };
    std::fs::write(folder.path().join("tollgate"), "one\n").unwrap();
    std::fs::write(folder.path().join("other"), "two\n").unwrap();
    let gateway = Gateway::start(&upstream, &text("tollgate", "127.0.0.1"));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let users = || postgres.sql("SELECT DISTINCT usename FROM pg_stat_activity WHERE application_name = 'tollgate'");
    assert_eq!(users(), "tollgate");
    gateway.reload(&upstream, &text("other", "127.0.0.1"));
    // A connection that is up stays as it is.
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    assert_eq!(users(), "tollgate");
    postgres.sql("ALTER ROLE tollgate NOLOGIN");
    disconnect(&postgres);
    eventually("it logs in as the other user", || users() == "other");
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    eventually("the database decides", || client.get("/", &[]).status == 200);
    assert!(!gateway.errors().contains("only after a restart"), "{}", gateway.errors());
    // Another host needs one, and its login is not used before.
    gateway.reload(&upstream, &text("tollgate", "localhost"));
    gateway.expect_logged("only after a restart");
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'other'");
    eventually("it is back as the other user", || users() == "other");
}

/// Returns the gateway's TLS settings. The certificate authority is written to a file.
fn tls(folder: &Path, authority: &str) -> String {
    std::fs::write(folder.join("ca.pem"), authority).unwrap();
    format!("tls: {{ca_file: {}}}", folder.join("ca.pem").display())
}

#[test]
fn connections_are_encrypted_and_verified_or_fail() {
    let certificates = Certificates::shared();
    let (postgres, upstream) = (Postgres::start_tls(certificates), Upstream::start());
    postgres.settings();
    postgres.set_hba("hostssl all tollgate 127.0.0.1/32 trust\nhost all admin 127.0.0.1/32 trust\n");
    let folder = TempDir::new().unwrap();
    let start = |host: &str, keys: &str| {
        let url = format!("postgres://tollgate@{host}:{}/limits", postgres.port);
        let store = format!("store: {{postgres: {{url: \"{url}\", timeout: 2s{keys}}}}}\non_store_failure: deny\n");
        Gateway::start(&upstream, &(store + RULES))
    };
    let keys = format!(", {}", tls(folder.path(), &certificates.authority));
    let gateway = start("localhost", &keys);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    let encrypted =
        "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'tollgate'";
    assert_eq!(postgres.sql(encrypted), "t");
    // In the clear, for another name, by another authority.
    says(&start("localhost", ""), "no encryption");
    says(&start("127.0.0.1", &keys), "TLS: invalid peer certificate");
    let other = TempDir::new().unwrap();
    let unknown = format!(", {}", tls(other.path(), &Certificates::new().authority));
    says(&start("localhost", &unknown), "TLS: invalid peer certificate");
    let named = keys.replace("tls: {", "tls: {server_name: localhost, ");
    start("127.0.0.1", &named).expect("rate_limiter_store_up", &[], 1.0);
}

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

/// The gateway's TLS settings, with one file written for each.
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

//! `tollgate store init`: the tables and their permissions, and the messages of a gateway that cannot use the tables.

use crate::support::{ConfigDirectory, Gateway, Postgres, Upstream, eventually, tollgate};

const RULES: &str = "rules:\n  - {name: one, limit_keys: [], algorithm_config: {rate: 3/day}}\n";

/// Writes a configuration with this database. `keys` are added to `postgres`.
fn file(postgres: &Postgres, keys: &str) -> ConfigDirectory {
    let directory = ConfigDirectory::new();
    let text = postgres.store_with(keys, "deny") + "upstream: http://127.0.0.1:1\n" + RULES;
    std::fs::write(directory.path().join("gateway.yaml"), text).unwrap();
    directory
}

#[track_caller]
fn init(postgres: &Postgres, keys: &str) {
    let directory = file(postgres, keys);
    postgres.init(&directory.path().join("gateway.yaml"));
}

#[test]
fn the_statements_can_be_repeated_and_change_the_durability_without_forgetting() {
    let postgres = Postgres::start();
    let persistence = || postgres.sql("SELECT relpersistence FROM pg_class WHERE relname = 'tollgate_bucket'");
    for (durability, expected) in [("async", "p"), ("async", "p"), ("none", "u"), ("none", "u"), ("sync", "p")] {
        init(&postgres, &format!(", durability: {durability}"));
        assert_eq!(persistence(), expected, "{durability}");
        postgres.sql("INSERT INTO tollgate_bucket (key) VALUES ('a') ON CONFLICT DO NOTHING");
        assert_eq!(postgres.sql("SELECT count(*) FROM tollgate_bucket"), "1");
    }
    // The same statements as text.
    let directory = file(&postgres, "");
    let path = directory.path().join("gateway.yaml");
    let printed = tollgate(&["store", "init", "--print", "-c", path.to_str().unwrap()]);
    postgres.sql(&printed.out);
    assert!(printed.out.contains("CREATE TABLE IF NOT EXISTS \"tollgate_bucket\""), "{}", printed.out);
}

#[test]
fn the_role_can_use_its_tables_and_nothing_else() {
    let postgres = Postgres::start();
    postgres.sql("CREATE TABLE secrets (a int); INSERT INTO secrets VALUES (1)");
    init(&postgres, ", table: limits.bucket");
    let may = |text: &str| postgres.sql_as("tollgate", text);
    for text in [
        "INSERT INTO limits.bucket (key) VALUES ('a')",
        "UPDATE limits.bucket SET until = 1",
        "SELECT * FROM limits.bucket FOR UPDATE",
        "DELETE FROM limits.bucket",
        "DELETE FROM limits.bucket_gateway",
    ] {
        assert!(may(text).is_ok(), "{text}: {:?}", may(text));
    }
    for text in [
        "SELECT * FROM secrets",
        "TRUNCATE limits.bucket",
        "DROP TABLE limits.bucket",
        "ALTER TABLE limits.bucket ADD COLUMN b int",
        "CREATE TABLE limits.other (a int)",
        "CREATE TABLE other (a int)",
        "CREATE ROLE other",
        "COMMENT ON TABLE limits.bucket IS 'x'",
    ] {
        let refused = may(text).unwrap_err();
        assert!(refused.contains("permission denied") || refused.contains("must be owner"), "{text}: {refused}");
    }
}

#[test]
fn a_gateway_names_what_its_tables_lack_and_goes_on_once_they_have_it() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.sql("CREATE ROLE tollgate LOGIN");
    // A gateway logs each kind of failure once, so each sees one.
    let start = || Gateway::start(&upstream, &(postgres.store("deny") + RULES));
    let says = |what: &str| {
        let gateway = start();
        eventually(what, || gateway.errors().contains(what));
        assert_eq!(gateway.client().get("/", &[]).status, 503);
        gateway
    };
    says("there is no table `tollgate_bucket`: run `tollgate store init`");
    postgres.sql("CREATE TABLE tollgate_bucket (key text)");
    says("`tollgate_bucket` is not a table of Tollgate's");
    postgres.sql("DROP TABLE tollgate_bucket");
    init(&postgres, ", durability: none");
    let gateway =
        says("`tollgate_bucket` is unlogged, which is not what `durability: async` wants: run `tollgate store init`");
    init(&postgres, "");
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    for (version, what) in [(0, "older than 1: run `tollgate store init`"), (2, "newer than 1: update this gateway")] {
        postgres.sql(&format!("COMMENT ON TABLE tollgate_bucket IS 'Tollgate''s buckets, schema {version}'"));
        says(what);
    }
    // What is newer is not changed back.
    let directory = file(&postgres, "");
    let refused = postgres.try_init(&directory.path().join("gateway.yaml"));
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("of a newer Tollgate"), "{refused:?}");
    postgres.sql("COMMENT ON TABLE tollgate_bucket IS 'Tollgate''s buckets, schema 1'");
    postgres.sql("REVOKE INSERT, DELETE ON tollgate_bucket FROM tollgate");
    let gateway =
        says("the user lacks DELETE on tollgate_bucket, INSERT on tollgate_bucket: run `tollgate store init`");
    init(&postgres, "");
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    assert_eq!(gateway.client().get("/", &[]).status, 200);
}

#[test]
fn an_initialization_says_what_keeps_gateways_from_logging_in() {
    let postgres = Postgres::start();
    let directory = file(&postgres, "");
    let path = directory.path().join("gateway.yaml");
    let init = |expected: &str| {
        let done = postgres.try_init(&path);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success() && said.contains(expected), "{expected}: {said}");
        assert_eq!(said.is_empty(), expected.is_empty(), "{said}");
    };
    init("");
    postgres.sql("ALTER ROLE tollgate NOLOGIN");
    init("gateways cannot log in as tollgate: unauthorized: ");
    init("write the same password to `store.postgres.password_file`: ALTER ROLE \"tollgate\" LOGIN PASSWORD 'SECRET';");
    // The key that the file has is named.
    let directory = file(&postgres, ", password: wrong");
    let done = postgres.try_init(&directory.path().join("gateway.yaml"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("write the same password to `store.postgres.password`: "), "{said}");
    // The administrator has no password.
    postgres.set_hba("host all all 127.0.0.1/32 scram-sha-256\n");
    eventually("a password is asked for", || {
        let refused = postgres.try_init(&path);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let hint = "hint: --password-file FILE names a file with the password of ";
        !refused.status.success() && said.contains("password missing") && said.contains(hint)
    });
}

#[test]
fn an_initialization_that_is_not_permitted_says_who_may() {
    let postgres = Postgres::start();
    postgres.sql("CREATE ROLE tollgate LOGIN");
    let directory = file(&postgres, "");
    let path = directory.path().join("gateway.yaml");
    let refused = tollgate(&["store", "init", "-c", path.to_str().unwrap()]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("forbidden: permission denied"), "{}", refused.err);
    assert!(refused.err.contains("--user"), "{}", refused.err);
}

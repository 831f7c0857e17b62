//! Messages that PostgreSQL sends beside its answers: each is logged or printed once, at its own level.

use crate::support::{ConfigDirectory, Gateway, Postgres, Upstream, tollgate};

const RULES: &str = "rules:\n  - {name: one, limit_keys: [], algorithm_config: {rate: 300/day}}\n";

/// Makes the server send a warning at each login to the database.
fn warn_at_login(postgres: &Postgres) {
    postgres.sql("UPDATE pg_database SET datcollversion = 'another' WHERE datname = 'limits'");
}

/// What the server says then. Its words depend on whether its collation has a version.
const AT_LOGIN: &str = "database \\\"limits\\\" has";

#[test]
fn a_gateway_logs_messages_at_their_level() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    warn_at_login(&postgres);
    postgres.sql(
        "CREATE FUNCTION speaks() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE NOTICE 'of level notice'; RAISE INFO 'of level info'; RAISE WARNING 'of level warning';
         RAISE LOG 'of level log'; RAISE DEBUG 'of level debug'; RETURN NULL; END $$;
         CREATE TRIGGER speaks BEFORE UPDATE ON tollgate_bucket FOR EACH STATEMENT EXECUTE FUNCTION speaks();
         ALTER ROLE tollgate SET client_min_messages = debug1",
    );
    let gateway = Gateway::start(&upstream, &(postgres.store("deny") + RULES));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    gateway.expect_logged("of level log");
    let errors = gateway.errors();
    for (text, level) in [
        (AT_LOGIN, "WARN store warns"),
        ("of level notice", "INFO store notes"),
        ("of level info", "INFO store notes"),
        ("of level warning", "WARN store warns"),
        ("of level log", "INFO store notes"),
    ] {
        let lines: Vec<&str> = errors.lines().filter(|line| line.contains(text)).collect();
        assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(level)), "{text}: {lines:?}\n{errors}");
    }
    // At its own level, which is not logged here.
    assert!(!errors.contains("of level debug"), "{errors}");
}

#[test]
fn commands_print_messages_with_their_level() {
    let postgres = Postgres::start();
    let directory = ConfigDirectory::new();
    let file = directory.path().join("gateway.yaml");
    std::fs::write(&file, postgres.store("deny") + "upstream: http://127.0.0.1:1\n" + RULES).unwrap();
    postgres.init(&file);
    warn_at_login(&postgres);
    let again = postgres.try_init(&file);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success(), "{said}");
    assert!(said.contains(": notice: relation \"tollgate_bucket\" already exists, skipping (42P07)\n"), "{said}");
    // Of the administrator, and of the gateway's user.
    assert_eq!(said.matches(": warning: database \"limits\" has").count(), 2, "{said}");
    let shown = tollgate(&["bucket", "show", "one", "-c", file.to_str().unwrap()]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    assert!(shown.err.contains(": warning: database \"limits\" has"), "{}", shown.err);
}

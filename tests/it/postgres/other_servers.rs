//! Servers that speak PostgreSQL's protocol. The gateway looks at their features, not at their version: YugabyteDB reports
//! 11.2 or 15.2.

use crate::support::{Gateway, Postgres, Upstream, eventually};

const RULES: &str = "rules:\n  - {name: one, limit_keys: [], algorithm_config: {rate: 3/day}}\n";

/// Makes a server report this version to the gateways' user. For this user, the function takes precedence over the server's
/// own.
fn pretend(postgres: &Postgres, version: &str, number: u32) {
    postgres.sql(&format!(
        "CREATE SCHEMA pretended; GRANT USAGE ON SCHEMA pretended TO tollgate;
         CREATE FUNCTION pretended.current_setting(name text) RETURNS text LANGUAGE sql AS $$ SELECT CASE name
           WHEN 'server_version' THEN '{version}' WHEN 'server_version_num' THEN '{number}'
           ELSE pg_catalog.current_setting(name) END $$;
         ALTER ROLE tollgate SET search_path = pretended, pg_catalog, public"
    ));
}

#[track_caller]
fn is_used(version: &str, number: u32) {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    pretend(&postgres, version, number);
    let gateway = Gateway::start(&upstream, &(postgres.store("deny") + RULES));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    let statuses = [(); 4].map(|()| client.get("/", &[]).status);
    assert_eq!(statuses, [200, 200, 200, 429], "{version}: {}", gateway.errors());
    // What was tried has left nothing, neither a bucket nor a gateway.
    assert_eq!(postgres.sql("SELECT count(*) FROM tollgate_bucket WHERE key <> ''"), "1");
    gateway.expect("rate_limiter_live_gateways", &[], 1.0);
}

#[test]
fn yugabytedb_is_used_whatever_its_version() {
    is_used("11.2-YB-2.21.1.0-b0", 110_002);
    is_used("15.2-YB-2025.1.0.0-b0", 150_002);
}

#[test]
fn a_server_that_cannot_run_a_statement_says_which() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    pretend(&postgres, "11.2-YB-2.13.0.0-b0", 110_002);
    postgres.sql(
        "CREATE FUNCTION lacks() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE 'this is not supported yet' USING ERRCODE = 'feature_not_supported'; END $$;
         CREATE TRIGGER lacks BEFORE UPDATE ON tollgate_bucket FOR EACH STATEMENT EXECUTE FUNCTION lacks()",
    );
    let gateway = Gateway::start(&upstream, &(postgres.store("deny") + RULES));
    eventually("it says so", || {
        let errors = gateway.errors();
        errors.contains("11.2-YB-2.13.0.0-b0, must do what PostgreSQL 14 does: this is not supported yet (0A000)")
    });
    assert_eq!(gateway.client().get("/", &[]).status, 503);
    postgres.sql("DROP TRIGGER lacks ON tollgate_bucket");
    gateway.expect("rate_limiter_store_up", &[], 1.0);
}

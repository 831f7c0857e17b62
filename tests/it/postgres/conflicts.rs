//! Transactions that the server rolls back because of conflicts are repeated once, whichever statement fails.

use std::time::Duration;

use stores::postgres::Settings;
use stores::remote::fault_injection::Combining;

use super::histories::nothing_is_granted_too_much_or_withheld;
use super::side_work::refused_requests_leave_no_rows;
use crate::support::{Gateway, Postgres, Upstream, eventually, print_measured};

/// The server's default isolation. Tollgate's transactions use another one.
const SERIALIZABLE: &str = "default_transaction_isolation = 'serializable'";

/// A trigger that makes the first attempt of every transaction fail and the second succeed. It uses a session lock, because
/// this lock stays after a rollback.
const FAIL_ONCE: &str = "
CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF current_setting('conflict.passed', true) = pg_current_xact_id()::text THEN RETURN NULL; END IF;
  IF EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) THEN
    PERFORM pg_advisory_unlock_all();
    PERFORM set_config('conflict.passed', pg_current_xact_id()::text, true);
    RETURN NULL;
  END IF;
  PERFORM pg_advisory_lock(pg_backend_pid());
  RAISE EXCEPTION 'a made-up conflict' USING ERRCODE = '40001';
END $$;";

#[track_caller]
fn are_exact_in_spite_of_conflicts(trigger: &str) {
    let postgres = Postgres::start_with(SERIALIZABLE);
    let settings = postgres.settings();
    postgres.sql(&format!("{FAIL_ONCE} CREATE {trigger} EXECUTE FUNCTION conflict()"));
    conflicts_change_nothing(&postgres, &settings);
}

#[track_caller]
fn conflicts_change_nothing(postgres: &Postgres, settings: &Settings) {
    nothing_is_granted_too_much_or_withheld(postgres, settings, Combining::On);
    let conflicts = postgres.log().matches("a made-up conflict").count();
    print_measured(&format!("PostgreSQL: {conflicts} serialization failures"));
    assert!(conflicts > 100, "{conflicts}");
}

#[test]
fn writes_that_fail_once_are_repeated_exactly() {
    are_exact_in_spite_of_conflicts("TRIGGER conflict BEFORE UPDATE ON tollgate_bucket FOR EACH STATEMENT");
}

#[test]
fn commits_that_fail_once_are_repeated_exactly() {
    are_exact_in_spite_of_conflicts(
        "CONSTRAINT TRIGGER conflict AFTER UPDATE ON tollgate_bucket DEFERRABLE INITIALLY DEFERRED FOR EACH ROW",
    );
}

#[test]
fn insertions_that_fail_once_are_repeated_exactly() {
    are_exact_in_spite_of_conflicts("TRIGGER conflict BEFORE INSERT ON tollgate_bucket FOR EACH STATEMENT");
}

/// Conflicts in reading statements, like the read restarts of YugabyteDB. Triggers do not exist for these, so they fail in
/// functions that the statements call.
#[track_caller]
fn reads_that_fail_once_are_repeated_exactly(statements: &str) {
    let postgres = Postgres::start_with(SERIALIZABLE);
    let settings = postgres.settings();
    postgres.sql(&format!(
        "CREATE FUNCTION passes(reads text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
           IF current_query() NOT LIKE reads || '%'
             OR current_setting('conflict.passed', true) = pg_current_xact_id()::text THEN RETURN true; END IF;
           IF EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) THEN
             PERFORM pg_advisory_unlock_all();
             PERFORM set_config('conflict.passed', pg_current_xact_id()::text, true);
             RETURN true;
           END IF;
           PERFORM pg_advisory_lock(pg_backend_pid());
           RAISE EXCEPTION 'a made-up conflict: Restart read required' USING ERRCODE = '40001';
         END $$; {statements}"
    ));
    conflicts_change_nothing(&postgres, &settings);
}

#[test]
fn locks_whose_read_has_to_restart_are_repeated_exactly() {
    reads_that_fail_once_are_repeated_exactly(
        "ALTER TABLE tollgate_bucket ENABLE ROW LEVEL SECURITY;
         CREATE POLICY all_rows ON tollgate_bucket USING (true);
         CREATE POLICY restart ON tollgate_bucket AS RESTRICTIVE FOR SELECT USING (passes('SELECT key, state'))",
    );
}

#[test]
fn clocks_whose_read_has_to_restart_are_repeated_exactly() {
    reads_that_fail_once_are_repeated_exactly(
        "CREATE SCHEMA restarting; GRANT USAGE ON SCHEMA restarting TO tollgate;
         CREATE FUNCTION restarting.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
         $$ SELECT CASE WHEN public.passes('SELECT (extract') THEN pg_catalog.clock_timestamp() END $$;
         ALTER ROLE tollgate SET search_path = restarting, pg_catalog, public",
    );
}

#[test]
fn removals_of_unused_rows_that_fail_once_are_repeated() {
    let postgres = Postgres::start_with(SERIALIZABLE);
    let settings = postgres.settings();
    postgres.sql(&format!(
        "{FAIL_ONCE} CREATE TRIGGER conflict BEFORE DELETE ON tollgate_bucket FOR EACH STATEMENT EXECUTE FUNCTION conflict()"
    ));
    refused_requests_leave_no_rows(&postgres, settings);
    assert!(postgres.log().contains("a made-up conflict"));
}

/// Other statements are repeated too: the gateway still counts as running, and old rows are removed.
#[test]
fn heartbeats_and_removals_of_old_rows_that_fail_once_are_repeated() {
    let (postgres, upstream) = (Postgres::start_with(SERIALIZABLE), Upstream::start());
    postgres.settings();
    postgres.sql(&format!(
        "{FAIL_ONCE} CREATE TRIGGER conflict BEFORE INSERT ON tollgate_bucket_gateway FOR EACH STATEMENT EXECUTE FUNCTION conflict();
         CREATE TRIGGER conflict BEFORE DELETE ON tollgate_bucket FOR EACH STATEMENT EXECUTE FUNCTION conflict();
         INSERT INTO tollgate_bucket (key, state, until)
         SELECT decode(md5(n::text), 'hex'), '\\x00', n FROM generate_series(1, 10) AS n"
    ));
    let text = format!(
        "{}threads: 1\nrules:\n  - {{name: one, limit_keys: [], algorithm_config: {{rate: 1000/day}}}}\n",
        postgres.store("deny")
    );
    let builder = Gateway::before(&upstream).with(&text).short_heartbeats();
    let gateway = builder.interval("store_clean", Duration::from_millis(200)).start();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    eventually("old rows are removed", || postgres.sql("SELECT count(*) FROM tollgate_bucket WHERE key <> ''") == "0");
    gateway.expect("rate_limiter_live_gateways", &[], 1.0);
    assert!(postgres.log().contains("a made-up conflict"));
    // A conflict of these is reported as an error of the store only if it is met twice.
    assert!(!gateway.errors().contains("a made-up conflict"), "{}", gateway.errors());
}

#[test]
fn a_transaction_that_always_fails_is_tried_twice() {
    let (postgres, upstream) = (Postgres::start_with(SERIALIZABLE), Upstream::start());
    postgres.settings();
    postgres.sql(
        "CREATE SEQUENCE attempts; GRANT USAGE ON attempts TO tollgate;
         CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           PERFORM nextval('attempts');
           RAISE EXCEPTION 'a made-up conflict' USING ERRCODE = '40001';
         END $$;
         CREATE TRIGGER conflict BEFORE UPDATE ON tollgate_bucket FOR EACH STATEMENT EXECUTE FUNCTION conflict()",
    );
    let rules = "rules:\n  - {name: one, limit_keys: [], algorithm_config: {rate: 1000/day}}\n";
    let gateway = Gateway::start(&upstream, &(postgres.store("deny") + rules));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.get("/", &[]).status, 503);
    }
    assert_eq!(postgres.sql("SELECT last_value FROM attempts"), "6");
    gateway.expect("rate_limiter_store_errors_total", &["kind=\"busy\""], 3.0);
    postgres.sql("DROP TRIGGER conflict ON tollgate_bucket");
    eventually("it decides again", || client.get("/", &[]).status == 200);
    // The connection was good all the time.
    assert!(!gateway.errors().contains("store is down"), "{}", gateway.errors());
}

//! Old rows are removed by one gateway at a time, so the tables stay small.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Gateway, Postgres, Upstream, eventually, now, print_measured, short_or_long};

/// Counts the rows, except the row in which gateways note their progress.
const ROWS: &str = "SELECT count(*) FROM tollgate_bucket WHERE key <> ''";

const RULES: &str =
    "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rps: 1000, burst: 1000}}\n";

#[test]
fn rows_of_buckets_that_are_full_again_are_removed() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let start = || {
        let builder = Gateway::before(&upstream).with(&(postgres.store("deny") + RULES));
        builder.interval("store_clean", Duration::from_millis(200)).start()
    };
    let gateways = [start(), start()];
    for gateway in &gateways {
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    // More than one piece, of which every tenth lasts.
    postgres.sql(
        "INSERT INTO tollgate_bucket (key, state, until)
         SELECT decode(md5(n::text), 'hex'), '\\x00', CASE WHEN n % 10 = 0 THEN 9000000000000000 ELSE n END
         FROM generate_series(1, 9000) AS n",
    );
    let mut client = gateways[0].client();
    assert_eq!(client.get("/", &[("X-User", "a")]).status, 200);
    eventually("only lasting rows are left", || postgres.sql(ROWS) == "900");
    assert_eq!(client.get("/", &[("X-User", "a")]).status, 200);
}

#[test]
fn many_gateways_visit_the_rows_as_often_as_one() {
    const EVERY: Duration = Duration::from_secs(1);
    const ROUNDS: usize = 8;
    let (postgres, upstream) = (Postgres::start_with("log_statement = 'all'"), Upstream::start());
    postgres.settings();
    // None is removed, and they are one piece.
    postgres.sql(
        "INSERT INTO tollgate_bucket (key, state, until)
         SELECT decode(md5(n::text), 'hex'), '\\x00', 9000000000000000 FROM generate_series(1, 100) AS n",
    );
    let builder = || Gateway::before(&upstream).with(&(postgres.store("deny") + RULES));
    let _gateways = [(); 4].map(|()| builder().interval("store_clean", EVERY).start());
    let rounds = || postgres.log().matches("piece AS (").count();
    let (begin, before) = (now(), rounds());
    eventually("they visit all rows many times", || rounds() >= before + ROUNDS);
    let took = begin.elapsed();
    // A pause of three quarters of the time follows each of them but the last.
    let least = EVERY.mul_f64(0.75) * (u32::try_from(ROUNDS).unwrap() - 1);
    assert!(took >= least, "{ROUNDS} rounds of 4 gateways in {took:?}, not {least:?}");
}

#[test]
fn a_gateway_goes_on_where_another_one_ended() {
    let (postgres, upstream) = (Postgres::start_with("log_statement = 'all'"), Upstream::start());
    postgres.settings();
    // It has visited the lower keys, and is not heard of any more.
    postgres.sql(
        "INSERT INTO tollgate_bucket (key, state, until)
         SELECT decode(lpad(to_hex(n), 32, '0'), 'hex'), '\\x00', n FROM generate_series(1, 100) AS n;
         INSERT INTO tollgate_bucket (key, state, until) VALUES
         ('', decode(repeat('07', 16), 'hex') || decode(lpad(to_hex(50), 32, '0'), 'hex'), 1)",
    );
    let builder = Gateway::before(&upstream).with(&(postgres.store("deny") + RULES));
    let _gateway = builder.interval("store_clean", Duration::from_millis(400)).start();
    eventually("all are removed", || postgres.sql(ROWS) == "0");
    let from_the_next = format!("$3 = '\\x{:032x}'", 50);
    assert!(postgres.log().contains(&from_the_next), "{}", postgres.log());
}

#[test]
fn rows_with_high_keys_are_removed_although_no_run_visits_all_rows() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    // Of the 5 pieces, those with old rows come last; every second one fails, which ends a run.
    postgres.sql(
        "INSERT INTO tollgate_bucket (key, state, until)
         SELECT decode(lpad(to_hex(n), 32, '0'), 'hex'), '\\x00', CASE WHEN n <= 9000 THEN 9000000000000000 ELSE n END
         FROM generate_series(1, 9500) AS n",
    );
    postgres.sql("CREATE SEQUENCE pieces");
    postgres.sql("GRANT USAGE ON SEQUENCE pieces TO PUBLIC");
    postgres.sql(
        "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN IF nextval('pieces') % 2 = 0 THEN RAISE 'a test wants this'; END IF; RETURN NULL; END $$",
    );
    postgres.sql("CREATE TRIGGER fails BEFORE DELETE ON tollgate_bucket FOR EACH STATEMENT EXECUTE FUNCTION fails()");
    let builder = Gateway::before(&upstream).with(&(postgres.store("deny") + RULES));
    let _gateway = builder.interval("store_clean", Duration::from_millis(100)).start();
    eventually("only lasting rows are left", || postgres.sql(ROWS) == "9000");
}

#[test]
fn rows_are_removed_while_no_synchronous_replica_answers_and_no_process_waits_for_a_lock_on_the_table() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    postgres.set("synchronous_standby_names", "nobody");
    eventually("the setting is in force", || postgres.sql("SHOW synchronous_standby_names") == "nobody");
    postgres.sql(
        "SET synchronous_commit = off;
         INSERT INTO tollgate_bucket (key, state, until)
         SELECT decode(md5(n::text), 'hex'), '\\x00', n FROM generate_series(1, 10) AS n",
    );
    let builder = Gateway::before(&upstream).with(&(postgres.store("deny") + RULES));
    let _gateway = builder.interval("store_clean", Duration::from_millis(200)).start();
    eventually("old rows are removed", || postgres.sql(ROWS) == "0");
    postgres.hold("BEGIN; LOCK TABLE tollgate_bucket IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(30)");
    eventually("it gives up before the lock is released", || {
        let log = postgres.log();
        let cancelled = log.split("canceling statement due to lock timeout").skip(1);
        cancelled.into_iter().any(|what| what.lines().nth(1).is_some_and(|line| line.contains("AS cleaning")))
    });
}

#[test]
fn tables_under_a_flood_of_new_buckets_stay_bounded() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let builder = Gateway::before(&upstream).with(&(postgres.store_with(", timeout: 10s", "deny") + RULES));
    let gateway = builder.interval("store_clean", Duration::from_millis(500)).start();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let lasting = short_or_long(Duration::from_secs(4), Duration::from_secs(600));
    // The long form goes on until there were a million.
    let least = short_or_long(0, 1_000_000);
    let (begin, all) = (now(), AtomicU64::new(0));
    let goes_on = || begin.elapsed() < lasting || all.load(Ordering::Relaxed) < least;
    let pause = short_or_long(Duration::from_millis(200), Duration::from_secs(10));
    let size = || -> u64 { postgres.sql("SELECT pg_total_relation_size('tollgate_bucket')").parse().unwrap() };
    let index = || -> u64 { postgres.sql("SELECT pg_indexes_size('tollgate_bucket')").parse().unwrap() };
    let sizes = std::thread::scope(|scope| {
        let caller = || {
            let mut client = gateway.client();
            while goes_on() {
                // Many at once, so that batches are large.
                let request = |_| format!("GET / HTTP/1.1\r\nHost: a\r\nX-User: {}\r\n\r\n", fastrand::u64(..));
                client.write(&(0..16).map(request).collect::<String>());
                assert!((0..16).all(|_| client.response("GET").unwrap().status == 200));
                all.fetch_add(16, Ordering::Relaxed);
            }
        };
        let callers: Vec<_> = (0..32).map(|_| scope.spawn(caller)).collect();
        let mut sizes = Vec::new();
        while goes_on() {
            sizes.push(size());
            std::thread::sleep(pause);
        }
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        sizes
    });
    let (first, last) = sizes.split_at(sizes.len() / 2);
    let most = |sizes: &[u64]| sizes.iter().copied().max().unwrap_or_default() / 1024;
    print_measured(&format!(
        "PostgreSQL: {} new buckets in {:?}; table and index at most {} KiB in the first half, {} KiB in the second, of \
         it the index {} KiB at the end",
        all.load(Ordering::Relaxed),
        begin.elapsed(),
        most(first),
        most(last),
        index() / 1024
    ));
    assert!(most(last) <= 2 * most(first) + 4096, "{sizes:?}");
    eventually("all rows are removed", || postgres.sql(ROWS) == "0");
}

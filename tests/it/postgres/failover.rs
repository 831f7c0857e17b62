//! Of several hosts, the gateway uses the one that accepts writes. Gateways under load follow the promotion of a replica. The
//! amount that they grant twice is within the bound of `durability`.

use std::time::Duration;

use stores::postgres::{Durability, Settings, schema};

use crate::exactness::failover::{Back, Failover};
use crate::exactness::history::{Numbers, Sample, rules};
use crate::redis::faults_under_load::pause;
use crate::support::{Gateway, Postgres, Upstream, eventually, now, print_measured, short_or_long};

/// The rate is so low that a bucket is far from full after an outage. So data that a replica lacks becomes visible.
const RATE: u64 = 10;
const BURST: u64 = 40;

/// A primary with a replica, and the tables for this durability.
pub(crate) struct Pair {
    pub primary: Postgres,
    pub replica: Postgres,
    durability: Durability,
}

impl Pair {
    #[track_caller]
    pub(crate) fn start(durability: Durability) -> Pair {
        let primary = Postgres::start();
        let settings = Settings { durability, ..primary.settings() };
        primary.sql(&schema::statements(&settings));
        let replica = primary.replica();
        if durability == Durability::Sync {
            primary.set("synchronous_standby_names", "'*'");
            let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            eventually("the replica is synchronous", || primary.sql(synchronous) == "1");
        }
        Pair { primary, replica, durability }
    }

    /// Returns the store settings. The replica is named first, because the order does not say which server accepts writes.
    fn store(&self) -> String {
        let (replica, primary, durability) = (self.replica.port, self.primary.port, self.durability.name());
        let url = format!("postgres://tollgate@127.0.0.1:{replica},127.0.0.1:{primary}/limits");
        format!(
            "store: {{postgres: {{url: \"{url}\", timeout: 250ms, durability: {durability}}}}}\non_store_failure: deny\n"
        )
    }
}

/// Two gateways that refuse without a database go through a [`Failover`] under load. The replica is promoted after `happens`.
#[track_caller]
fn survive(fault: &str, mut pair: Pair, happens: impl FnOnce(&mut Pair)) -> i128 {
    let samples = [Sample { name: "token_bucket", limit: Numbers::per_second(RATE, BURST).into() }];
    let (upstream, text) = (Upstream::start(), pair.store() + &rules(&samples));
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &text));
    let fault = format!("PostgreSQL, durability {}: {fault}", pair.durability.name());
    let failover = Failover { back: Back::Decided, ..Failover::of_one_server(&fault, &gateways, &samples) };
    failover.survive(|load| {
        happens(&mut pair);
        pair.replica.promote();
        Some(load.micros())
    })
}

/// Crashes the primary, and waits until the pauses between attempts have their full length.
fn crash(pair: &mut Pair) {
    pair.primary.stop("immediate");
    pause(1_200);
}

fn rounds() -> std::ops::Range<u32> {
    0..short_or_long(1, 5)
}

#[test]
fn with_durability_none_the_promoted_replica_has_forgotten_all() {
    for _ in rounds() {
        let excess = survive("the primary crashes", Pair::start(Durability::None), crash);
        assert!(excess > 0, "nothing was lost");
    }
}

#[test]
fn with_durability_async_the_promoted_replica_continues_with_what_has_reached_it() {
    for _ in rounds() {
        survive("the primary crashes", Pair::start(Durability::Async), crash);
    }
    for _ in rounds() {
        let excess = survive("the replica hears nothing for a second before", Pair::start(Durability::Async), |pair| {
            pair.replica.set("primary_conninfo", "''");
            let connected = "SELECT count(*) FROM pg_stat_replication";
            eventually("the replica is cut off", || pair.primary.sql(connected) == "0");
            pause(1_000);
            crash(pair);
        });
        assert!(excess > 0, "nothing was lost");
    }
}

#[test]
fn with_durability_sync_the_promoted_replica_has_forgotten_nothing() {
    for _ in rounds() {
        let excess = survive("the primary crashes", Pair::start(Durability::Sync), crash);
        assert!(excess <= 0, "{excess}");
    }
}

#[test]
fn a_primary_that_hangs_delays_nobody_who_looks_for_its_successor() {
    for _ in rounds() {
        survive("the primary hangs", Pair::start(Durability::Async), |pair| {
            pair.primary.signal("STOP");
            // Until the connections to it were given up, and others to it wait for an answer.
            pause(2_500);
        });
    }
}

/// This applies whatever the number of its threads and of waiting connections.
#[test]
fn one_watch_of_a_gateway_logs_in_while_no_server_accepts_writes() {
    // Between two of its attempts.
    const SHORTEST: Duration = Duration::from_millis(125);
    const LOGINS: u32 = 24;
    let (mut primary, upstream) = (Postgres::start_with("log_connections = on"), Upstream::start());
    primary.settings();
    let replica = primary.replica();
    let url = format!("postgres://tollgate@127.0.0.1:{},127.0.0.1:{}/limits", replica.port, primary.port);
    let text = format!(
        "store: {{postgres: {{url: \"{url}\", timeout: 2s}}}}\non_store_failure: deny\nthreads: 16\n\
         rules:\n  - {{name: one, limit_keys: [], algorithm_config: {{rate: 1000/day}}}}\n"
    );
    let gateway = Gateway::start(&upstream, &text);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    primary.stop("immediate");
    let logins = || replica.log().matches("connection authorized: user=tollgate").count();
    let (begin, before) = (now(), logins());
    eventually("it looks for a primary", || logins() >= before + LOGINS as usize);
    let took = begin.elapsed();
    print_measured(&format!("PostgreSQL: {LOGINS} logins of a gateway with 16 threads at a replica in {took:?}"));
    assert!(took >= SHORTEST * (LOGINS - 1), "{took:?}");
    replica.promote();
    let mut client = gateway.client();
    eventually("the promoted server decides", || client.get("/", &[]).status == 200);
}

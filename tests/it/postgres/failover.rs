//! Of several hosts the one that accepts writes is used: gateways under load follow a replica that is promoted, and what they
//! grant once more is what its `durability` says.

use tollgate::store::postgres::{Durability, Settings, schema};

use crate::exactness::history::windows::excess;
use crate::exactness::history::{ClockOffset, Limit, Numbers, Sample, rules};
use crate::redis::faults_under_load::{CALLERS, Ending, Load, RequestRecord, ask_on, grants, pause};
use crate::support::{Gateway, Postgres, Upstream, eventually, print_measured, short_or_long};

/// So slow that a bucket is far from full after an outage: what a replica has forgotten is seen.
const RATE: u64 = 10;
const BURST: u64 = 40;

/// In milliseconds after the promotion.
const SOON: i64 = 1_000;

/// A primary with a replica, and the tables for this durability.
struct Pair {
    primary: Postgres,
    replica: Postgres,
    durability: Durability,
}

impl Pair {
    #[track_caller]
    fn start(durability: Durability) -> Pair {
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

    /// The replica is named first: neither place says which server accepts writes.
    fn store(&self) -> String {
        let (replica, primary, durability) = (self.replica.port, self.primary.port, self.durability.name());
        let url = format!("postgres://tollgate@127.0.0.1:{replica},127.0.0.1:{primary}/limits");
        format!(
            "store: {{postgres: {{url: \"{url}\", timeout: 250ms, durability: {durability}}}}}\non_store_failure: deny\n"
        )
    }
}

/// Two gateways that refuse without a database are under load while `happens` goes on, and then the replica is promoted.
/// Every request is answered in time, and the database decides for each gateway soon after the promotion. Returns what was granted beyond
/// every window, in tokens.
#[track_caller]
fn survive(fault: &str, mut pair: Pair, happens: impl FnOnce(&mut Pair)) -> i128 {
    let samples = [Sample { name: "token_bucket", limit: Numbers::per_second(RATE, BURST).into() }];
    let upstream = Upstream::start();
    let text = pair.store() + &rules(&samples);
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &text));
    for gateway in &gateways {
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    let load = Load::start(&samples);
    let (promoted, seen) = std::thread::scope(|scope| {
        let load = &load;
        let ending = Ending(load);
        let callers = gateways
            .each_ref()
            .map(|gateway| [(); CALLERS].map(|()| scope.spawn(move || ask_on(gateway, 0, "one", load))));
        pause(300);
        load.await_refusals();
        happens(&mut pair);
        pair.replica.promote();
        let promoted = load.micros();
        for gateway in &gateways {
            gateway.expect("rate_limiter_store_up", &[], 1.0);
        }
        pause(500);
        load.await_refusals();
        drop(ending);
        let join = |callers: [std::thread::ScopedJoinHandle<'_, Vec<RequestRecord>>; CALLERS]| {
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect::<Vec<RequestRecord>>()
        };
        (promoted, callers.map(join))
    });
    // Each was answered: a connection that fails is a panic.
    let all = || seen.iter().flatten();
    assert!(all().all(|request| matches!(request.status, 200 | 429 | 503)), "{fault}");
    let longest = all().map(|request| request.answered - request.sent).max().unwrap() / 1000;
    let back = seen.each_ref().map(|seen| {
        let decided = seen.iter().filter(|request| request.status != 503 && request.sent > promoted);
        decided.map(|request| request.answered).min().expect("the database decides again")
    });
    let back = (back.into_iter().max().unwrap() - promoted) / 1000;
    let grants: Vec<_> = seen.iter().flat_map(|seen| grants(seen, 0)).collect();
    let limit: &Limit = &samples[0].limit;
    let excess = excess(limit, &grants, &ClockOffset::default());
    print_measured(&format!(
        "PostgreSQL, promotion, durability {}: {fault}, {} requests, {} granted, {} unavailable, longest {longest} ms, back \
         {back} ms after the promotion, excess {}, bound {BURST}",
        pair.durability.name(),
        all().count(),
        grants.len(),
        all().filter(|request| request.status == 503).count(),
        limit.tokens(excess),
    ));
    assert!(longest < 1_000, "{fault}: {longest} ms");
    assert!(excess <= limit.price(BURST * 1000), "{fault}: {}", limit.tokens(excess));
    // A busy machine takes longer to find the new primary: the short form allows it three times as long.
    assert!(back < SOON * short_or_long(3, 1), "{fault}: {back} ms");
    excess
}

/// For so long that the pauses between two attempts have grown as far as they do.
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

//! Several gateways on one PostgreSQL, checked request by request: no wrong grant and no wrong refusal.

use std::time::Duration;

use base::host_port::HostPort;
use stores::Source;
use stores::postgres::{Durability, Settings, schema};
use stores::remote::fault_injection::{Combining, Hooks, Refusals};

use crate::exactness::history::gateways::{Clocks, Gateways, PATIENT, Run, random_request};
use crate::exactness::history::{Answer, GrantLifetime, Limit, Numbers};
use crate::support::{PgBouncer, Postgres, print_measured, short_or_long};

const GATEWAYS: usize = 3;

/// The limit that every request is charged to.
const EVERYBODY: Numbers = Numbers::per_second(1_000, 1_000);

/// Returns token buckets that all or some requests share, and one limit of each other algorithm.
fn buckets() -> Vec<Limit> {
    // They divide unevenly: nothing may be rounded anywhere.
    let shared = Numbers { burst: 300, amount: 54_321_987, period: 60_000_000 };
    let own = Numbers { burst: 250, amount: 997_123, period: 7_000_003 };
    let others = [
        Limit::window(90, GrantLifetime::Epoch(1_000_000)),
        Limit::window(110, GrantLifetime::FirstGrant(1_234_567)),
        Limit::window(120, GrantLifetime::Steps { window: 1_000_000, steps: 7 }),
        Limit::window(120, GrantLifetime::Log(1_100_000)),
    ];
    [EVERYBODY].into_iter().chain([shared; 3]).chain([own; 8]).map(Limit::from).chain(others).collect()
}

/// Returns a random request with its charges in random order.
fn request(caller: usize) -> Vec<(usize, u64)> {
    let mut charges = random_request(caller, 4);
    fastrand::shuffle(&mut charges);
    charges
}

#[track_caller]
pub fn nothing_is_granted_too_much_or_withheld(postgres: &Postgres, settings: &Settings, combining: Combining) {
    let hooks = Hooks { combining, refusals: Refusals::Local, ..Hooks::default() };
    let gateways = Gateways {
        hooks: vec![hooks; GATEWAYS],
        workers: 2,
        callers: 8,
        buckets: buckets(),
        mistaken: |_, limit| limit,
        clocks: Clocks { begin: None, hours_wrong: [-2, 0, 2] },
        request,
        pauses: [Duration::from_millis(2), Duration::from_millis(6)],
        lasting: short_or_long(Duration::from_millis(2500), Duration::from_secs(30)),
        timeout: PATIENT,
    };
    postgres.sql("DELETE FROM tollgate_bucket");
    let Run { history, calls } = gateways.play_on_postgres(settings, || ());
    let (requests, granted) = (history.records.len(), history.grants(0));
    let cached = history.count(|answer| matches!(answer, Answer::Refused { source: Source::Cached, .. }));
    let undecided = history.count(|answer| matches!(answer, Answer::Unknown | Answer::Unasked));
    let findings = history.check();
    print_measured(&format!(
        "history on PostgreSQL: combining {combining:?}, durability {}: {requests} requests, {} granted, {calls} calls, \
         {cached} refused without; {undecided} undecided; {findings:?}",
        settings.durability.name(),
        granted.len(),
    ));
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(undecided, 0);
    assert!(granted.len() > 300 && requests > granted.len(), "{} of {requests}", granted.len());
    assert!((0..history.buckets.len()).all(|index| !history.grants(index).is_empty()), "one was never asked");
}

#[test]
fn combined_calls_are_exact() {
    let postgres = Postgres::start();
    let settings = postgres.settings();
    nothing_is_granted_too_much_or_withheld(&postgres, &settings, Combining::On);
    for durability in [Durability::Sync, Durability::None] {
        let settings = Settings { durability, ..settings.clone() };
        postgres.sql(&schema::statements(&settings));
        nothing_is_granted_too_much_or_withheld(&postgres, &settings, Combining::On);
    }
}

#[test]
fn behind_a_pooler_in_transaction_mode_calls_are_exact() {
    let postgres = Postgres::start();
    let settings = postgres.settings();
    // Six workers share two connections.
    let pooler = PgBouncer::before(&postgres, 2);
    let hosts = vec![HostPort::new("127.0.0.1", pooler.port)];
    nothing_is_granted_too_much_or_withheld(&postgres, &Settings { hosts, ..settings }, Combining::On);
}

#[test]
fn single_calls_are_exact() {
    let postgres = Postgres::start();
    let settings = postgres.settings();
    nothing_is_granted_too_much_or_withheld(&postgres, &settings, Combining::Off);
}

#[test]
fn a_server_that_is_serializable_by_default_changes_nothing() {
    let postgres = Postgres::start_with("default_transaction_isolation = 'serializable'");
    let settings = postgres.settings();
    nothing_is_granted_too_much_or_withheld(&postgres, &settings, Combining::On);
}

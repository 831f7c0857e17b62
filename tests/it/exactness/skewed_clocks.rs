//! Gateways with clocks that are hours wrong count in the same calendar periods, because Redis' clock chooses the period.

use std::sync::Arc;

use base::time::{Clock, Micros, Timestamp};
use ledger::algorithm::Algorithm;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::bucket_key::BucketKey;
use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
use ledger::charge::Plan;
use ledger::cost::Cost;
use stores::redis;
use stores::redis::fault_injection::{Flaw, Hooks};
use stores::redis::{Login, Settings, Target};
use stores::{EventSink, Store, StoreError, Worker, breaker};

use super::history::gateways::PATIENT;
use crate::support::Redis;
use crate::support::charge::{plan_of, spend};

const HOUR: u64 = 3_600_000_000;

/// Makes a store for a gateway whose clock is this many hours wrong.
fn gateway(redis: &Redis, hours: i64, hooks: Hooks) -> Arc<Store> {
    let Clock::System { epoch, start, ahead } = Clock::system() else { panic!("a manual clock") };
    let wrong = hours * i64::try_from(HOUR).unwrap();
    let clock = Clock::System { epoch: Timestamp(epoch.0.saturating_add_signed(wrong)), start, ahead };
    let settings = Settings {
        target: Target::at("127.0.0.1", redis.port),
        login: Login::default(),
        timeout: PATIENT,
        prefix: "skew".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 1,
    };
    Arc::new(Store::Redis(redis::Redis::open(hooks, settings, 1, clock, EventSink::new(|_| ()))))
}

/// Returns a plan with a limit of five a day. The day begins this many hours from now.
fn plan(bucket: u8, hours: i64) -> Plan {
    let minutes = i64::try_from(Clock::system().now().0 / 60_000_000).unwrap() + 60 * hours;
    let minutes = minutes.rem_euclid(24 * 60);
    let at = TimeOfDay::parse(&format!("{:02}:{:02}", minutes / 60, minutes % 60)).unwrap();
    let calendar = Calendar::new(Anchor::default_of(CalendarUnit::Day), at, Zone::parse("UTC").unwrap());
    let algorithm = Algorithm::FixedWindow(FixedWindow::new(5, Window::Calendar(calendar)).unwrap());
    plan_of(spend(BucketKey([bucket; 16]), algorithm, Cost::ONE))
}

/// Sends ten requests to each gateway, one gateway after the other. Returns how many each has granted.
async fn granted(gateways: &[Arc<Store>], plan: &Plan) -> Result<Vec<usize>, StoreError> {
    let mut granted = Vec::new();
    for store in gateways {
        let mut passed = 0;
        for _ in 0..10 {
            let reply = store.take(Worker(0), plan, None).await.map_err(|failure| failure.error)?.unwrap();
            passed += usize::from(reply.settlement.is_granted());
        }
        granted.push(passed);
    }
    Ok(granted)
}

fn play(gateways: Vec<Arc<Store>>, plans: [Plan; 2]) -> Result<Vec<usize>, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for store in &gateways {
            let driven = Arc::clone(store);
            tokio::spawn(async move { driven.run(Worker(0)).await });
            store.first_attempt().await;
        }
        let mut all = Vec::new();
        for plan in plans {
            all.extend(granted(&gateways, &plan).await?);
        }
        Ok(all)
    })
}

/// One day begins in an hour, the other began an hour ago, so each boundary lies between the clocks of two gateways.
fn plans() -> [Plan; 2] {
    [plan(1, 1), plan(2, -1)]
}

#[test]
fn gateways_hours_apart_grant_one_limit_together() {
    let redis = Redis::start();
    let gateways = [-2, 0, 2].map(|hours| gateway(&redis, hours, Hooks::default()));
    assert_eq!(play(gateways.to_vec(), plans()), Ok(vec![5, 0, 0, 5, 0, 0]));
}

/// This variant is known to be wrong: a gateway whose own clock chooses the period opens the next one.
#[test]
fn a_gateway_that_chose_the_period_would_grant_the_limit_twice() {
    let redis = Redis::start();
    let by_its_clock = Hooks { flaw: Some(Flaw::ClientTime { ahead: Micros(0) }), ..Hooks::default() };
    // The first gateway is right, the second one two hours ahead.
    let gateways = vec![gateway(&redis, 0, Hooks::default()), gateway(&redis, 2, by_its_clock)];
    assert_eq!(play(gateways, plans()), Ok(vec![5, 5, 5, 0]));
}

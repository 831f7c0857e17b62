//! Tests that slots stay counted when sentinels replace a lost master: gateways report what they hold to its successor.

use std::sync::Arc;
use std::time::Duration;

use base::host_port::HostPort;
use base::time::{Clock, Micros};
use ledger::bucket_key::BucketKey;
use stores::redis::{Login, Settings, Target, sentinel};
use stores::{EventSink, Store, breaker};

use crate::redis::cluster::{LATE, eventually_async, run, started};
use crate::support::charge::plan_of;
use crate::support::now;
use crate::support::sentinel::{MASTER, SentinelGroup, SentinelSetup};
use crate::support::slots::{is_granted, slot, take, take_all};

async fn gateway(group: &SentinelGroup) -> Arc<Store> {
    let nodes = group.sentinels.iter().map(|sentinel| HostPort::new("127.0.0.1", sentinel.port)).collect();
    let sentinel = sentinel::Settings { master: MASTER.to_owned(), nodes, login: Login::default() };
    let settings = Settings {
        target: Target::Sentinel(Box::new(sentinel)),
        login: Login::default(),
        timeout: Micros(500_000),
        prefix: "test".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 1,
    };
    started(Arc::new(Store::open(&settings.into(), 1, Clock::system(), EventSink::new(|_| ())))).await
}

#[test]
fn what_is_held_is_reported_to_the_successor_of_a_lost_master() {
    let mut group = SentinelGroup::with(&SentinelSetup::default());
    run(async {
        let [one, other] = [gateway(&group).await, gateway(&group).await];
        let three = plan_of(slot(BucketKey([1; 16]), 3));
        let held = take(&one, &three, 3).await;
        // The successor lacks all of it, as if the master had never sent it.
        group.servers[0].kill();
        eventually_async(async || group.servers[1].role().starts_with("master")).await;
        group.servers[1].command::<()>(&["FLUSHALL"]);
        let promoted = now();
        tokio::time::sleep(Duration::from_secs(2) + LATE).await;
        assert!(!is_granted(&other, &three).await, "{:?} after the promotion", promoted.elapsed());
        drop(held);
        take_all(&other, &three, 3).await;
    });
}

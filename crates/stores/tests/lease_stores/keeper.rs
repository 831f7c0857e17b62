//! A keeper of leases whose home is a PostgreSQL server far away.

use std::sync::Arc;
use std::time::Duration;

use base::host_port::HostPort;
use ledger::algorithm::Algorithm;
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::cost::Cost;
use stores::postgres::{Durability, Settings as PostgresSettings};
use stores::{AskAnswer, Clock, KeeperSettings, LeaseKeeper, LeaseSink, LeaseStore, Micros, PurseBucket, Settings};

use crate::region::{Region, SECOND, open, purse};
use crate::relay::Relay;
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;

#[tokio::test]
async fn many_purses_are_filled_in_time_from_a_database_far_away_that_does_one_call_at_a_time() {
    let (server, redis) = (Postgres::start(), Redis::start(&[]));
    let relay = Relay::to(server.port, Duration::from_millis(40)).await;
    let timeout = Micros(SECOND);
    let settings = server.settings(Durability::Async);
    let settings = PostgresSettings { timeout, hosts: vec![HostPort::new("127.0.0.1", relay.port)], ..settings };
    let home = open(&Settings::Postgres(settings)).await;
    let region = Region::new("eu", &Settings::Redis(redis.settings())).await;
    let own = KeeperSettings { region: Arc::from("eu"), regions: 3, timeout };
    let purses = LeaseStore::beside(Arc::clone(&region.store));
    let keeper = Arc::new(LeaseKeeper::new(purses, home, own, Clock::system(), LeaseSink::new(|_| {})));
    let running = tokio::spawn(Arc::clone(&keeper).run());
    let mut asking = tokio::task::JoinSet::new();
    for key in 0..100 {
        let Algorithm::Purse(purse) = purse() else { panic!("no purse") };
        let bucket = PurseBucket { key: BucketKey([key; 16]), purse, tag: LimitTag(7) };
        let keeper = Arc::clone(&keeper);
        asking.spawn(async move {
            // One request after the other, so that no two of them are in one call by chance.
            tokio::time::sleep(Duration::from_millis(10) * u32::from(key)).await;
            keeper.ask([(bucket, Cost::ONE)]).await
        });
    }
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap(), AskAnswer::Answered);
    }
    running.abort();
}

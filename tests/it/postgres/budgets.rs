//! Budgets in PostgreSQL: what gateways share, and what is settled once however connections end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use stores::Worker;

use crate::support::Postgres;
use crate::support::budgets::{assert_balanced, books, daily, reserve, spend_at_random};
use crate::support::charge::plan;
use crate::support::slots::{EndOfLoad, Member, ask, slot, take};

const BUCKET: BucketKey = BucketKey([7; 16]);

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

#[test]
fn gateways_share_what_is_held_and_what_is_spent_beside_slots() {
    let postgres = Postgres::start();
    run(async {
        let settings = postgres.settings().into();
        let [one, other] = [Member::of(&settings).await, Member::of(&settings).await];
        let ten = daily(10);
        let both = |tokens: u64| plan([slot(BucketKey([1; 16]), 3), reserve(BUCKET, ten, tokens)]);
        let mut held = take(&one.store, &both(4), 2).await;
        let reply = other.store.take(Worker(0), &both(4), None).await.unwrap().unwrap();
        let verdicts: Vec<_> = reply.settlement.enforced.iter().map(|outcome| outcome.verdict).collect();
        assert_eq!((held.len(), verdicts), (2, vec![Verdict::Allow, Verdict::Held]));
        assert_eq!(books(&settings, BUCKET, ten).await, (0, 8));
        held[0].settle(&BUCKET, Cost::from_tokens(7));
        drop(held);
        one.store.all_reported().await;
        assert_eq!(books(&settings, BUCKET, ten).await, (7, 0));
        assert!(ask(&other.store, &both(4)).await.unwrap().is_none());
        assert_eq!(take(&other.store, &both(1), 5).await.len(), 3);
    });
}

#[test]
fn each_cost_is_charged_once_however_connections_end() {
    let postgres = Postgres::start();
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (ended, postgres) = (Arc::clone(&done), &postgres);
        scope.spawn(move || {
            let _ends = EndOfLoad(ended);
            let mut random = fastrand::Rng::with_seed(3);
            for _ in 0..25 {
                std::thread::sleep(Duration::from_millis(random.u64(20..200)));
                postgres.sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
                );
            }
        });
        run(async {
            let settings = postgres.settings().into();
            let members = [Member::of(&settings).await, Member::of(&settings).await];
            let stores = members.each_ref().map(|member| Arc::clone(&member.store));
            let bucket = (BUCKET, daily(100_000));
            let settled = spend_at_random(&stores, bucket, 16, done).await;
            assert!(settled > 20, "{settled}");
            assert_balanced(&stores, &settings, bucket, settled).await;
        });
    });
}

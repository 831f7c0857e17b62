//! Bans in Redis and in a cluster, and what is known of them without a server.

use std::time::Duration;

use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::ban::Ban;
use ledger::algorithm::budget::{Budget, SpentLimit};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use stores::{Store, Worker};

use super::cluster::{PATIENT, run, settings_at};
use super::slots::{calls, gateway, settings};
use crate::support::bans::play;
use crate::support::charge::{plan_of, spend};
use crate::support::{Redis, RedisCluster, Replicas};

/// Returns a plan for one of three tokens, with bans of a minute.
fn three() -> Plan {
    let rate = Rate { amount: Cost::ONE, period: Micros(3_600_000_000) };
    let bucket = SpentLimit::TokenBucket(TokenBucket::new(rate, 3).unwrap());
    let ban = Ban::new(&[Micros(60_000_000)], Micros(3_600_000_000)).unwrap();
    plan_of(spend(BucketKey([5; 16]), Algorithm::Budget(Budget::banning(bucket, ban)), Cost::ONE))
}

async fn verdict(store: &Store, plan: &Plan) -> Verdict {
    store.take(Worker(0), plan, None).await.unwrap().unwrap().settlement.enforced[0].verdict
}

#[test]
fn gateways_share_bans_in_redis() {
    let redis = Redis::start();
    run(play(&settings(redis.port).into()));
}

#[test]
fn gateways_share_bans_in_a_cluster() {
    let cluster = RedisCluster::start(Replicas::None);
    run(play(&settings_at([&cluster.masters[0]], PATIENT).into()));
}

#[test]
fn a_known_ban_is_refused_without_a_call_and_without_a_server() {
    let mut redis = Redis::start();
    run(async {
        let [one, other] = [gateway(redis.port).await, gateway(redis.port).await];
        for expected in [Verdict::Allow, Verdict::Allow, Verdict::Allow, Verdict::Banned] {
            assert_eq!(verdict(&one, &three()).await, expected);
        }
        let before = calls(&redis);
        for _ in 0..50 {
            assert_eq!(verdict(&one, &three()).await, Verdict::Banned);
        }
        let refused = calls(&redis) - before;
        assert!(refused < 10, "{refused}");
        redis.kill();
        while one.take(Worker(0), &three(), None).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let known = one.refuse_banned(&three()).expect("its answer has shown the ban");
        assert_eq!(known.settlement.enforced[0].verdict, Verdict::Banned);
        assert!(known.settlement.enforced[0].retry_after > Micros(30_000_000));
        // The other gateway has never seen the ban. Without the store none begins.
        assert!(other.refuse_banned(&three()).is_none());
        let verdicts: Vec<_> =
            (0..9).map(|_| other.take_fallback(Worker(0), &three()).settlement.enforced[0].verdict).collect();
        assert!(!verdicts.contains(&Verdict::Banned) && verdicts.contains(&Verdict::Deny), "{verdicts:?}");
    });
}

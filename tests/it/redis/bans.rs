//! Bans in Redis and in a cluster, and what is known of them without a server.

use std::time::Duration;

use base::time::Micros;
#[cfg(feature = "test-hooks")]
use base::time::{Clock, Timestamp};
use ledger::algorithm::Algorithm;
use ledger::algorithm::ban::Ban;
use ledger::algorithm::budget::{Budget, SpentLimit};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
#[cfg(feature = "test-hooks")]
use ledger::outcome::BanNotice;
use ledger::outcome::Verdict;
#[cfg(feature = "test-hooks")]
use stores::EventSink;
#[cfg(feature = "test-hooks")]
use stores::remote::fault_injection::Hooks;
use stores::{Store, Worker};

use super::cluster::{PATIENT, run, settings_at};
use super::slots::{calls, gateway, settings};
use crate::support::bans::{
    ban_by_each_limit_of_a_meter, forget_a_lifted_ban, play, refuse_without_room, remember_for_longer,
};
use crate::support::charge::{plan_of, spend};
#[cfg(feature = "test-hooks")]
use crate::support::slots::Member;
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

/// The bans of one bucket grow, whichever gateway is asked, and begin again once the last one is forgotten.
#[test]
#[cfg(feature = "test-hooks")]
fn bans_grow_over_two_gateways() {
    const MINUTE: u64 = 60_000_000;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let bucket =
        SpentLimit::TokenBucket(TokenBucket::new(Rate { amount: Cost::ONE, period: Micros(MINUTE) }, 1).unwrap());
    let ban = Ban::new(&[15 * MINUTE, HOUR, DAY].map(Micros), Micros(7 * DAY)).unwrap();
    let plan = plan_of(spend(BucketKey([6; 16]), Algorithm::Budget(Budget::banning(bucket, ban)), Cost::ONE));
    let redis = Redis::start();
    run(async {
        let clock = Clock::manual(Timestamp(1_700_000_000_000_000));
        let open = || {
            let events = EventSink::new(|_| ());
            let store = stores::redis::Redis::open(Hooks::default(), settings(redis.port), 1, clock.clone(), events);
            Member::with(Store::Redis(store))
        };
        let members = [open().await, open().await];
        let take = async |gateway: usize| {
            let taken = members[gateway % 2].store.take(Worker(0), &plan, None).await.unwrap().unwrap();
            taken.settlement.enforced[0]
        };
        let mut pause = 0;
        for (index, (step, length)) in
            [(1, 15 * MINUTE), (2, HOUR), (3, DAY), (4, DAY), (1, 15 * MINUTE)].into_iter().enumerate()
        {
            clock.set(clock.now().plus(Micros(pause)));
            assert_eq!(take(index).await.verdict, Verdict::Allow, "after {pause}");
            for (gateway, begins) in [(index + 1, true), (index, false)] {
                let banned = take(gateway).await;
                assert_eq!(banned.ban, Some(BanNotice { step, begins }));
                assert_eq!((banned.verdict, banned.retry_after), (Verdict::Banned, Micros(length)));
            }
            // The fourth ban is forgotten seven days after its end.
            pause = if step == 4 { length + 7 * DAY + 1 } else { length };
        }
    });
}

#[test]
fn a_full_server_refuses_what_is_beyond_a_limit_although_no_ban_can_begin() {
    let redis = Redis::start();
    let limit_memory = |bytes| redis.command::<()>(&["CONFIG", "SET", "maxmemory", bytes]);
    run(refuse_without_room(&settings(redis.port).into(), || limit_memory("1"), || limit_memory("0")));
}

#[test]
fn a_longer_memory_of_bans_prolongs_the_time_to_live() {
    let redis = Redis::start();
    let kept_for = || {
        let script = "local most = 0
            for _, key in ipairs(redis.call('KEYS', '*')) do most = math.max(most, redis.call('TTL', key)) end
            return most";
        redis.command(&["EVAL", script, "0"])
    };
    run(remember_for_longer(&settings(redis.port).into(), kept_for));
}

#[test]
fn a_ban_that_was_lifted_is_not_known_any_more() {
    let redis = Redis::start();
    run(forget_a_lifted_ban(&settings(redis.port).into()));
}

#[test]
fn each_limit_of_a_meter_begins_its_ban_in_redis() {
    let redis = Redis::start();
    run(ban_by_each_limit_of_a_meter(&settings(redis.port).into()));
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

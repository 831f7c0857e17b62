//! The examples of the crates `ledger` and `stores`, which charge buckets without a gateway.

use crate::support::Redis;
use ledger::Micros;
use ledger::outcome::{Outcome, Verdict};

#[allow(dead_code, reason = "it is a program of its own")]
#[path = "../../../crates/ledger/examples/three_requests.rs"]
mod three_requests;

#[allow(dead_code, reason = "it is a program of its own")]
#[path = "../../../crates/stores/examples/three_takes.rs"]
mod three_takes;

#[track_caller]
fn check(outcomes: &[Outcome], most: Micros) {
    let verdicts: Vec<_> = outcomes.iter().map(|outcome| (outcome.verdict, outcome.remaining.whole())).collect();
    assert_eq!(verdicts, [(Verdict::Allow, 1), (Verdict::Allow, 0), (Verdict::Deny, 0)]);
    let wait = outcomes[2].retry_after;
    assert!(Micros(0) < wait && wait <= most, "{wait:?}");
}

#[test]
fn three_requests_are_settled_on_states_that_a_program_keeps_itself() {
    check(&three_requests::three_requests().unwrap(), Micros(1_000_000));
}

#[tokio::test]
async fn three_requests_take_from_a_bucket_in_memory_and_in_redis() {
    check(&three_takes::three_takes(three_takes::in_memory()).await.unwrap(), Micros(60_000_000));
    let redis = Redis::start();
    check(&three_takes::three_takes(three_takes::in_redis(redis.port)).await.unwrap(), Micros(60_000_000));
}

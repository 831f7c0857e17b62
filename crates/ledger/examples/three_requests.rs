//! Takes three requests from a token bucket of two tokens, and keeps the state of the bucket.
//!
//! `cargo run --package tollgate-ledger --example three_requests`
#![allow(clippy::print_stdout, reason = "an example shows its result")]

use std::collections::HashMap;

use ledger::algorithm::token_bucket::{InvalidNumbers, Rate, TokenBucket};
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::{BucketKey, Descriptor, KeySeed, LimitIdentity};
use ledger::charge::{Charge, Plan, settle};
use ledger::cost::Cost;
use ledger::outcome::Outcome;
use ledger::{Micros, Timestamp};

fn main() -> Result<(), InvalidNumbers> {
    for outcome in three_requests()? {
        println!("{:?}: {} left, retry after {} s", outcome.verdict, outcome.remaining, outcome.retry_after.seconds());
    }
    Ok(())
}

/// Charges three requests of one client at the same time to one bucket. Two are granted.
pub fn three_requests() -> Result<Vec<Outcome>, InvalidNumbers> {
    let one_per_second = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
    let algorithm = Algorithm::TokenBucket(TokenBucket::new(one_per_second, 2)?);
    let limit = KeySeed::new(&LimitIdentity {
        policy: "plan",
        rule: "free",
        limit: "",
        mode: "enforce",
        algorithm: algorithm.kind(),
        keys: &["user".to_owned()],
    });
    let mut client = Descriptor::default();
    client.push(0, b"alice");
    let mut plan = Plan::default();
    plan.enforce(Charge::new(limit.key(&client), algorithm, Cost::ONE));

    let mut states: HashMap<BucketKey, State> = HashMap::new();
    let now = Timestamp(1_800_000_000_000_000);
    let mut outcomes = Vec::new();
    for _ in 0..3 {
        let found: Vec<_> = plan.charges().map(|charge| states.get(&charge.key)).collect();
        let (settlement, entries) = settle(&plan, &found, now);
        // A refused request has nothing to store.
        let changed = plan.charges().zip(entries).filter_map(|(charge, entry)| Some((charge.key, entry?.state)));
        states.extend(changed.collect::<Vec<_>>());
        outcomes.extend(settlement.enforced);
    }
    Ok(outcomes)
}

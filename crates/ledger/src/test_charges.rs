//! Makes charges and plans for tests.

use super::algorithm::Algorithm;
use super::bucket_key::BucketKey;
use super::charge::{Charge, Plan};
use super::cost::Cost;
use base::time::Micros;

#[allow(clippy::unwrap_used, reason = "for tests")]
impl Charge {
    /// For tests: makes a charge of `cost` to a token bucket that refills with one token per second.
    pub fn of_token_bucket(bucket: u8, burst: u64, cost: u64) -> Charge {
        use crate::algorithm::token_bucket::{Rate, TokenBucket};
        let rate = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
        let algorithm = Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap());
        Charge::new(BucketKey([bucket; 16]), algorithm, Cost::from_tokens(cost))
    }
}

impl Plan {
    /// For tests: makes a plan that spends 3 tokens from a bucket of 10, and checks whether the same bucket has 1 token.
    pub fn of_one_bucket_spent_and_checked() -> Plan {
        let (mut plan, mut checked) = (Plan::default(), Plan::default());
        plan.enforce(Charge::of_token_bucket(1, 10, 3));
        checked.enforce(Charge::of_token_bucket(1, 10, 1));
        plan.join_check(checked);
        plan
    }
}

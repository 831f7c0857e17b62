//! Charges and their plans, for tests that call a store or its script.

use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::charge::{Charge, ChargePurpose, LimitId, Plan};
use ledger::cost::Cost;

/// Returns the charge of a request to a bucket.
pub(crate) fn spend(key: BucketKey, algorithm: Algorithm, cost: Cost) -> Charge {
    Charge {
        key,
        algorithm,
        cost,
        limit: LimitId(0),
        variant: 0,
        tag: LimitTag::default(),
        purpose: ChargePurpose::Spend,
    }
}

/// Returns a token bucket that is not refilled during a test.
pub(crate) fn unrefilled(burst: u64) -> Algorithm {
    let rate = Rate { amount: Cost::ONE, period: Micros(3_600_000_000) };
    Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap())
}

/// Returns the key of a bucket under this hash tag of a cluster.
pub(crate) fn tagged_key(bucket: u8, tag: u8) -> BucketKey {
    let mut key = [bucket; 16];
    key[..4].copy_from_slice(&[0, 0, 0, tag]);
    BucketKey(key)
}

/// Returns a plan with one enforced limit.
pub(crate) fn plan_of(charge: Charge) -> Plan {
    plan([charge])
}

/// Returns a plan with these enforced limits.
pub(crate) fn plan(charges: impl IntoIterator<Item = Charge>) -> Plan {
    Plan { enforced: charges.into_iter().collect(), ..Plan::default() }
}

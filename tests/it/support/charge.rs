//! Charges of one limit, for tests that call a store or its script.

use smallvec::smallvec;
use tollgate::limit::algorithm::Algorithm;
use tollgate::limit::bucket_key::{BucketKey, LimitTag};
use tollgate::limit::charge::{Charge, ChargePurpose, LimitId, Plan};
use tollgate::limit::cost::Cost;

/// What a request spends of a bucket.
pub fn spend(key: BucketKey, algorithm: Algorithm, cost: Cost) -> Charge {
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

/// A request with one enforced limit.
pub fn plan_of(charge: Charge) -> Plan {
    Plan { enforced: smallvec![charge], shadow: smallvec![] }
}

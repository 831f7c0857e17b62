//! Lists the algorithms: what each remembers of a bucket, and how one charge changes it.
//!
//! The state of every algorithm is the same plain value, a short list of integers, and its step is a pure function of
//! that, the cost and the time. So a store knows none of them, and none of them knows a store.
//!
//! A store that runs scripts holds each of them as a Lua twin, which stands beside its file.
//!
//! To add one: its file, its twin, and an arm in each `match` here.

mod step;
pub mod token_bucket;

use std::fmt;

use super::cost::Cost;
use crate::base::time::Timestamp;
pub use step::{ChargeResult, Entry, Level, Quota, State, Step};
use token_bucket::TokenBucket;

/// The Lua twins, each a chunk that returns a table of functions: `new` makes a limit of its three numbers; `open` makes a
/// bucket of a stored value, or says that it is none; `full` and `empty` make one of nothing; `most` says how many times it
/// can pay a cost, and `charge` takes it; `close` gives the value to store and the moment at which the bucket is full.
pub const TWINS: [&str; 1] = [include_str!("token_bucket.lua")];

/// The algorithms, each with the numbers of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    TokenBucket(TokenBucket),
}

/// Its numbers, as an operator would write them: `10/s burst 20`.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Algorithm::TokenBucket(bucket) => bucket.fmt(f),
        }
    }
}

impl Algorithm {
    /// Takes `cost` from the bucket remembered as `state` (none: as good as new), at `now`.
    pub fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        match self {
            Algorithm::TokenBucket(bucket) => bucket.step(state, cost, now),
        }
    }

    pub fn quota(&self) -> Quota {
        match self {
            Algorithm::TokenBucket(bucket) => bucket.quota(),
        }
    }

    /// The largest cost that can ever be met.
    pub fn ceiling(&self) -> Cost {
        match self {
            Algorithm::TokenBucket(bucket) => bucket.burst(),
        }
    }

    /// One of so many equal shares of the limit, and what `cost` is there. Not the limit is divided but the cost is
    /// multiplied, so nothing is rounded; a share holds at least one such cost.
    pub fn share(&self, cost: Cost, of: u64) -> (Algorithm, Cost) {
        match self {
            Algorithm::TokenBucket(bucket) => {
                let (bucket, cost) = bucket.share(cost, of);
                (Algorithm::TokenBucket(bucket), cost)
            }
        }
    }

    /// The place of its twin in [`TWINS`], and the numbers that the twin takes.
    pub fn twin(&self) -> (usize, [u64; 3]) {
        match self {
            Algorithm::TokenBucket(bucket) => (0, bucket.numbers()),
        }
    }

    /// The name in gateway.yaml, in bucket keys and, with `_exceeded` behind it, as a refusal's reason.
    pub fn name(&self) -> &'static str {
        match self {
            Algorithm::TokenBucket(_) => token_bucket::NAME,
        }
    }
}

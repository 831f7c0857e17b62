//! Lists the algorithms: what each remembers of a bucket, and how one charge changes it.
//!
//! The state of every algorithm is the same plain value, a short list of integers, and its step is a pure function of
//! that, the cost and the time. So a store knows none of them, and none of them knows a store.
//!
//! A store that runs scripts holds each of them as a Lua twin, which stands beside its file.
//!
//! To add one: its file, its twin, and an arm in each `match` here.

pub mod token_bucket;

use std::fmt;

use smallvec::SmallVec;

use super::cost::Cost;
use crate::base::time::{Micros, Timestamp};
use token_bucket::TokenBucket;

/// The Lua twins, each a chunk that returns a table of functions: `new` makes a limit of its three numbers; `open` makes a
/// bucket of a stored value, or says that it is none; `full` and `empty` make one of nothing; `most` says how many times it
/// can pay a cost, and `charge` takes it; `close` gives the value to store and the moment at which the bucket is full.
pub const TWINS: [&str; 1] = [include_str!("token_bucket.lua")];

/// A bucket's memory. What the integers mean is the algorithm's business alone; they name their own unit, so that a
/// gateway with other numbers in its file reads them as they were meant.
pub type State = SmallVec<[u64; 3]>;

/// The algorithms, each with the numbers of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    TokenBucket(TokenBucket),
}

/// A limit as clients are told it: `limit` units in `window`, RateLimit-Policy's `q` and `w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub limit: u64,
    pub window: Micros,
}

/// What a bucket holds at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub remaining: Cost,
    /// How long until the bucket is as good as new, if nobody takes from it.
    pub reset_after: Micros,
}

/// What is to be remembered of a bucket, and until when it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub state: State,
    /// From this moment on the bucket is as good as new, and so need not be kept.
    pub full_at: Timestamp,
}

/// One transition, both ways: a plan charges all of its buckets or none, so a bucket that could pay must also say
/// where it stands when another one cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The bucket as it is found.
    pub untouched: Level,
    pub charge: Charged,
}

/// What happens to a bucket that is asked for a cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Charged {
    /// It can pay, and this is what it holds then.
    Fits { level: Level, entry: Entry },
    /// It cannot pay before this much time has passed.
    Short { wait: Micros },
    /// It could not pay even when full.
    Never,
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

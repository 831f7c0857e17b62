//! Lists the algorithms: the state that each keeps of a bucket, and how one charge changes it.
//!
//! The state of every algorithm has the same type, a short list of integers, and its step is a pure function of the
//! state, the cost and the time. So stores and algorithms do not depend on each other.
//!
//! A store that runs scripts has each of them as a Lua twin, which is next to its file.
//!
//! To add one: its file, its twin, and an arm in each `match` here.

mod step;
pub mod token_bucket;

use std::fmt;

use super::cost::Cost;
use crate::base::time::Timestamp;
pub use step::{ChargeResult, Entry, Level, Numbers, Quota, State, Step};
use token_bucket::TokenBucket;

/// The Lua twins, each a chunk that returns a table of functions: `new` makes a limit from its numbers, and marks it as
/// `outside` if they do not hold at the server's time; `open` makes a bucket from a stored value, or reports that the
/// value is invalid; `full` and `empty` make one without a value; `most` returns how many times it can pay a cost, and
/// `charge` charges it; `close` returns the value to store and until when it must be kept. One whose values are large
/// has a `digest` as well: what the reply contains of a bucket in place of its value, and from which the step in Rust
/// gives the same results.
pub const TWINS: [&str; 1] = [include_str!("token_bucket.lua")];

/// The algorithms, without numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlgorithmKind {
    TokenBucket,
}

impl AlgorithmKind {
    pub const ALL: [AlgorithmKind; 1] = [AlgorithmKind::TokenBucket];

    /// The name in gateway.yaml and in bucket keys.
    pub const fn name(self) -> &'static str {
        match self {
            AlgorithmKind::TokenBucket => token_bucket::NAME,
        }
    }

    /// The reason of a refusal by a limit that has too little left: the name, and `_exceeded`.
    pub const fn exceeded(self) -> &'static str {
        match self {
            AlgorithmKind::TokenBucket => token_bucket::EXCEEDED,
        }
    }
}

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
    /// Charges `cost` to the bucket with this state, at `now`; `None` is a full bucket.
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

    /// One of `of` equal shares of the limit, and the cost in that share. The cost is multiplied in place of dividing
    /// the limit, so nothing is rounded; a share holds at least one such cost.
    pub fn share(&self, cost: Cost, of: u64) -> (Algorithm, Cost) {
        match self {
            Algorithm::TokenBucket(bucket) => {
                let (bucket, cost) = bucket.share(cost, of);
                (Algorithm::TokenBucket(bucket), cost)
            }
        }
    }

    /// The index of its twin in [`TWINS`], and the numbers that the twin takes for a call at about `near` on the store's
    /// clock. Where they hold only for some time around it, the twin says so when the call came at another.
    pub fn twin(&self, _near: Timestamp) -> (usize, Numbers) {
        match self {
            Algorithm::TokenBucket(bucket) => (0, bucket.numbers()),
        }
    }

    /// Whether a bucket that cannot pay can do so again only because time has passed. Then a refusal can be repeated
    /// without asking the store, until that time.
    pub fn frees_only_with_time(&self) -> bool {
        match self {
            Algorithm::TokenBucket(_) => true,
        }
    }

    pub fn kind(&self) -> AlgorithmKind {
        match self {
            Algorithm::TokenBucket(_) => AlgorithmKind::TokenBucket,
        }
    }

    /// The name in gateway.yaml and in bucket keys.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_the_name_of_its_algorithm_and_exceeded() {
        for kind in AlgorithmKind::ALL {
            assert_eq!(kind.exceeded(), format!("{}_exceeded", kind.name()));
        }
    }
}

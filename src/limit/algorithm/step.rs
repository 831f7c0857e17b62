//! The values that every algorithm shares: a bucket's state, one transition of it, and what clients see of a limit.

use smallvec::SmallVec;

use crate::base::time::{Micros, Timestamp};
use crate::limit::cost::Cost;

/// A bucket's memory. What the integers mean is the algorithm's business alone; they name their own unit, so that a
/// gateway with other numbers in its file reads them as they were meant.
pub type State = SmallVec<[u64; 3]>;

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
    pub charge: ChargeResult,
}

/// What happens to a bucket that is asked for a cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeResult {
    /// It can pay, and this is what it holds then.
    Fits { level: Level, entry: Entry },
    /// It cannot pay before this much time has passed.
    Short { wait: Micros },
    /// It could not pay even when full.
    Never,
}

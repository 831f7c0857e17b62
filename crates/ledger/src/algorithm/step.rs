//! Defines the values that all algorithms share: a bucket's state, one transition of it, and what clients see of a limit.

use std::fmt;

use smallvec::SmallVec;

use crate::cost::Cost;
use base::time::{Micros, Timestamp};

/// The largest number up to which a double represents every integer exactly.
pub(super) const EXACT: u64 = (1 << 53) - 1;

/// The longest time by which the last moment of a state may be ahead of the store's clock, which NTP or a failover to another
/// server may set back. Until the clock has caught up, nothing is refilled, so a clock that moves back and forth gives nothing
/// away. A moment further ahead is replaced by the present one: the bucket then holds no more than before, and nobody is locked
/// out for the whole difference.
pub(crate) const MOST_AHEAD: Micros = Micros(10_000_000);

/// The stored state of a bucket. Only its algorithm knows what the integers mean; they include their own unit, so that
/// a gateway with other numbers in its file reads them correctly.
pub type State = SmallVec<[u64; 3]>;

/// The numbers that a Lua twin takes for one limit, each below 2^53.
pub type Numbers = SmallVec<[u64; 4]>;

/// The numbers of a limit that a request can have of its own; `None` keeps the number of the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestNumbers {
    /// The rate, in tokens per second.
    pub rate: Option<Cost>,
    /// The burst of a bucket or the limit of a window, in whole tokens.
    pub ceiling: Option<Cost>,
}

/// A limit as clients see it: `limit` units in `window`, RateLimit-Policy's `q` and `w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub limit: u64,
    pub window: Micros,
}

/// The period in which the grants of a window count: including `begin`, excluding `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    pub begin: Timestamp,
    pub end: Timestamp,
}

/// The level of a bucket at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub remaining: Cost,
    /// The time until the bucket is full, if nothing more is charged to it.
    pub reset_after: Micros,
}

/// The state of a bucket to store, and how long it must be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub state: State,
    /// The moment after which the bucket need not be stored: a new one gives the same results.
    pub kept_until: Timestamp,
}

/// One transition of a bucket, with both possible results. A plan charges all of its buckets or none, so the level of a bucket
/// that could pay is also needed when another bucket cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The level of the bucket without the charge.
    pub untouched: Level,
    pub charge: ChargeResult,
}

/// The result of charging a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeResult {
    /// The bucket can pay, and has this level afterwards. The request goes on after `delay`.
    Fits { level: Level, entry: Entry, delay: Micros },
    /// The bucket cannot pay now; it can when `wait` has passed.
    Short { wait: Micros },
    /// The bucket could not pay even when full.
    Never,
}

/// Formats a length of time in the largest unit of gateway.yaml that divides it.
pub(crate) fn length_text(f: &mut fmt::Formatter<'_>, length: Micros) -> fmt::Result {
    const UNITS: [(&str, u64); 5] =
        [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
    let (unit, scale) = UNITS.into_iter().find(|(_, scale)| length.0.is_multiple_of(*scale)).unwrap_or(("us", 1));
    write!(f, "{}{unit}", length.0 / scale)
}

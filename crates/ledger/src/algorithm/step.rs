//! The values that every algorithm shares: a bucket's state, one transition of it, and what clients see of a limit.

use std::fmt;

use smallvec::SmallVec;

use crate::cost::Cost;
use base::time::{Micros, Timestamp};

/// The largest integer below which a double holds every integer.
pub const EXACT: u64 = (1 << 53) - 1;

/// How far the last moment of a state may be ahead of the store's clock: that was set back, by NTP or by a failover to another
/// server. Until it has caught up nothing comes back, so a clock that goes to and fro gives nothing away. A state from further
/// ahead is taken as if its last moment were now: it never holds more than it did, and nobody is locked out for the whole step.
pub const MOST_AHEAD: Micros = Micros(10_000_000);

/// The stored state of a bucket. Only its algorithm knows what the integers mean; they include their own unit, so that
/// a gateway with other numbers in its file reads them correctly.
pub type State = SmallVec<[u64; 3]>;

/// The numbers that a Lua twin takes for one limit, each below 2^53.
pub type Numbers = SmallVec<[u64; 4]>;

/// The numbers of a limit that may differ from request to request. `None`: as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestNumbers {
    /// Per second.
    pub rate: Option<Cost>,
    /// What a full bucket holds or a window grants, in whole tokens.
    pub ceiling: Option<Cost>,
}

/// A limit as clients see it: `limit` units in `window`, RateLimit-Policy's `q` and `w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub limit: u64,
    pub window: Micros,
}

/// The time in which what a bucket granted counts: from `begin` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    pub begin: Timestamp,
    pub end: Timestamp,
}

/// What a bucket holds at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub remaining: Cost,
    /// How long until the bucket is full, if nothing is charged to it.
    pub reset_after: Micros,
}

/// The state to store of a bucket, and how long it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub state: State,
    /// From this time on the bucket need not be stored: a new one gives the same results.
    pub kept_until: Timestamp,
}

/// One transition, with both results: a plan charges all of its buckets or none, so the level of a bucket that could
/// pay is also needed when another one cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The bucket before the charge.
    pub untouched: Level,
    pub charge: ChargeResult,
}

/// The result of charging a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeResult {
    /// It can pay; this is its level then. The request goes on after `delay`.
    Fits { level: Level, entry: Entry, delay: Micros },
    /// It cannot pay before this much time has passed.
    Short { wait: Micros },
    /// It could not pay even when full.
    Never,
}

/// Writes a length of time in the largest unit of gateway.yaml of which it is a whole number.
pub fn length_text(f: &mut fmt::Formatter<'_>, length: Micros) -> fmt::Result {
    const UNITS: [(&str, u64); 5] =
        [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
    let (unit, scale) = UNITS.into_iter().find(|(_, scale)| length.0.is_multiple_of(*scale)).unwrap_or(("us", 1));
    write!(f, "{}{unit}", length.0 / scale)
}

//! Defines the types that all algorithms share: the state of a bucket, the result of a charge, and a limit's quota.

use std::fmt;

use smallvec::SmallVec;

use crate::cost::Cost;
use base::time::{Micros, Timestamp};

/// The largest number up to which a double represents every integer exactly.
pub(super) const EXACT: u64 = (1 << 53) - 1;

/// The longest time by which the last moment of a state may be ahead of the store's clock. NTP or a failover to another
/// server may set this clock back. Until the clock has caught up, nothing is refilled, so a clock that moves back and
/// forth grants nothing extra. If the moment is further ahead, the present moment replaces it. The bucket then holds no
/// more than before, and clients need not wait for the whole difference.
pub(crate) const MOST_AHEAD: Micros = Micros(10_000_000);

/// The stored state of a bucket, a list of integers. Only the bucket's algorithm knows their meaning. The state includes its
/// own unit, so that a gateway with other settings in its file reads it correctly.
pub type State = SmallVec<[u64; 3]>;

/// The settings of one limit as integers for its Lua twin, each below 2^53.
pub type Numbers = SmallVec<[u64; 4]>;

/// The settings of a limit that the credentials of a request can set. `None` keeps the setting of the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestNumbers {
    /// The rate, in tokens per second.
    pub rate: Option<Cost>,
    /// The burst of a bucket or the limit of a window, in whole tokens.
    pub ceiling: Option<Cost>,
}

/// A limit as clients see it: `limit` units in `window`. They become `q` and `w` in the header `RateLimit-Policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub limit: u64,
    pub window: Micros,
}

/// The period in which the grants of a fixed window count. Includes the moment `begin`, but not the moment `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    pub begin: Timestamp,
    pub end: Timestamp,
}

/// How much a bucket holds at one moment, and when it will be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub remaining: Cost,
    /// The time until the bucket is full, if nothing more is charged to the bucket.
    pub reset_after: Micros,
}

/// The new state of a bucket for the store, and how long the state must be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub state: State,
    /// The moment after which the store may remove the bucket. From then on, a new bucket gives the same results.
    pub kept_until: Timestamp,
}

/// The result of charging one bucket, and what the bucket holds without the charge. Both are needed because a plan charges all
/// of its buckets or nothing: a bucket that can pay stays unchanged if another bucket refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What the bucket holds without the charge.
    pub untouched: Level,
    pub charge: ChargeResult,
}

/// The result of charging a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeResult {
    /// The bucket can pay. `level` is what the bucket holds after the charge, and `entry` is what to store. The request goes on
    /// after `delay`.
    Fits { level: Level, entry: Entry, delay: Micros },
    /// The bucket cannot pay now, but will be able to pay after `wait`.
    Short { wait: Micros },
    /// The bucket could pay now if other requests did not hold some of it. It is not known when they end.
    Held,
    /// Not even a full bucket could pay.
    Never,
}

/// Formats a length of time in the largest unit of gateway.yaml that divides it.
pub(crate) fn length_text(f: &mut fmt::Formatter<'_>, length: Micros) -> fmt::Result {
    const UNITS: [(&str, u64); 5] =
        [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
    let (unit, scale) = UNITS.into_iter().find(|(_, scale)| length.0.is_multiple_of(*scale)).unwrap_or(("us", 1));
    write!(f, "{}{unit}", length.0 / scale)
}

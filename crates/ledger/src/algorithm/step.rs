//! Defines the types that all algorithms share.

use std::fmt;

use smallvec::SmallVec;

use crate::cost::Cost;
use base::time::{Micros, Timestamp};

/// The largest number up to which a double represents every integer exactly.
pub(super) const EXACT: u64 = (1 << 53) - 1;

/// How far the last moment of a state may be ahead of the store's clock, after the clock was set back. A moment that is
/// further ahead is replaced by the present moment.
pub(crate) const MOST_AHEAD: Micros = Micros(10_000_000);

/// The stored state of a bucket, a list of integers, which only the bucket's algorithm interprets.
pub type State = SmallVec<[u64; 3]>;

/// The settings of one limit for its Lua twin, each below 2^53.
pub type Numbers = SmallVec<[u64; 4]>;

/// The settings that the credentials of a request can set. `None` keeps the setting of the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestNumbers {
    /// The rate, in tokens per second.
    pub rate: Option<Cost>,
    /// The burst of a bucket or the limit of a window, in whole tokens.
    pub ceiling: Option<Cost>,
}

/// A limit as clients see it: `limit` units in `window`, the `q` and `w` of the header `RateLimit-Policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub limit: u64,
    pub window: Micros,
}

/// A period of a fixed window, from `begin` to just before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    pub begin: Timestamp,
    pub end: Timestamp,
}

/// How much a bucket holds at one moment, and when it will be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub remaining: Cost,
    /// The time until the bucket is full, if nothing more is charged.
    pub reset_after: Micros,
}

/// The new state of a bucket, and how long a store must keep it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub state: State,
    /// The moment from which a new bucket would give the same results, so that a store may drop this state.
    pub kept_until: Timestamp,
}

/// The result of charging one bucket, and the level of the bucket without the charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What the bucket holds without the charge.
    pub untouched: Level,
    pub charge: ChargeResult,
}

impl Step {
    /// Returns the result for a request that only a ban refuses. Nothing is charged, so the bucket has no new state.
    #[must_use]
    pub(crate) fn refused_only_by_ban(self) -> Step {
        let charge = match self.charge {
            ChargeResult::Short { .. } | ChargeResult::Held | ChargeResult::Never => ChargeResult::Fits {
                level: self.untouched,
                entry: Entry { state: State::new(), kept_until: Timestamp::default() },
                delay: Micros(0),
            },
            other => other,
        };
        Step { charge, ..self }
    }
}

/// The result of charging a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeResult {
    /// The bucket can pay. `level` is its level after the charge, and `entry` is what to store. The request goes on
    /// after `delay`.
    Fits { level: Level, entry: Entry, delay: Micros },
    /// The bucket can pay after `wait`.
    Short { wait: Micros },
    /// The bucket could pay if other requests did not hold some of it.
    Held,
    /// Not even a full bucket could pay.
    Never,
    /// A ban refuses the request until `wait` has passed. `step` is the number of the ban, and `begins` is `Some` if
    /// the ban begins with this request.
    Banned { wait: Micros, step: u32, begins: Option<BanBeginning> },
}

/// The beginning of a ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BanBeginning {
    /// What to store if the ban begins.
    pub entry: Entry,
    /// The time after which the bucket can pay, if the ban does not begin. `None` if the bucket can never pay.
    pub otherwise: Option<Micros>,
}

/// Formats a length of time in the largest unit of gateway.yaml that divides it.
pub(crate) fn length_text(f: &mut fmt::Formatter<'_>, length: Micros) -> fmt::Result {
    const UNITS: [(&str, u64); 5] =
        [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
    let (unit, scale) = UNITS.into_iter().find(|(_, scale)| length.0.is_multiple_of(*scale)).unwrap_or(("us", 1));
    write!(f, "{}{unit}", length.0 / scale)
}

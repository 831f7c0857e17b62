//! Holds what home remembers of a purse, for those who look at home.

use super::{RegionId, WordId, WordKind};
use crate::cost::Cost;
use base::time::Timestamp;

/// What home remembers of a purse: the last word that it has heard, and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RememberedPurse {
    pub region: RegionId,
    pub last: WordId,
    pub kind: WordKind,
    /// What was given to the purse. Zero for a return.
    pub given: Cost,
    /// The period for which it was given: its beginning on the clock of home.
    pub period: Timestamp,
    /// How much can lie in the purse of a token bucket. Zero for a fixed window.
    pub held: Cost,
    /// Until when the purse counts.
    pub ends: Timestamp,
}

impl RememberedPurse {
    /// Returns the most that can be unspent in the purse, or on its way, of this period of a fixed window. `largest` is the largest lease.
    pub fn most_unspent(&self, period: Timestamp, largest: Cost) -> Cost {
        match self.kind {
            _ if self.period != period => Cost::default(),
            // A request that costs more than the largest lease got one of its own size.
            WordKind::Lease if self.given > largest => self.given.plus(largest),
            // A purse in use gives back only what is above the largest lease.
            WordKind::Lease | WordKind::Return => largest,
        }
    }
}

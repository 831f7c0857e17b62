//! Defines the present time of a store: the time on its clock, and the time by which calendar periods count.
//!
//! For a store on a server, one clock gives both times. Buckets in memory use the clock of the process, which is never
//! set, but their calendar periods end by the machine's clock.

use super::algorithm::Algorithm;
use base::time::Timestamp;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreTime {
    pub now: Timestamp,
    /// The time by which calendar periods begin and end. Never before `now`.
    pub date: Timestamp,
}

impl StoreTime {
    /// Returns the time by which this algorithm is charged: `date` for a calendar, `now` for any other algorithm.
    pub fn of(self, algorithm: &Algorithm) -> Timestamp {
        if algorithm.zone().is_some() { self.date } else { self.now }
    }
}

impl From<Timestamp> for StoreTime {
    fn from(now: Timestamp) -> StoreTime {
        StoreTime { now, date: now }
    }
}

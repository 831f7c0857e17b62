//! Defines what a granted request holds: slots of buckets, which are given back when the request ends.

use std::fmt;
use std::sync::Arc;

use ledger::holds::{self, ReservationOwner, SlotId};

/// Whoever counts slots: the connection that says to a store how much is held, or a store in this process.
pub(crate) trait SlotKeeper: ReservationOwner + fmt::Debug + Send + Sync {}

/// What a granted request holds of its buckets until it ends. Rates hold nothing, since what they have charged is
/// kept: then the reservation is empty.
///
/// Keep it for as long as the request is under way, on whatever task. Dropping it gives everything back, so that is
/// what happens on every way out, also in a panic. That never waits: the store learns of it in the next call, which
/// leaves at once if none is under way.
///
/// Once per slot at most: a slot with a `max_hold` may have ended before.
#[derive(Debug, Default)]
#[must_use = "dropping it gives back what the request holds"]
pub struct Reservation {
    /// Of each keeper one.
    parts: Vec<holds::Reservation<Arc<dyn SlotKeeper>>>,
}

impl Reservation {
    pub(crate) fn of(keeper: Arc<dyn SlotKeeper>, slots: impl IntoIterator<Item = SlotId>) -> Reservation {
        let part = holds::Reservation::new(keeper, slots);
        Reservation { parts: if part.is_empty() { Vec::new() } else { vec![part] } }
    }

    /// Returns whether there is nothing to give back.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds what another reservation holds, for example what a fallback has granted for the same request.
    pub fn join(&mut self, mut other: Reservation) {
        self.parts.append(&mut other.parts);
    }

    /// Gives everything back now.
    pub fn release(self) {
        drop(self);
    }
}

//! Ends the slots that a request has taken, exactly once, however the request ends.

use std::sync::Arc;

use smallvec::SmallVec;

use super::slots::SlotId;
use crate::cost::Cost;

/// How a slot ends. A slot is the amount that a request holds of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The whole amount of the slot is given back.
    Released,
    /// The amount of the slot is given back, because the request has spent this cost instead.
    Settled(Cost),
}

/// The owner of the slots in a reservation, to which the end of each slot is reported. A report never waits for the store: the
/// store learns of the end in the owner's next call.
pub trait ReservationOwner {
    fn end(&self, slot: SlotId, ending: Ending);
}

impl<O: ReservationOwner + ?Sized> ReservationOwner for Arc<O> {
    fn end(&self, slot: SlotId, ending: Ending) {
        (**self).end(slot, ending);
    }
}

/// The slots that a request holds and gives back when it ends. Tokens that were charged to a rate are never given back, so they
/// are not part of a reservation. Dropping a reservation releases the slots that have not ended.
#[derive(Debug)]
pub struct Reservation<O: ReservationOwner> {
    owner: O,
    slots: SmallVec<[SlotId; 2]>,
}

impl<O: ReservationOwner> Reservation<O> {
    /// Makes the reservation of a request. `slots` is empty if the request holds nothing that can be given back.
    pub fn new(owner: O, slots: impl IntoIterator<Item = SlotId>) -> Reservation<O> {
        Reservation { owner, slots: slots.into_iter().collect() }
    }

    /// Returns whether the reservation has no slot left to give back.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Ends one slot now, because `spent` was spent in its place. The other slots stay reserved.
    pub fn settle(&mut self, slot: SlotId, spent: Cost) {
        if let Some(index) = self.slots.iter().position(|own| *own == slot) {
            self.slots.remove(index);
            self.owner.end(slot, Ending::Settled(spent));
        }
    }

    /// Releases all slots that have not ended yet.
    pub fn release(self) {
        drop(self);
    }
}

impl<O: ReservationOwner> Drop for Reservation<O> {
    fn drop(&mut self) {
        for slot in self.slots.drain(..) {
            self.owner.end(slot, Ending::Released);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket_key::BucketKey;
    use crate::holds::{Holdings, Owner, SlotTerms};
    use base::time::Timestamp;
    use std::cell::RefCell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const NOW: Timestamp = Timestamp(1 << 50);

    /// Records the ends of slots, and passes them on to the holdings.
    struct Ledger {
        holdings: RefCell<Holdings>,
        ended: RefCell<Vec<(SlotId, Ending)>>,
    }

    impl ReservationOwner for &Ledger {
        fn end(&self, slot: SlotId, ending: Ending) {
            self.holdings.borrow_mut().end(slot);
            self.ended.borrow_mut().push((slot, ending));
        }
    }

    impl Ledger {
        fn with_slots(count: u8) -> (Ledger, Vec<SlotId>) {
            let mut holdings = Holdings::new(Owner(7));
            let terms = SlotTerms { amount: Cost::ONE, max_hold: None };
            let slots = (0..count).map(|bucket| holdings.hold(BucketKey([bucket; 16]), terms, NOW)).collect();
            (Ledger { holdings: RefCell::new(holdings), ended: RefCell::default() }, slots)
        }

        fn held(&self) -> u64 {
            (0..9).map(|bucket| self.holdings.borrow().held(&BucketKey([bucket; 16])).whole()).sum()
        }
    }

    #[test]
    fn every_way_out_ends_each_slot_once() {
        let ways: [fn(Reservation<&Ledger>); 3] = [
            |reservation| drop(reservation),
            |reservation| reservation.release(),
            |reservation| {
                let end = catch_unwind(AssertUnwindSafe(|| {
                    let _held = reservation;
                    panic!("a task");
                }));
                assert!(end.is_err());
            },
        ];
        for way in ways {
            let (ledger, slots) = Ledger::with_slots(3);
            assert_eq!(ledger.held(), 3);
            way(Reservation::new(&ledger, slots.clone()));
            let expected: Vec<_> = slots.into_iter().map(|slot| (slot, Ending::Released)).collect();
            assert_eq!((ledger.held(), ledger.ended.take()), (0, expected));
        }
    }

    #[test]
    fn a_settled_slot_is_not_released_again() {
        let (ledger, slots) = Ledger::with_slots(2);
        let mut reservation = Reservation::new(&ledger, slots.clone());
        reservation.settle(slots[0], Cost::from_tokens(5));
        reservation.settle(slots[0], Cost::from_tokens(6));
        assert_eq!((ledger.held(), reservation.is_empty()), (1, false));
        drop(reservation);
        let expected = vec![(slots[0], Ending::Settled(Cost::from_tokens(5))), (slots[1], Ending::Released)];
        assert_eq!((ledger.held(), ledger.ended.take()), (0, expected));
    }

    #[test]
    fn what_only_rates_have_charged_is_kept() {
        let (ledger, _) = Ledger::with_slots(0);
        let reservation = Reservation::new(&ledger, []);
        assert!(reservation.is_empty());
        drop(reservation);
        assert!(ledger.ended.take().is_empty());
    }
}

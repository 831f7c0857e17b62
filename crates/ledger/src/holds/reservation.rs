//! Ends what a request has taken exactly once, on every way out.

use smallvec::SmallVec;

use super::holdings::SlotId;
use crate::cost::Cost;

/// The way in which a slot ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All of it is given back.
    Released,
    /// It is given back, and this much was spent in its place.
    Settled(Cost),
}

/// The owner of slots, which learns how each of them ends. It waits for nothing: the store learns it with the next call.
pub trait ReservationOwner {
    fn end(&self, slot: SlotId, ending: Ending);
}

/// What a request has taken and can give back: its slots. What a rate has charged is kept for good, so it is not part of one.
/// Dropped, it releases what has not ended.
#[derive(Debug)]
pub struct Reservation<O: ReservationOwner> {
    owner: O,
    slots: SmallVec<[SlotId; 2]>,
}

impl<O: ReservationOwner> Reservation<O> {
    /// Of a request that has taken nothing it could give back, `slots` are empty.
    pub fn new(owner: O, slots: impl IntoIterator<Item = SlotId>) -> Reservation<O> {
        Reservation { owner, slots: slots.into_iter().collect() }
    }

    /// Whether everything that the request has taken is kept.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Ends one slot now: `spent` was spent in its place. The others stay reserved.
    pub fn settle(&mut self, slot: SlotId, spent: Cost) {
        if let Some(index) = self.slots.iter().position(|own| *own == slot) {
            self.slots.remove(index);
            self.owner.end(slot, Ending::Settled(spent));
        }
    }

    /// Gives everything back now that has not ended.
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

    /// Records the endings, and passes them on.
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

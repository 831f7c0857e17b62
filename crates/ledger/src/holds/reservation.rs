//! Ends the slots of a request, exactly once, however the request ends.

use std::sync::Arc;

use smallvec::SmallVec;

use super::slots::SlotId;
use crate::bucket_key::BucketKey;
use crate::cost::Cost;

/// How a slot ends. A slot is the amount that a request holds of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The whole amount of the slot is given back.
    Released,
    /// The slot is given back, and the request has spent this cost instead.
    Settled(Cost),
    /// The slot is given back. What was spent of the bucket until now is forgotten, and then the request has spent this
    /// cost.
    Reset(Cost),
}

/// The owner of the slots in a reservation, which reports their ends. The store learns of an end in the owner's next
/// call.
pub trait ReservationOwner {
    /// Ends a slot of this bucket.
    fn end(&self, bucket: &BucketKey, slot: SlotId, ending: Ending);
}

impl<O: ReservationOwner + ?Sized> ReservationOwner for Arc<O> {
    fn end(&self, bucket: &BucketKey, slot: SlotId, ending: Ending) {
        (**self).end(bucket, slot, ending);
    }
}

/// The slots that a request holds and gives back when it ends. Dropping a reservation releases them.
#[derive(Debug)]
pub struct Reservation<O: ReservationOwner> {
    owner: O,
    slots: SmallVec<[(BucketKey, SlotId); 2]>,
}

impl<O: ReservationOwner> Reservation<O> {
    /// Makes the reservation of a request. `slots` is empty if the request holds nothing.
    pub fn new(owner: O, slots: impl IntoIterator<Item = (BucketKey, SlotId)>) -> Reservation<O> {
        Reservation { owner, slots: slots.into_iter().collect() }
    }

    /// Returns whether the reservation has no slot left to give back.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Ends the slot of this bucket now. Returns whether the reservation had a slot of this bucket.
    pub fn end(&mut self, bucket: &BucketKey, ending: Ending) -> bool {
        let Some(index) = self.slots.iter().position(|(own, _)| own == bucket) else { return false };
        let (bucket, slot) = self.slots.remove(index);
        self.owner.end(&bucket, slot, ending);
        true
    }

    /// Releases all slots that have not ended yet.
    pub fn release(self) {
        drop(self);
    }
}

impl<O: ReservationOwner> Drop for Reservation<O> {
    fn drop(&mut self) {
        for (bucket, slot) in self.slots.drain(..) {
            self.owner.end(&bucket, slot, Ending::Released);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::algorithm::concurrency::Concurrency;
    use crate::holds::{Holdings, Owner, SlotTerms};
    use base::time::Timestamp;
    use std::cell::RefCell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const NOW: Timestamp = Timestamp(1 << 50);

    /// Records the ends of slots, and passes them on to the holdings.
    struct Ledger {
        holdings: RefCell<Holdings>,
        ended: RefCell<Vec<(BucketKey, SlotId, Ending)>>,
    }

    impl ReservationOwner for &Ledger {
        fn end(&self, bucket: &BucketKey, slot: SlotId, ending: Ending) {
            self.holdings.borrow_mut().end(slot);
            self.ended.borrow_mut().push((*bucket, slot, ending));
        }
    }

    impl Ledger {
        fn with_slots(count: u8) -> (Ledger, Vec<(BucketKey, SlotId)>) {
            let mut holdings = Holdings::new(Owner(7));
            let terms = SlotTerms { amount: Cost::ONE, algorithm: Algorithm::Concurrency(Concurrency::MOST) };
            let keys = (0..count).map(|bucket| BucketKey([bucket; 16]));
            let slots = keys.map(|key| (key, holdings.hold(key, terms, NOW))).collect();
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
            let expected: Vec<_> = slots.into_iter().map(|(key, slot)| (key, slot, Ending::Released)).collect();
            assert_eq!((ledger.held(), ledger.ended.take()), (0, expected));
        }
    }

    #[test]
    fn a_settled_slot_is_not_released_again() {
        let (ledger, slots) = Ledger::with_slots(2);
        let mut reservation = Reservation::new(&ledger, slots.clone());
        let [(first, first_slot), (second, second_slot)] = [slots[0], slots[1]];
        assert!(reservation.end(&first, Ending::Settled(Cost::from_tokens(5))));
        assert!(!reservation.end(&first, Ending::Settled(Cost::from_tokens(6))));
        assert_eq!((ledger.held(), reservation.is_empty()), (1, false));
        drop(reservation);
        let expected =
            vec![(first, first_slot, Ending::Settled(Cost::from_tokens(5))), (second, second_slot, Ending::Released)];
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

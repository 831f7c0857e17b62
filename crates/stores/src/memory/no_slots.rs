//! A book of slots for tests: nobody holds anything.

use super::local_holds::SlotBook;
use crate::reservation::Reservation;
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::holds::SlotTerms;

pub(crate) struct NoSlots;

impl SlotBook for NoSlots {
    fn held(&self, _: &BucketKey) -> Cost {
        Cost::default()
    }

    fn count_settled(&self, _: &BucketKey) -> Cost {
        Cost::default()
    }

    fn hold(&self, _: BucketKey, _: SlotTerms) -> Reservation {
        Reservation::default()
    }
}

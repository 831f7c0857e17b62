//! Lets home find two stores of one region: each store has a random number, which its gateways tell home at intervals.
//!
//! The number is in the region's store, so all its gateways tell the same one. Both values are kept as buckets are, under keys that no
//! bucket has, as words:
//!
//! | value | words |
//! |---|---|
//! | in the store of a region | the form, the number, until when the value is kept |
//! | at home, for each region | the form; then for each store its number and when it was last reported, by home's clock |

use std::cell::Cell;

use super::error::{Fault, StoreError};
use super::inspector::Inspector;
use base::time::{Micros, Timestamp};
use ledger::algorithm::{Entry, State};
use ledger::bucket_key::BucketKey;

/// The form of both values.
const FORM: u64 = 1;
/// For how long a store keeps its number, and how much of that is left when it is written again.
const KEPT: Micros = Micros(400 * 86_400_000_000);
const RENEWED: Micros = Micros(300 * 86_400_000_000);
/// For how long home remembers a store, and how many of a region.
const REMEMBERED: Micros = Micros(600_000_000);
const MOST_STORES: usize = 16;

/// Identifies the store of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreIdentity(pub u64);

impl StoreIdentity {
    /// Returns a random identity, for a store in memory.
    pub fn random() -> StoreIdentity {
        StoreIdentity(fastrand::u64(1..))
    }
}

impl Inspector {
    /// Returns the identity of this store, which the first caller chooses.
    ///
    /// # Errors
    /// When the store gives no answer, or refuses the request.
    pub async fn identity(&mut self) -> Result<StoreIdentity, Fault> {
        let found = Cell::new(None);
        let new = StoreIdentity::random();
        let choose = |_: &BucketKey, state: Option<&[u64]>, now: Timestamp| {
            let known = match state {
                Some(&[FORM, number, until]) => Some((number, Timestamp(until))),
                _ => None,
            };
            let identity = known.map_or(new, |(number, _)| StoreIdentity(number));
            found.set(Some(identity));
            let is_lasting = known.is_some_and(|(_, until)| now.plus(RENEWED) < until);
            let kept_until = now.plus(KEPT);
            let state = State::from_slice(&[FORM, identity.0, kept_until.0]);
            (!is_lasting).then_some(Entry { state, kept_until })
        };
        self.change(&[BucketKey::of_store_identity()], &choose).await?;
        found.get().ok_or_else(|| Fault::new(StoreError::UnexpectedReply, "the store has not told its identity"))
    }

    /// Tells this home that the gateways of a region use the store with this identity. Returns when another store
    /// of the region was last reported, by home's clock. `None` without another one.
    ///
    /// # Errors
    /// When the store gives no answer, or refuses the request.
    pub async fn tell_store(&mut self, region: &str, store: StoreIdentity) -> Result<Option<Timestamp>, Fault> {
        let heard = Cell::new(None);
        let tell = |_: &BucketKey, state: Option<&[u64]>, now: Timestamp| {
            let mut stores = parse(state.unwrap_or_default(), now);
            stores.retain(|(other, _)| *other != store);
            heard.set(stores.iter().map(|(_, at)| *at).max());
            stores.push((store, now));
            let words = stores.iter().rev().take(MOST_STORES).flat_map(|(store, at)| [store.0, at.0]);
            let state = [FORM].into_iter().chain(words).collect();
            Some(Entry { state, kept_until: now.plus(REMEMBERED) })
        };
        self.change(&[BucketKey::of_region(region)], &tell).await?;
        Ok(heard.get())
    }
}

/// Returns the stores of a region, and when they were last told. A value that is not readable has none.
fn parse(state: &[u64], now: Timestamp) -> Vec<(StoreIdentity, Timestamp)> {
    let Some((&FORM, rest)) = state.split_first() else { return Vec::new() };
    let (stores, _) = rest.as_chunks::<2>();
    let stores = stores.iter().rev().map(|&[store, at]| (StoreIdentity(store), Timestamp(at).min(now)));
    stores.filter(|(_, at)| now.since(*at) < REMEMBERED).collect()
}

/// Finds out, from what home answers at each time, whether another store speaks for this region too.
#[derive(Clone, Copy, Debug, Default)]
pub struct OtherStore {
    own: Option<StoreIdentity>,
    /// When another store was last reported, by home's clock.
    told: Option<Timestamp>,
    /// How often another store was reported since, and how many answers in a row have shown nothing new.
    times: u32,
    silent: u32,
}

/// How often another store must be reported: once can be a gateway that has not noticed yet that the store was replaced.
const TIMES: u32 = 2;

/// After how many answers without another store it is gone.
const SILENT: u32 = 4;

impl OtherStore {
    /// Notes an answer to the identity of this region's store. Returns whether another store speaks for this region at present.
    pub fn note(&mut self, own: StoreIdentity, other: Option<Timestamp>) -> bool {
        if self.own != Some(own) {
            *self = OtherStore { own: Some(own), told: other, ..OtherStore::default() };
            return false;
        }
        if other > self.told {
            *self = OtherStore { told: other, times: (self.times + 1).min(TIMES), silent: 0, ..*self };
        } else {
            self.silent = (self.silent + 1).min(SILENT);
        }
        if self.silent >= SILENT {
            self.times = 0;
        }
        self.times >= TIMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_store_is_found_when_it_is_told_again_and_again() {
        let mut found = OtherStore::default();
        let (one, two) = (StoreIdentity(1), StoreIdentity(2));
        let mut note = |store, other: Option<u64>| found.note(store, other.map(Timestamp));
        assert_eq!([note(one, Some(9)), note(one, Some(9)), note(one, None)], [false; 3]);
        // The store was replaced: its old number is reported once more, by a gateway that is late.
        assert_eq!([30, 45, 45, 45, 45, 45].map(|other| note(two, Some(other))), [false; 6]);
        // Another one is reported between.
        assert_eq!(
            [95, 95, 115, 115, 125, 125].map(|other| note(two, Some(other))),
            [false, false, true, true, true, true]
        );
        assert_eq!([125, 125, 125, 125].map(|other| note(two, Some(other))), [true, true, false, false]);
    }

    #[test]
    fn a_value_that_cannot_be_read_has_no_stores_and_old_ones_are_forgotten() {
        let now = Timestamp(REMEMBERED.0 + 50);
        for state in [&[][..], &[7, 1, 2], &[FORM], &[FORM, 1], &[FORM, 1, 50]] {
            assert_eq!(parse(state, now), []);
        }
        let known = [(StoreIdentity(4), Timestamp(60)), (StoreIdentity(3), now)];
        assert_eq!(parse(&[FORM, 3, u64::MAX, 4, 60], now), known);
    }
}

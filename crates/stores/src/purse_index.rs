//! Keeps an index of the purses of a region in its store, so that a gateway that has just started finds those that nobody uses.
//!
//! The index is in [parts](super::value_parts). The store keeps a part until the last purse in it ends. A part is packed into words: the first has the form in its lowest byte and above it the number of purses. Then each purse has:
//!
//! | words | content |
//! |---|---|
//! | 2 | the key of the purse |
//! | 2 | the hash of its numbers |
//! | 1 | the tag of its limit |
//! | 1 | when it ends, by the store's clock |

use super::error::Fault;
use super::inspector::Inspector;
use base::time::Timestamp;
use ledger::algorithm::{Entry, State};
use ledger::bucket_key::{BucketKey, LimitTag};

/// The most purses of a part. Further ones are left out.
const MOST_PURSES: usize = 512;
/// The form of a part.
const FORM: u64 = 1;
/// The number of words of a purse.
const WORDS: usize = 6;

/// A purse in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedPurse {
    pub key: BucketKey,
    /// [`ledger::algorithm::lease::Purse::numbers_hash`] of its limit.
    pub numbers: [u8; 16],
    pub tag: LimitTag,
    /// When the purse ends.
    pub ends: Timestamp,
}

impl Inspector {
    /// Adds purses to the index. Those without room are left out. `ends` is by the clock of the store.
    ///
    /// # Errors
    /// When the store gives no answer, or refuses the request. Some purses may be added then.
    pub async fn index_purses(&mut self, purses: &[IndexedPurse]) -> Result<(), Fault> {
        self.add_to_parts(purses, |purse| purse.key, BucketKey::of_purse_index, joined).await
    }

    /// Returns the purses in the index that have not ended.
    ///
    /// # Errors
    /// When the store gives no answer, or refuses the request.
    pub async fn indexed_purses(&mut self) -> Result<Vec<IndexedPurse>, Fault> {
        let parts = self.parts(BucketKey::of_purse_index).await?;
        Ok(parts.iter().flat_map(|(state, now)| parse(state, *now)).collect())
    }
}

/// Returns the part with these purses added. `None` if nothing changes.
fn joined(state: Option<&[u64]>, new: &[&IndexedPurse], now: Timestamp) -> Option<Entry> {
    let before = state.map(|state| parse(state, now)).unwrap_or_default();
    let mut purses = before.clone();
    for purse in new.iter().filter(|purse| purse.ends > now) {
        let has_room = purses.len() < MOST_PURSES;
        match purses.iter_mut().find(|known| known.key == purse.key) {
            Some(known) => *known = IndexedPurse { ends: known.ends.max(purse.ends), ..**purse },
            None if has_room => purses.push(**purse),
            None => {}
        }
    }
    let kept_until = purses.iter().map(|purse| purse.ends).max()?;
    (purses != before).then(|| Entry { state: pack(&purses), kept_until })
}

fn pack(purses: &[IndexedPurse]) -> State {
    let count = u64::try_from(purses.len()).unwrap_or_default();
    let words = purses.iter().flat_map(|purse| {
        let [[a, b], [c, d]] = [purse.key.0, purse.numbers].map(words_of);
        [a, b, c, d, u64::from(purse.tag.0), purse.ends.0]
    });
    [FORM | count << 8].into_iter().chain(words).collect()
}

/// Returns the purses of a part that have not ended. A part that is not readable has none.
fn parse(state: &[u64], now: Timestamp) -> Vec<IndexedPurse> {
    let Some((head, rest)) = state.split_first() else { return Vec::new() };
    let (purses, []) = rest.as_chunks::<WORDS>() else { return Vec::new() };
    if *head != FORM | u64::try_from(purses.len()).unwrap_or_default() << 8 || purses.len() > MOST_PURSES {
        return Vec::new();
    }
    let purse = |&[a, b, c, d, tag, ends]: &[u64; WORDS]| {
        let tag = LimitTag(u32::try_from(tag).ok()?);
        Some(IndexedPurse { key: BucketKey(bytes_of([a, b])), numbers: bytes_of([c, d]), tag, ends: Timestamp(ends) })
    };
    purses.iter().filter_map(purse).filter(|purse| purse.ends > now).collect()
}

fn words_of(bytes: [u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(bytes);
    [both, both >> 64].map(|word| u64::try_from(word & u128::from(u64::MAX)).unwrap_or_default())
}

fn bytes_of([first, second]: [u64; 2]) -> [u8; 16] {
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000);

    fn purse(number: u16, ends: u64) -> IndexedPurse {
        let mut key = [200; 16];
        key.iter_mut().zip(number.to_le_bytes()).for_each(|(to, byte)| *to = byte);
        IndexedPurse { key: BucketKey(key), numbers: [251; 16], tag: LimitTag(u32::MAX - 5), ends: Timestamp(ends) }
    }

    #[test]
    fn purses_are_read_back_until_they_end() {
        let (one, two) = (purse(1, 2_000), purse(2, 3_000));
        let part = joined(None, &[&one, &two], NOW).unwrap();
        assert_eq!((parse(&part.state, NOW), part.kept_until), (vec![one, two], Timestamp(3_000)));
        assert_eq!(parse(&part.state, Timestamp(2_000)), [two]);
        assert_eq!(joined(Some(&part.state), &[&two], NOW), None);
        let later = joined(Some(&part.state), &[&purse(2, 4_000), &purse(1, 1_500)], NOW).unwrap();
        assert_eq!(parse(&later.state, NOW), [one, purse(2, 4_000)]);
    }

    #[test]
    fn a_part_is_bounded_and_whatever_else_is_stored_there_has_no_purses() {
        let many: Vec<IndexedPurse> = (0..2000).map(|number| purse(number, 2_000)).collect();
        let part = joined(None, &many.iter().collect::<Vec<_>>(), NOW).unwrap();
        assert_eq!(parse(&part.state, NOW), many[..MOST_PURSES]);
        for state in [&[][..], &[2, 0], &[FORM | 1 << 8, 1, 2], &[u64::MAX; 7], &part.state[..9]] {
            assert!(parse(state, NOW).is_empty());
        }
    }
}

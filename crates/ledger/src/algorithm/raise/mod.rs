//! Raises: an operator gives one bucket a larger burst or limit until a moment.
//!
//! The raises of a bucket are part of its state, and end by themselves. The sum of those that run is added to the burst
//! or limit of each charge. A fixed window with [`thresholds`](super::thresholds) has a mark of the highest amount that was reported
//! in its period. A bucket with neither has none of this in its state. Otherwise its state begins with them, and the *plain*
//! state follows, which the bucket's algorithm knows. It is missing if nothing is spent.
//!
//! | words | content |
//! |---|---|
//! | 1 | the head: 0x72 in the highest byte, the number of raises in the second, of marks (0 or 1) in the lowest, zeros in all others |
//! | 3 for a mark | the amount in thousandths, the beginning and the end of its period |
//! | 3 for each raise | the first 8 bytes of the hash of its id, its amount in thousandths, the moment at which it ends |
//!
//! The first word of a plain state is below 2^53, so no plain state begins with such a head. A reader that does not know
//! raises finds such a state invalid, for every algorithm.

mod annotations;
#[cfg(test)]
mod mark_tests;
mod raised_bucket;
#[cfg(test)]
mod tests;

use super::step::{EXACT, Entry, State};
use crate::cost::Cost;
use crate::truncated_hash::first_number;
use annotations::Annotations;
pub(crate) use annotations::told_between;
use base::time::{Micros, Timestamp};
use sha2::{Digest, Sha256};

/// The largest number of raises of a bucket that have not ended.
pub const MOST_RAISES: usize = 16;

/// The Lua twin: text that returns functions for buckets with raises. They use the twin of the bucket's algorithm.
pub const TWIN: &str = include_str!("raise.lua");

/// The highest byte of the first word of a state with raises or a mark.
const HEAD: u64 = 0x72 << 56;

/// How long a mark is kept after its period, as long as a fixed window.
const HOUR: Micros = Micros(3_600_000_000);

/// The name of a raise: the beginning of the hash of the id that an operator gives to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaiseId(pub u64);

impl RaiseId {
    /// Returns the name of the raise with this id.
    pub fn of(id: &str) -> RaiseId {
        RaiseId(first_number(Sha256::new_with_prefix(id)))
    }
}

/// Displays the first 16 digits of the hash, as `sha256sum` prints them.
impl std::fmt::Display for RaiseId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// An amount that is added to the burst or limit of one bucket until a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raise {
    pub id: RaiseId,
    pub amount: Cost,
    pub end: Timestamp,
}

/// The reason why a bucket gets no raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaiseError {
    /// The limit is a leaky bucket, which has neither a burst nor a limit.
    LeakyBucket,
    /// The moment of the end has passed.
    Ended,
    /// A raise with the same id has another amount or end.
    OtherNumbers(Raise),
    /// As many raises run as a bucket can have.
    TooMany,
    /// The burst or limit could not be counted exactly. `largest` is the largest raise that fits.
    TooLarge { largest: Cost },
}

/// The words of one raise, or of a mark.
type Packed = [u64; 3];

/// The parts of a state that begins with raises or a mark.
#[derive(Clone, Copy, Debug)]
struct Split<'s> {
    told: Option<&'s Packed>,
    raises: &'s [Packed],
    /// The plain state. `None` if nothing is spent.
    plain: Option<&'s [u64]>,
}

/// Returns whether a state begins with raises or a mark, which may be invalid.
pub(crate) fn has_raises(state: &[u64]) -> bool {
    state.first().is_some_and(|head| *head >= HEAD)
}

fn head_of(raises: usize, is_marked: bool) -> u64 {
    HEAD | (raises as u64) << 8 | u64::from(is_marked)
}

/// Splits a state into its raises, its mark and the plain state. Returns `None` for a state that does not begin with a valid head.
fn split(state: &[u64]) -> Option<Split<'_>> {
    let (head, rest) = state.split_first().filter(|_| has_raises(state))?;
    let (is_marked, count) = (head & 1 == 1, usize::try_from((head - HEAD) >> 8).ok()?);
    if head_of(count, is_marked) != *head || count > MOST_RAISES || !is_marked && count == 0 {
        return None;
    }
    let (told, rest) = match is_marked {
        true => rest.split_first_chunk::<3>().map(|(told, rest)| (Some(told), rest))?,
        false => (None, rest),
    };
    let (raises, plain) = rest.split_at_checked(3 * count)?;
    let (raises, _) = raises.as_chunks::<3>();
    let is_valid = |[_, amount, end]: &Packed| (1..=EXACT).contains(amount) && *end <= EXACT;
    let is_valid_mark = |[amount, begin, end]: &Packed| (1..=EXACT).contains(amount) && begin < end && *end <= EXACT;
    let are_valid = raises.iter().all(is_valid) && told.is_none_or(is_valid_mark);
    are_valid.then_some(Split { told, raises, plain: Some(plain).filter(|plain| !plain.is_empty()) })
}

/// Returns the state without its raises and its mark. `None` if nothing is spent.
pub(super) fn plain(state: &[u64]) -> Option<&[u64]> {
    split(state).map_or(Some(state), |split| split.plain)
}

/// Returns the words of the raises and the mark at the beginning of a state. Empty without them.
pub(super) fn prefix(state: &[u64]) -> &[u64] {
    let count = split(state).map_or(0, |split| state.len() - split.plain.map_or(0, <[u64]>::len));
    state.get(..count).unwrap_or_default()
}

/// Returns a state with these words of raises in front.
pub(super) fn with_prefix(prefix: &[u64], mut plain: State) -> State {
    if !prefix.is_empty() {
        plain.insert_from_slice(0, prefix);
    }
    plain
}

/// Returns the state with one raise in place of those that run at `now`. It does not end, for a copy of the state that is
/// used only for a short time: by the clock of the copy, a raise might end too early. The copy has no mark.
pub fn without_ends(state: State, now: Timestamp) -> State {
    let Some(split) = split(&state) else { return state };
    let amount = Annotations::at(&split, now).sum();
    let plain = State::from_slice(split.plain.unwrap_or_default());
    let endless = Raise { id: RaiseId(0), amount, end: Timestamp(EXACT) };
    let raises = [endless].into_iter().filter(|raise| raise.amount > Cost::default()).collect();
    Annotations { raises, told: None }.joined(plain)
}

/// Returns what remains of a bucket after a reset: the raises that run at `now`, and the mark. `None` if there is neither.
pub fn after_reset(state: &[u64], now: Timestamp) -> Option<Entry> {
    let kept = Annotations::at(&split(state)?, now);
    (!kept.is_empty()).then(|| Entry { state: kept.joined(State::new()), kept_until: kept.kept_until() })
}

/// Returns the entry of a bucket that an operator has removed although it had got raises meanwhile: the raises that run at `now`
/// and the mark. `present` is what the bucket has now. `None` if nothing is missing in it.
pub fn restored(removed: &[u64], present: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
    /// How long a present state is kept at least, because only its algorithm knows how long it matters.
    const YEAR: Micros = Micros(366 * 24 * HOUR.0);
    let lost = Annotations::at(&split(removed)?, now);
    let found = present.and_then(split);
    let mut kept = found.map(|found| Annotations::at(&found, now)).unwrap_or_default();
    let plain = found.map_or(present, |found| found.plain);
    let before = kept.clone();
    let missing = lost.raises.iter().filter(|raise| !before.raises.iter().any(|known| known.id == raise.id));
    kept.raises.extend(missing.take(MOST_RAISES - before.raises.len().min(MOST_RAISES)).copied());
    kept.told = before.told.or(lost.told);
    let kept_until = if plain.is_some() { kept.kept_until().max(now.plus(YEAR)) } else { kept.kept_until() };
    (kept != before).then(|| Entry { state: kept.joined(State::from_slice(plain.unwrap_or_default())), kept_until })
}

/// Returns the amount of the highest threshold that was reported in the period that begins at `begin`. Zero if none was.
pub fn told_in(state: &[u64], begin: Timestamp) -> Cost {
    let told = split(state).and_then(|split| split.told).filter(|[_, first, _]| *first == begin.0);
    told.map_or(Cost::default(), |[amount, ..]| Cost::from_thousandths(*amount))
}

//! Holds the amounts granted in consecutive steps of time, and packs them into the state of a sliding window's bucket.
//!
//! The packed form begins with the size of an amount in bytes (one byte), the number of amounts (one byte), the length
//! of a step in microseconds (six bytes), and the index of the latest step since the Unix epoch (six bytes). The
//! amounts follow, in thousandths, the latest step's amount first. If there are steps of another length, they follow
//! in the same form. Zeros fill the last word. Everything is little-endian.

use smallvec::{SmallVec, smallvec};

use super::super::step::{EXACT, State};

/// The largest number of steps of one length: the 60 steps of a window, and a partial step.
const MOST_STEPS: usize = 61;
/// The longest step, in microseconds: half of the longest window of 31 days.
const LONGEST_STEP: u64 = 31 * 86_400_000_000 / 2;

/// The number of bytes before the amounts.
const HEADER: usize = 14;

/// The amounts granted in consecutive steps of equal length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantedSteps {
    /// The length of a step in microseconds, above 0.
    pub length: u64,
    /// The index of the latest step, counted from the Unix epoch.
    pub latest: u64,
    /// The amounts in thousandths, the latest step first.
    amounts: SmallVec<[u64; 12]>,
}

/// The granted steps of a bucket, of at most two lengths. The length that was charged last is first.
pub(crate) type BucketSteps = SmallVec<[GrantedSteps; 1]>;

impl GrantedSteps {
    /// Makes steps with a single grant, in the step with the index `latest`.
    pub(super) fn one(length: u64, latest: u64, amount: u64) -> GrantedSteps {
        GrantedSteps { length, latest, amounts: smallvec![amount] }
    }

    /// Returns the moment at which the latest step begins.
    pub(crate) fn latest_begin(&self) -> u64 {
        self.latest * self.length
    }

    /// Returns the moment at which the latest step ends.
    pub(crate) fn latest_end(&self) -> u64 {
        (self.latest + 1) * self.length
    }

    pub(super) fn total(&self) -> u64 {
        self.amounts.iter().sum()
    }

    /// Returns the end and the granted amount of each step, the oldest first.
    pub(super) fn ends(&self) -> impl Iterator<Item = (u64, u64)> {
        let number = (0..).zip(&self.amounts).map(|(before, amount)| (self.latest + 1 - before, *amount));
        let ends: SmallVec<[(u64, u64); 12]> = number.map(|(number, amount)| (number * self.length, amount)).collect();
        ends.into_iter().rev()
    }

    /// Removes the oldest steps, until a step has a grant and ends after `last`.
    pub(super) fn forget(&mut self, last: u64) {
        while let Some(oldest) = self.amounts.last() {
            let end = (self.latest + 2 - self.amounts.len() as u64) * self.length;
            if *oldest > 0 && end > last {
                return;
            }
            self.amounts.pop();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.amounts.is_empty()
    }

    /// Adds an amount to the step with this index, or to the latest step if that is later.
    pub(super) fn add(&mut self, step: u64, amount: u64) {
        let later = usize::try_from(step.saturating_sub(self.latest)).unwrap_or(usize::MAX);
        if later > 0 {
            self.amounts.insert_many(0, std::iter::repeat_n(0, later.min(MOST_STEPS)));
            self.latest = step;
        }
        if let Some(latest) = self.amounts.first_mut() {
            *latest += amount;
        }
    }

    /// Adds all amounts of `older`, which has another length, to the step in which the latest step of `older` ends.
    /// That end must not be after the latest step of `self`.
    fn fold(&mut self, older: &GrantedSteps) {
        let step = (older.latest_end() - 1) / self.length;
        let before = usize::try_from(self.latest - step.min(self.latest)).unwrap_or(usize::MAX);
        let oldest = self.amounts.len().saturating_sub(1);
        if let Some(amount) = self.amounts.get_mut(before.min(oldest)) {
            *amount += older.total();
        }
    }

    /// Returns the end and the amount of the last step with a grant.
    fn last_granted(&mut self) -> Option<(u64, &mut u64)> {
        let (length, latest) = (self.length, self.latest);
        let (before, amount) = (0u64..).zip(&mut self.amounts).find(|(_, amount)| **amount > 0)?;
        Some(((latest + 1 - before) * length, amount))
    }

    fn pack(&self, bytes: &mut ByteWriter) {
        let largest = self.amounts.iter().fold(1, |all, amount| all | amount);
        let width = (u64::BITS - largest.leading_zeros()).div_ceil(8);
        // The exact size is reserved, because a bucket keeps all reserved memory.
        let length = HEADER + usize::try_from(width).unwrap_or(8) * self.amounts.len();
        bytes.words.reserve_exact(length.div_ceil(8));
        bytes.push(width.into(), 1);
        bytes.push(self.amounts.len() as u64, 1);
        bytes.push(self.length, 6);
        bytes.push(self.latest, 6);
        self.amounts.iter().for_each(|amount| bytes.push(*amount, width));
    }

    /// Reads packed steps. `None` for invalid bytes.
    fn unpack(bytes: &mut ByteReader<'_>) -> Option<GrantedSteps> {
        let (width, count) = (u32::try_from(bytes.take(1)?).ok()?, bytes.take(1)?);
        let (length, latest) = (bytes.take(6)?, bytes.take(6)?);
        let fits = (1..=7).contains(&width)
            && (1..=MOST_STEPS as u64).contains(&count)
            && (1..=LONGEST_STEP).contains(&length)
            && latest.checked_mul(length).is_some_and(|begin| begin <= EXACT)
            && count <= latest + 1;
        if !fits {
            return None;
        }
        let mut amounts = SmallVec::with_capacity(usize::try_from(count).ok()?);
        for _ in 0..count {
            amounts.push(bytes.take(width)?);
        }
        Some(GrantedSteps { length, latest, amounts })
    }
}

/// Packs numbers of a few bytes into words, the lowest bytes first.
#[derive(Default)]
struct ByteWriter {
    words: State,
    /// The bytes of the unfinished last word.
    last: u64,
    bits: u32,
}

impl ByteWriter {
    /// Appends `number`, which has at most `width` bytes. `width` is 1 to 7.
    fn push(&mut self, number: u64, width: u32) {
        self.last |= number << self.bits;
        self.bits += 8 * width;
        if self.bits >= u64::BITS {
            self.words.push(self.last);
            self.bits -= u64::BITS;
            self.last = number >> (8 * width - self.bits);
        }
    }

    fn words(mut self) -> State {
        if self.bits > 0 {
            self.words.push(self.last);
        }
        self.words
    }
}

/// Reads the numbers that a [`ByteWriter`] has written.
struct ByteReader<'s> {
    words: &'s [u64],
    /// The number of bits of the first word that have been read.
    bits: u32,
}

impl ByteReader<'_> {
    /// Reads the next number, which has `width` bytes. `width` is 1 to 7. `None` if too few bytes are left.
    fn take(&mut self, width: u32) -> Option<u64> {
        let (first, rest) = self.words.split_first()?;
        let mut number = first >> self.bits;
        self.bits += 8 * width;
        if self.bits >= u64::BITS {
            self.bits -= u64::BITS;
            self.words = rest;
            if self.bits > 0 {
                number |= rest.first()? << (8 * width - self.bits);
            }
        }
        Some(number & ((1 << (8 * width)) - 1))
    }

    /// Returns how many bytes are left.
    fn left(&self) -> usize {
        8 * self.words.len() - usize::try_from(self.bits / 8).unwrap_or(0)
    }
}

/// Packs the steps into the state of a bucket.
pub(super) fn pack(granted: &BucketSteps) -> State {
    let mut bytes = ByteWriter::default();
    granted.iter().for_each(|steps| steps.pack(&mut bytes));
    bytes.words()
}

/// Unpacks the state of a bucket. `None` for an invalid state.
pub(super) fn unpack(state: &[u64]) -> Option<BucketSteps> {
    let mut bytes = ByteReader { words: state, bits: 0 };
    let mut granted: BucketSteps = smallvec![GrantedSteps::unpack(&mut bytes)?];
    // Fewer than eight bytes are the zeros at the end.
    if bytes.left() >= 8 {
        granted.push(GrantedSteps::unpack(&mut bytes)?);
    }
    let total = granted.iter().map(GrantedSteps::total).sum::<u64>();
    (bytes.left() < 8 && total <= EXACT).then_some(granted)
}

/// Makes room for steps of a third length: merges the steps of the older length into the steps of the newer length.
pub(super) fn fold(granted: &mut BucketSteps) {
    if granted.len() > 1
        && let Some(mut newer) = granted.pop()
        && let Some(mut older) = granted.pop()
    {
        if newer.latest_end() < older.latest_end() {
            std::mem::swap(&mut older, &mut newer);
        }
        newer.fold(&older);
        granted.push(newer);
    }
}

/// Takes back up to this many thousandths of what was granted, first from the steps that end last.
pub(super) fn take_back(granted: &mut BucketSteps, mut thousandths: u64) {
    while thousandths > 0 {
        let last = granted.iter_mut().filter_map(GrantedSteps::last_granted);
        let Some((_, amount)) = last.reduce(|last, other| if other.0 > last.0 { other } else { last }) else { return };
        let taken = thousandths.min(*amount);
        *amount -= taken;
        thousandths -= taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn steps(length: u64, latest: u64, amounts: &[u64]) -> GrantedSteps {
        GrantedSteps { length, latest, amounts: amounts.into() }
    }

    #[test]
    fn they_are_packed_in_as_few_bytes_as_the_largest_needs() {
        let one = |amounts: &[u64]| pack(&smallvec![steps(6_000_000, 298_900_000, amounts)]);
        let header = 6_000_000 << 16 | 2 << 8 | 1;
        assert_eq!(one(&[200, 7])[..], [header, 298_900_000 | 200 << 48 | 7 << 56]);
        let words = [(&[1][..], 2), (&[256][..], 2), (&[65_536; 11][..], 6), (&[EXACT, 0][..], 4)];
        for (amounts, words) in words {
            assert_eq!((one(amounts).len(), one(amounts).capacity()), (words, words.max(3)), "{amounts:?}");
        }
    }

    #[test]
    fn what_cannot_have_been_packed_is_refused() {
        let good = steps(6_000_000, 298_900_000, &[300, 7, 9]);
        let bad = [
            steps(0, 1, &[1]),
            steps(LONGEST_STEP + 1, 1, &[1]),
            steps(6_000_000, 1_501_199_876, &[1]),
            steps(6_000_000, 1, &[1, 1, 1]),
            steps(6_000_000, 298_900_000, &[]),
            steps(6_000_000, 298_900_000, &[1; 62]),
            steps(6_000_000, 298_900_000, &[EXACT + 1]),
        ];
        for bad in bad {
            assert_eq!(unpack(&pack(&smallvec![bad.clone()])), None, "{bad:?}");
            assert_eq!(unpack(&pack(&smallvec![good.clone(), bad.clone()])), None, "{bad:?}");
        }
        let twice: BucketSteps = smallvec![good.clone(), steps(5_000_000, 298_900_000, &[1; 61])];
        assert_eq!(unpack(&pack(&twice)), Some(twice.clone()));
        let thrice: BucketSteps = smallvec![good.clone(), good.clone(), good.clone()];
        for state in [pack(&thrice), pack(&smallvec![]), smallvec![0], [&pack(&twice)[..], &[0]].concat().into()] {
            assert_eq!(unpack(&state), None, "{state:?}");
        }
        // The sum of these amounts is not exact.
        let much = steps(6_000_000, 298_900_000, &[EXACT, 1]);
        assert_eq!(unpack(&pack(&smallvec![much])), None);
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(
            several in prop::collection::vec(
                (1..=LONGEST_STEP, 60u64..6000, prop::collection::vec(0..(EXACT / 122), 1..=MOST_STEPS)),
                1..=2,
            ),
        ) {
            let granted: BucketSteps = several.iter().map(|(length, latest, amounts)| steps(*length, *latest, amounts)).collect();
            prop_assert_eq!(unpack(&pack(&granted)), Some(granted));
        }
    }
}

//! Reads and packs the state of a purse.
//!
//! Amounts are thousandths, and moments are on the clock of the region's store:
//!
//! | words | content |
//! |---|---|
//! | 1 | in its lowest bytes the form, the kind of the word that the purse waits for (0 for none), and how often it was sent again |
//! | 1 | the number of the last word |
//! | 1 | what is left in the purse |
//! | 1 | the period for which that was leased |
//! | 1 | when it ends |
//! | 1 | until when home is known to be short |
//! | 1 | when the purse was last paid from or filled |
//! | 1 | what is spent in one round trip to home |
//! | 1 | what was spent since the last mark |
//! | 1 | what was left at home, as last heard |
//! | 1 | when home was last heard |
//! | 1 | since when charges can be undone |
//!
//! If the purse counts what its region has leased, it has form 2 or 4, otherwise form 1 or 3. In forms 2 and 4 four words follow: the token
//! bucket or window of its share, and what was spent of the share without a lease. In forms 3 and 4 two words follow: the sum of the raises at
//! home, as last heard, and when the first of them ends.
//!
//! While the purse waits for an answer, the word follows:
//!
//! | words | content |
//! |---|---|
//! | 1 | its tag |
//! | 1 | its amount |
//! | 1 | the least amount that helps |
//! | 1 | what was left in the purse at its mark |
//! | 1 | when the purse was marked for the last try |
//! | 1 | when the word is to be sent again |

use smallvec::smallvec;

use super::super::{Word, WordId, WordKind};
use crate::algorithm::step::{EXACT, Entry, State};
use crate::cost::Cost;
use base::time::Timestamp;

const PLAIN: u64 = 1;
const COUNTING: u64 = 2;
/// This is added to the form of a purse with a raise.
const RAISED: u64 = 2;

/// The largest number of tries that is counted.
pub(super) const MOST_TRIES: u64 = 16;

/// The word for whose answer a purse waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingWord {
    pub kind: WordKind,
    pub tag: u64,
    pub amount: u64,
    pub least: u64,
    pub left: u64,
    pub mark: Timestamp,
    pub until: Timestamp,
    /// How often the word was sent again.
    pub tries: u64,
}

impl PendingWord {
    /// Whether it is too early to send the word again.
    pub(super) fn is_too_early(&self, now: Timestamp) -> bool {
        self.mark <= now && now < self.until
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredPurse {
    pub number: u64,
    pub left: u64,
    pub period: Timestamp,
    pub ends: Timestamp,
    pub short_until: Timestamp,
    pub touched: Timestamp,
    pub trip: u64,
    pub since_mark: u64,
    pub left_at_home: u64,
    /// When home said that. Zero if that is not known.
    pub heard: Timestamp,
    /// The raises at home, as last heard. `None` without any.
    pub raise: Option<StoredRaise>,
    /// Since when charges can be undone. Of a window, they are of the same period. Of a token bucket, home does not know of them.
    pub undone_since: Timestamp,
    pub waiting: Option<PendingWord>,
    /// `None` for a purse that does not count.
    pub share: Option<StoredShare>,
}

/// The raises of the bucket at home, until the next answer of home. Nothing is paid or refused by them: they are only shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredRaise {
    /// Their sum, in thousandths. Not zero.
    pub amount: u64,
    /// When the first of them ends.
    pub ends: Timestamp,
}

/// What a region has leased, or spent without home, as the state of its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredShare {
    pub words: [u64; 3],
    /// What was spent without a lease, in thousandths: the next leases pay it.
    pub debt: u64,
    /// Zero before the share is opened at a moment.
    pub kept_until: Timestamp,
}

impl StoredShare {
    /// Returns the share of an entry of a token bucket or fixed window, and a debt.
    pub(super) fn of(entry: &Entry, debt: u64) -> Option<StoredShare> {
        let words = <[u64; 3]>::try_from(&entry.state[..]).ok()?;
        Some(StoredShare { words, debt, kept_until: entry.kept_until })
    }
}

impl StoredPurse {
    /// Returns an empty purse. Its numbers go on above those of an earlier purse, unless the clock was set back.
    pub(super) fn new(now: Timestamp) -> StoredPurse {
        StoredPurse {
            number: now.0.min(EXACT) / 1000,
            left: 0,
            period: Timestamp(0),
            ends: Timestamp(0),
            short_until: Timestamp(0),
            touched: Timestamp(0),
            trip: 0,
            since_mark: 0,
            left_at_home: 0,
            heard: Timestamp(0),
            raise: None,
            undone_since: Timestamp(0),
            waiting: None,
            share: None,
        }
    }

    /// Parses a state. `None` if the words cannot be a purse.
    pub(super) fn parse(state: &[u64]) -> Option<StoredPurse> {
        let (
            &[
                head,
                number,
                left,
                period,
                ends,
                short_until,
                touched,
                trip,
                since_mark,
                left_at_home,
                heard,
                undone_since,
            ],
            rest,
        ) = state.split_first_chunk::<12>()?;
        let (form, kind, tries) = (head & 0xff, head >> 8 & 0xff, head >> 16);
        let (plain_form, is_raised) = if form > RAISED { (form - RAISED, true) } else { (form, false) };
        let (share, rest) = match plain_form {
            COUNTING => {
                let (&[spent, first, last, debt], rest) = rest.split_first_chunk::<4>()?;
                (Some(StoredShare { words: [spent, first, last], debt, kept_until: Timestamp(0) }), rest)
            }
            _ => (None, rest),
        };
        let (raise, rest) = match is_raised {
            true => {
                let (&[amount, ends], rest) = rest.split_first_chunk::<2>().filter(|([amount, _], _)| *amount > 0)?;
                (Some(StoredRaise { amount, ends: Timestamp(ends) }), rest)
            }
            false => (None, rest),
        };
        if !matches!(plain_form, PLAIN | COUNTING) || state.iter().any(|word| *word > EXACT) {
            return None;
        }
        let waiting = match (kind, rest) {
            (0, []) if tries == 0 => None,
            (kind, &[tag, amount, least, left, mark, until]) if tries <= MOST_TRIES => {
                let (mark, until) = (Timestamp(mark), Timestamp(until));
                Some(PendingWord { kind: WordKind::of_code(kind)?, tag, amount, least, left, mark, until, tries })
            }
            _ => return None,
        };
        Some(StoredPurse {
            number,
            left,
            period: Timestamp(period),
            ends: Timestamp(ends),
            short_until: Timestamp(short_until),
            touched: Timestamp(touched),
            trip,
            since_mark,
            left_at_home,
            heard: Timestamp(heard),
            raise,
            undone_since: Timestamp(undone_since),
            waiting,
            share,
        })
    }

    pub(super) fn pack(&self) -> State {
        let head = self.waiting.map_or(0, |waiting| waiting.kind.code() << 8 | waiting.tries << 16);
        let plain_form = if self.share.is_some() { COUNTING } else { PLAIN };
        let form = if self.raise.is_some() { plain_form + RAISED } else { plain_form };
        let mut state: State = smallvec![
            form | head,
            self.number,
            self.left,
            self.period.0,
            self.ends.0,
            self.short_until.0,
            self.touched.0,
            self.trip,
            self.since_mark,
            self.left_at_home,
            self.heard.0,
            self.undone_since.0,
        ];
        if let Some(StoredShare { words: [spent, first, last], debt, .. }) = self.share {
            state.extend([spent, first, last, debt]);
        }
        if let Some(StoredRaise { amount, ends }) = self.raise {
            state.extend([amount, ends.0]);
        }
        if let Some(PendingWord { tag, amount, least, left, mark, until, .. }) = self.waiting {
            state.extend([tag, amount, least, left, mark.0, until.0]);
        }
        state
    }

    /// Begins a new word at `now`. Home takes what has left the purse of a token bucket until then for spent.
    pub(super) fn begin_word(&mut self, now: Timestamp) {
        self.number += 1;
        self.since_mark = 0;
        if self.period == Timestamp(0) {
            self.undo_from(now);
        }
    }

    /// Lets no charge up to `now` be undone, nor the last one before the clock was set back.
    pub(super) fn undo_from(&mut self, now: Timestamp) {
        self.undone_since = now.max(self.touched);
    }

    /// Returns the word for which the purse waits.
    pub(super) fn word(&self) -> Option<Word> {
        let PendingWord { kind, tag, amount, least, left, .. } = self.waiting?;
        let [amount, least, left] = [amount, least, left].map(Cost::from_thousandths);
        Some(Word { id: WordId { number: self.number, tag }, kind, amount, least, left, period: self.period })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purses_of_every_form_are_read_as_they_were_written() {
        let words: [u64; 10] = std::array::from_fn(|index| index as u64 + 20);
        let (share, raise, waiting) = ([30, 31, 32, 33], [40, 41], [50, 51, 52, 53, 54, 55]);
        // Without a raise, as purses were before they had any.
        for (form, more) in
            [(1, vec![]), (2, share.to_vec()), (3, raise.to_vec()), (4, [&share[..], &raise[..]].concat())]
        {
            let tail = [&[19][..], &words[..], &more[..]].concat();
            let idle = [&[form][..], &tail[..]].concat();
            let asking = [&[form | 1 << 8 | 2 << 16][..], &tail[..], &waiting[..]].concat();
            for state in [idle, asking] {
                let purse = StoredPurse::parse(&state).unwrap();
                assert_eq!(purse.raise.map(|raise| (raise.amount, raise.ends.0)), (form > 2).then_some((40, 41)));
                assert_eq!(&purse.pack()[..], state);
                assert!(StoredPurse::parse(&state[..state.len() - 1]).is_none());
            }
            if form > 2 {
                let place = tail.len() - 1;
                let mut nothing = [&[form][..], &tail[..]].concat();
                nothing[place] = 0;
                assert!(StoredPurse::parse(&nothing).is_none());
            }
        }
    }
}

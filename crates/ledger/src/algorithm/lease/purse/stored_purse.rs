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
//! If the purse counts what its region has leased, it has form 2, otherwise form 1. In form 2 four words follow: the token bucket or window
//! of its share, and what was spent of the share without a lease.
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
    /// Since when charges can be undone. Of a window, they are of the same period. Of a token bucket, home does not know of them.
    pub undone_since: Timestamp,
    pub waiting: Option<PendingWord>,
    /// `None` for a purse that does not count.
    pub share: Option<StoredShare>,
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
        let (share, rest) = match form {
            COUNTING => {
                let (&[spent, first, last, debt], rest) = rest.split_first_chunk::<4>()?;
                (Some(StoredShare { words: [spent, first, last], debt, kept_until: Timestamp(0) }), rest)
            }
            _ => (None, rest),
        };
        if !matches!(form, PLAIN | COUNTING) || state.iter().any(|word| *word > EXACT) {
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
            undone_since: Timestamp(undone_since),
            waiting,
            share,
        })
    }

    pub(super) fn pack(&self) -> State {
        let head = self.waiting.map_or(0, |waiting| waiting.kind.code() << 8 | waiting.tries << 16);
        let form = if self.share.is_some() { COUNTING } else { PLAIN };
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

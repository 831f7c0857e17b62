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
use crate::algorithm::step::{EXACT, State};
use crate::cost::Cost;
use base::time::Timestamp;

const FORM: u64 = 1;

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
    pub waiting: Option<PendingWord>,
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
            waiting: None,
        }
    }

    /// Parses a state. `None` if the words cannot be a purse.
    pub(super) fn parse(state: &[u64]) -> Option<StoredPurse> {
        let (&[head, number, left, period, ends, short_until, touched, trip, since_mark, left_at_home], rest) =
            state.split_first_chunk::<10>()?;
        let (form, kind, tries) = (head & 0xff, head >> 8 & 0xff, head >> 16);
        if form != FORM || state.iter().any(|word| *word > EXACT) {
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
            waiting,
        })
    }

    pub(super) fn pack(&self) -> State {
        let head = self.waiting.map_or(0, |waiting| waiting.kind.code() << 8 | waiting.tries << 16);
        let mut state: State = smallvec![
            FORM | head,
            self.number,
            self.left,
            self.period.0,
            self.ends.0,
            self.short_until.0,
            self.touched.0,
            self.trip,
            self.since_mark,
            self.left_at_home,
        ];
        if let Some(PendingWord { tag, amount, least, left, mark, until, .. }) = self.waiting {
            state.extend([tag, amount, least, left, mark.0, until.0]);
        }
        state
    }

    /// Returns the word for which the purse waits.
    pub(super) fn word(&self) -> Option<Word> {
        let PendingWord { kind, tag, amount, least, left, .. } = self.waiting?;
        let [amount, least, left] = [amount, least, left].map(Cost::from_thousandths);
        Some(Word { id: WordId { number: self.number, tag }, kind, amount, least, left, period: self.period })
    }
}

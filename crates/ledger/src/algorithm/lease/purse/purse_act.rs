//! Holds the acts of a purse, which change it without a charge, and their replies, as values and as integers.

use smallvec::{SmallVec, smallvec};

use super::super::{HomeAnswer, MarkedWord, Word, WordId, WordKind};
use crate::algorithm::step::EXACT;
use crate::cost::Cost;
use base::time::{Micros, Timestamp};

/// A change of a purse that is no charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurseAct {
    /// Marks the purse as waiting for a lease, if it is low after a request of this cost, or cannot pay one. Gives the word to
    /// send, also if an earlier word was not answered in time. Gives nothing if a word is under way or home is known to be short.
    Mark { cost: Cost, tag: u64 },
    /// Gives the word again if the purse still waits for its answer, and the time to send it again has come.
    Resend { id: WordId },
    /// Credits what home has given, if the purse waits for this answer. `mark` is that of the try that was answered, and `wanted`
    /// the sum of the costs that wait for it.
    Credit { answer: HomeAnswer, mark: Timestamp, wanted: Cost },
    /// Takes everything out of a purse that was untouched for `idle`, and gives the word that returns it to home. Gives nothing while
    /// the purse waits for an answer.
    Surplus { tag: u64, idle: Micros },
}

/// What came of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurseReply {
    /// Nothing has changed.
    Nothing,
    /// A word to send to home.
    Send(MarkedWord),
    /// The answer was waited for. The requests that wait for it can be charged again.
    Credited,
}

impl PurseAct {
    /// Returns the act as integers, each below 2^53, for a store that runs scripts.
    pub fn numbers(&self) -> SmallVec<[u64; 14]> {
        match *self {
            PurseAct::Mark { cost, tag } => smallvec![1, cost.thousandths().min(EXACT), tag],
            PurseAct::Resend { id: WordId { number, tag } } => smallvec![2, number, tag],
            PurseAct::Surplus { tag, idle } => smallvec![3, tag, idle.0.min(EXACT)],
            PurseAct::Credit { answer, mark, wanted } => {
                let mut numbers = smallvec![4, mark.0, wanted.thousandths().min(EXACT)];
                numbers.extend(answer.numbers());
                numbers
            }
        }
    }
}

impl PurseReply {
    /// Parses the reply of a script. `None` for any other numbers.
    pub fn parse(numbers: &[u64]) -> Option<PurseReply> {
        match *numbers {
            [0] => Some(PurseReply::Nothing),
            [2] => Some(PurseReply::Credited),
            [1, number, tag, kind, amount, least, left, period, mark, until] => {
                let [amount, least, left] = [amount, least, left].map(Cost::from_thousandths);
                let (kind, period) = (WordKind::of_code(kind)?, Timestamp(period));
                let word = Word { id: WordId { number, tag }, kind, amount, least, left, period };
                let mark = Timestamp(mark);
                Some(PurseReply::Send(MarkedWord { word, mark, again_after: Timestamp(until).since(mark) }))
            }
            _ => None,
        }
    }
}

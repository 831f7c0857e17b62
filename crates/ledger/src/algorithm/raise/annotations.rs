//! Holds what precedes the plain state of a bucket: its raises, and a mark of the highest threshold that was reported in its period.

use smallvec::SmallVec;

use super::{HOUR, Packed, Raise, RaiseId, Split, head_of};
use crate::algorithm::Algorithm;
use crate::algorithm::step::{EXACT, Entry, State};
use crate::cost::Cost;
use crate::outcome::ToldThresholds;
use base::time::Timestamp;

/// The amount of the highest threshold that was reported in a period of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ToldMark {
    pub amount: Cost,
    /// The beginning of the period, which distinguishes it from others.
    pub begin: Timestamp,
    pub end: Timestamp,
}

/// The raises of a bucket that run at one moment, and its mark, which is kept as long as a state of its period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Annotations {
    pub raises: SmallVec<[Raise; 2]>,
    pub told: Option<ToldMark>,
}

impl Annotations {
    pub(super) fn at(split: &Split<'_>, now: Timestamp) -> Annotations {
        let unpack = |[id, amount, end]: &Packed| Raise {
            id: RaiseId(*id),
            amount: Cost::from_thousandths(*amount),
            end: Timestamp(*end),
        };
        Annotations {
            raises: split.raises.iter().map(unpack).filter(|raise| raise.end > now).collect(),
            told: split.told.map(ToldMark::unpack).filter(|told| told.kept_until() > now),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.raises.is_empty() && self.told.is_none()
    }

    /// Returns the sum of the raises, at most [`EXACT`] thousandths.
    pub(super) fn sum(&self) -> Cost {
        let sum = self.raises.iter().fold(0, |sum: u64, raise| (sum + raise.amount.thousandths()).min(EXACT));
        Cost::from_thousandths(sum)
    }

    pub(super) fn kept_until(&self) -> Timestamp {
        let last_end = self.raises.iter().map(|raise| raise.end).max().unwrap_or_default();
        last_end.max(self.told.map(|told| told.kept_until()).unwrap_or_default())
    }

    /// Returns the state that begins with these annotations.
    pub(super) fn joined(&self, plain: State) -> State {
        if self.is_empty() {
            return plain;
        }
        let mut state = State::with_capacity(4 + 3 * self.raises.len() + plain.len());
        state.push(head_of(self.raises.len(), self.told.is_some()));
        if let Some(ToldMark { amount, begin, end }) = self.told {
            state.extend([amount.thousandths(), begin.0, end.0]);
        }
        for Raise { id, amount, end } in &self.raises {
            state.extend([id.0, amount.thousandths(), end.0]);
        }
        state.extend(plain);
        state
    }

    pub(super) fn join(&self, Entry { state, kept_until }: Entry) -> Entry {
        Entry { state: self.joined(state), kept_until: kept_until.max(self.kept_until()) }
    }

    /// Moves the mark to the highest threshold of `limit` that the plain state reaches, if it is above the mark.
    pub(super) fn tell(&self, limit: &Algorithm, plain: &[u64]) -> Annotations {
        let thresholds = limit.thresholds();
        let &[spent, begin, end, ..] = plain else { return self.clone() };
        if thresholds.is_empty() {
            return self.clone();
        }
        let amount = thresholds.reached(limit.ceiling(), Cost::from_thousandths(spent));
        let (begin, end) = (Timestamp(begin), Timestamp(end));
        let told = self.told.filter(|told| told.begin == begin).map_or(Cost::default(), |told| told.amount);
        match amount > told {
            true => Annotations { told: Some(ToldMark { amount, begin, end }), ..self.clone() },
            false => self.clone(),
        }
    }
}

impl ToldMark {
    fn unpack([amount, begin, end]: &Packed) -> ToldMark {
        ToldMark { amount: Cost::from_thousandths(*amount), begin: Timestamp(*begin), end: Timestamp(*end) }
    }

    fn kept_until(&self) -> Timestamp {
        self.end.plus(HOUR)
    }
}

/// Returns the thresholds that a charge has told: those that its bucket's mark has passed between two states.
pub(crate) fn told_between(before: Option<&[u64]>, after: &[u64]) -> ToldThresholds {
    let mark = |state: &[u64]| super::split(state)?.told.map(ToldMark::unpack);
    match (before.and_then(mark), mark(after)) {
        (Some(before), Some(after)) if before == after => ToldThresholds::default(),
        (Some(before), Some(after)) if before.begin == after.begin => {
            ToldThresholds { above: before.amount, to: after.amount }
        }
        (_, Some(after)) => ToldThresholds { above: Cost::default(), to: after.amount },
        (_, None) => ToldThresholds::default(),
    }
}

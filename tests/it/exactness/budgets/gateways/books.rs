//! Compares what the store says of a budget with what its upstream has counted.

use std::time::Duration;

use super::super::books::Finding;
use super::play::LATE;
use crate::support::model_calls::{Call, CallResult, End, Sent};

/// A call that was made.
#[derive(Clone, Debug)]
pub struct Entry {
    pub call: Call,
    pub gateway: usize,
    /// When it was sent and when its client saw the end, since the beginning of the run.
    pub time: [Duration; 2],
    pub seen: CallResult,
    /// What the upstream has sent. `None` if the call did not reach it.
    pub sent: Option<Sent>,
    /// The least and the most that was reserved for it.
    pub reserved: [u64; 2],
}

/// What a fault may have changed.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// The gateway whose calls it concerns. `None`: those of all.
    pub gateway: Option<usize>,
    pub of: LossOf,
    /// When it began and ended, since the beginning of the run.
    pub time: [Duration; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossOf {
    /// Calls that were in flight at a moment of this time are cut, and nobody charges their costs.
    Calls,
    /// Costs that were charged in this time may be forgotten.
    Costs,
}

#[derive(Clone, Debug, Default)]
pub struct Books {
    pub entries: Vec<Entry>,
    pub losses: Vec<Loss>,
}

/// What `tollgate bucket show` says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    pub spent: u64,
    pub held: u64,
}

impl Entry {
    /// Returns the least and the most that the call costs, if no fault makes the store forget it.
    pub fn cost(&self) -> [u64; 2] {
        let prompt = self.call.prompt;
        let Some(sent) = self.sent else {
            // A request that was cut on the way to the upstream has been sent.
            let most = if matches!(self.seen, CallResult::Left(_)) { prompt } else { 0 };
            return [0, most];
        };
        match (self.call.end, &self.seen) {
            (End::Failure, _) => [0, 0],
            (_, CallResult::Left(words)) => [prompt + words, prompt + sent.words],
            _ => [prompt + sent.words; 2],
        }
    }

    /// Whether no fault explains what the client saw.
    fn is_unexplained(&self) -> bool {
        match &self.seen {
            CallResult::NoConnection => true,
            CallResult::Broken(_) => !matches!(self.call.end, End::UpstreamLeaves(_)),
            // Without a store or an upstream the gateway refuses, also at its start on a busy machine. That costs nothing.
            CallResult::Refused(500.., _) => self.sent.is_some() && self.call.end != End::Failure,
            CallResult::Refused(_, reason) => !["budget_held", "fixed_window_exceeded"].contains(&reason.as_str()),
            CallResult::Whole => self.sent.is_none_or(|sent| !sent.is_whole),
            CallResult::Left(_) => false,
        }
    }

    fn is_admitted(&self) -> bool {
        self.sent.is_some()
    }
}

impl Books {
    /// Whether a fault may have changed this. A client may notice the end of its call as much as `LATE` after the gateway.
    fn is_lost(&self, entry: &Entry, what: LossOf) -> bool {
        self.losses.iter().any(|loss| {
            loss.of == what
                && loss.gateway.is_none_or(|gateway| gateway == entry.gateway)
                && entry.time[0] <= loss.time[1]
                && entry.time[1] >= loss.time[0]
                && (loss.of != LossOf::Costs || entry.time[1] <= loss.time[1] + LATE)
        })
    }

    fn may_be_forgotten(&self, entry: &Entry) -> bool {
        self.is_lost(entry, LossOf::Calls) || self.is_lost(entry, LossOf::Costs)
    }

    /// Returns the least and the most that the store must say is spent.
    pub fn spent(&self) -> [u64; 2] {
        self.entries.iter().fold([0, 0], |[least, most], entry| {
            let [low, high] = entry.cost();
            [least + if self.may_be_forgotten(entry) { 0 } else { low }, most + high]
        })
    }

    /// Returns what may be forgotten, at most.
    pub fn forgotten(&self) -> u64 {
        self.entries.iter().filter(|entry| self.may_be_forgotten(entry)).map(|entry| entry.cost()[1]).sum()
    }

    /// Returns what the calls that were in flight at the last admission have cost beyond what they held, at most.
    fn overrun(&self) -> u64 {
        let admitted = || self.entries.iter().filter(|entry| entry.is_admitted());
        let last = admitted().map(|entry| entry.time[0]).max().unwrap_or_default();
        let in_flight = admitted().filter(|entry| entry.time[1] >= last);
        in_flight.map(|entry| entry.cost()[1].saturating_sub(entry.reserved[0])).sum()
    }

    /// Whether a call was refused that fitted the limit beside what all calls before it may have spent and held. A hold ends at most
    /// `LATE` after its call, and that of a gateway that was killed later.
    fn has_false_refusal(&self, limit: u64) -> bool {
        self.entries.iter().filter(|entry| matches!(entry.seen, CallResult::Refused(429, _))).any(|refused| {
            let occupied: u64 = self
                .entries
                .iter()
                // What was refused holds nothing.
                .filter(|entry| !matches!(entry.seen, CallResult::Refused(429, _)) && entry.time[0] <= refused.time[1])
                .map(|entry| {
                    let is_settled = entry.time[1] + LATE < refused.time[0] && !self.may_be_forgotten(entry);
                    let cost = entry.cost()[1];
                    if is_settled { cost } else { cost.max(entry.reserved[1]) }
                })
                .sum();
            occupied + refused.reserved[1] <= limit
        })
    }

    /// Compares the books with what the store says.
    pub fn compare(&self, shown: Shown, limit: u64) -> Vec<Finding> {
        let [least, most] = self.spent();
        let used: u64 = self.entries.iter().map(|entry| entry.cost()[0]).sum();
        [
            (shown.spent > most, Finding::SpentTooMuch),
            (shown.spent < least, Finding::SpentTooLittle),
            (used > limit + self.forgotten() + self.overrun(), Finding::OverLimit),
            (shown.held > 0, Finding::HeldForNobody),
            (self.has_false_refusal(limit), Finding::RefusedWithRoom),
        ]
        .into_iter()
        .filter_map(|(is_found, finding)| is_found.then_some(finding))
        .collect()
    }

    /// Returns the calls whose ends no fault explains.
    pub fn unexplained(&self) -> Vec<&Entry> {
        let is_lost = |entry: &Entry| self.is_lost(entry, LossOf::Calls);
        self.entries.iter().filter(|entry| entry.is_unexplained() && !is_lost(entry)).collect()
    }
}

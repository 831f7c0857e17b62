//! Compares what the requests of a test have used of a budget with what the store says of it.

use std::time::Duration;

/// What a request has used.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// When it was settled, since the beginning.
    pub at: Duration,
    pub gateway: usize,
    pub tokens: u64,
}

/// The books of the callers of one budget.
#[derive(Clone, Debug, Default)]
pub struct Books {
    pub settled: Vec<Usage>,
    pub refused: u64,
    /// The costs that a fault may have made the store forget: those of this gateway, or of all, which were settled in this time.
    pub forgotten: Option<(Option<usize>, [Duration; 2])>,
}

/// What the store says after a run.
#[derive(Clone, Copy, Debug)]
pub struct StoreBooks {
    /// When it says so.
    pub at: Duration,
    pub spent: u64,
    pub held: u64,
}

/// How a budget refills: this many tokens in a second.
#[derive(Clone, Copy, Debug)]
pub struct Refill(pub u64);

impl Refill {
    /// Returns what this rate gives back in a time, rounded up.
    pub fn within(self, time: Duration) -> u64 {
        u64::try_from(u128::from(self.0) * time.as_micros()).unwrap().div_ceil(1_000_000)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The store has spent more than all requests have used.
    SpentTooMuch,
    /// The store has forgotten what it had to know.
    SpentTooLittle,
    /// More was used than the limit, and what faults may add, allow.
    OverLimit,
    /// Something is held although nothing runs.
    HeldForNobody,
    /// A request was refused although there was room beside what had been spent and what was in flight.
    RefusedWithRoom,
}

impl Books {
    pub fn used(&self) -> u64 {
        self.settled.iter().map(|settled| settled.tokens).sum()
    }

    /// Returns what was used and cannot be forgotten.
    pub fn certain(&self) -> u64 {
        self.settled.iter().filter(|settled| self.is_certain(settled)).map(|settled| settled.tokens).sum()
    }

    fn is_certain(&self, settled: &Usage) -> bool {
        self.forgotten.is_none_or(|(gateway, [from, to])| {
            gateway.is_some_and(|gateway| settled.gateway != gateway) || settled.at < from || settled.at > to
        })
    }

    /// Returns the most of a budget that was used at any moment, and what of it is still spent at `at`. Only the costs for which
    /// `counts` is true.
    fn level(&self, refill: Refill, at: Duration, counts: impl Fn(&Usage) -> bool) -> (u64, u64) {
        let mut settled: Vec<_> = self.settled.iter().filter(|settled| counts(settled)).copied().collect();
        settled.sort_by_key(|settled| settled.at);
        // In millionths of a token.
        let (mut level, mut most, mut before) = (0_u128, 0, Duration::ZERO);
        let refilled = |from: Duration, to: Duration| u128::from(refill.0) * to.saturating_sub(from).as_micros();
        for settled in settled {
            level = level.saturating_sub(refilled(before, settled.at)) + u128::from(settled.tokens) * 1_000_000;
            (most, before) = (level.max(most), settled.at);
        }
        let whole = |level: u128| u64::try_from(level / 1_000_000).unwrap();
        (whole(most), whole(level.saturating_sub(refilled(before, at))))
    }

    /// Compares the books with those of the store. `late` is the longest time until a cost is charged, and `extra` is what a fault
    /// may let pass above the limit beside what it forgets.
    pub fn compare(&self, store: StoreBooks, refill: Refill, late: Duration, limit: u64, extra: u64) -> Vec<Finding> {
        let (most, high) = self.level(refill, store.at, |_| true);
        let (_, low) = self.level(refill, store.at, |settled| self.is_certain(settled));
        // One more, because the store rounds.
        let slack = refill.within(late) + 1;
        let forgotten = self.used() - self.certain();
        [
            (store.spent > high + slack, Finding::SpentTooMuch),
            (store.spent + 1 < low, Finding::SpentTooLittle),
            (most > limit + forgotten + extra + slack, Finding::OverLimit),
            (store.held > 0, Finding::HeldForNobody),
        ]
        .into_iter()
        .filter_map(|(is_found, finding)| is_found.then_some(finding))
        .collect()
    }
}

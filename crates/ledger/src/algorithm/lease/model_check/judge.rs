//! Sums what passes over all regions, and finds what is above the limit. Only what a store has lost may pass again.

use std::collections::BTreeMap;

use super::schedule::ModelLimit;

pub(super) struct Judge {
    limit: ModelLimit,
    /// What passed, by the period of its lease.
    by_lease: BTreeMap<u64, u64>,
    /// What passed, by the period that ran at home.
    by_period: BTreeMap<u64, u64>,
    /// When the clock of a store was set, a purse can outlive its period.
    pub clocks_were_set: bool,
    /// The bucket with any debt, in a millionth of a thousandth of a token: its highest level shows the largest excess over all windows.
    level: (u64, u128),
    highest: u128,
    /// What a region has let pass or given back, in thousandths.
    pub by_region: [u64; 4],
    /// What may pass again, and raises, in thousandths.
    pub allowed: u64,
    /// What passed in all, in thousandths.
    pub passed: u64,
}

impl Judge {
    pub(super) fn new(limit: ModelLimit) -> Judge {
        Judge {
            limit,
            by_lease: BTreeMap::new(),
            by_period: BTreeMap::new(),
            clocks_were_set: false,
            level: (0, 0),
            highest: 0,
            by_region: [0; 4],
            allowed: 0,
            passed: 0,
        }
    }

    /// Counts a request that passes in a region at the time `now` on an undisturbed clock of home.
    pub(super) fn pass(&mut self, region: usize, cost: u64, leased_for: u64, now: u64) {
        self.by_region[region] += cost;
        self.passed += cost;
        match self.limit {
            ModelLimit::Window { window, .. } => {
                *self.by_lease.entry(leased_for).or_default() += cost;
                *self.by_period.entry(now / window).or_default() += cost;
            }
            ModelLimit::Rate { per_second, .. } => {
                let (at, level) = self.level;
                // A token per second is a thousandth per millisecond: 1000 millionths of a thousandth per microsecond.
                let back = u128::from(now - at) * u128::from(per_second) * 1000;
                self.level = (now, level.saturating_sub(back) + u128::from(cost) * 1_000_000);
                self.highest = self.highest.max(self.level.1);
            }
        }
    }

    /// Returns what passed of the leases for a period.
    pub(super) fn leased_for(&self, period: u64) -> u64 {
        self.by_lease.get(&period).copied().unwrap_or_default()
    }

    /// Returns what passed above the limit.
    pub(super) fn excess(&self) -> Option<String> {
        let most = self.limit.amount() * 1000 + self.allowed;
        let above = |(period, passed): (&u64, &u64)| {
            (*passed > most).then(|| format!("{passed} of {most} thousandths in period {period}"))
        };
        let leased = self.by_lease.iter().find_map(above).map(|text| format!("leased: {text}"));
        let by_period = || self.by_period.iter().find_map(above).filter(|_| !self.clocks_were_set);
        let level = || {
            let most = u128::from(most) * 1_000_000;
            (self.highest > most).then(|| format!("{} millionths above burst + rate·T", self.highest - most))
        };
        leased.or_else(by_period).or_else(level)
    }
}

//! Keeps the costs of the last requests, and finds their quantiles.

use std::collections::VecDeque;

use ledger::cost::Cost;

/// The last costs that were added, at most [`CostSample::MOST`].
///
/// ```
/// use ledger::cost::Cost;
/// use rules::cost_sample::CostSample;
///
/// let mut sample = CostSample::default();
/// (1..=100).for_each(|tokens| sample.add(Cost::from_tokens(tokens)));
/// assert_eq!(sample.quantile(950), Some(Cost::from_tokens(95)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct CostSample {
    /// The costs in the order in which they were added.
    added: VecDeque<Cost>,
    /// The same costs, the smallest first.
    sorted: Vec<Cost>,
}

impl CostSample {
    /// The largest number of costs in a sample. A further cost replaces the oldest cost.
    pub const MOST: usize = 1000;

    /// The smallest number of costs from which a quantile is determined.
    pub const LEAST: usize = 50;

    /// Adds the cost of a request that has ended.
    pub fn add(&mut self, cost: Cost) {
        if self.added.len() >= CostSample::MOST
            && let Some(oldest) = self.added.pop_front()
            && let Ok(index) = self.sorted.binary_search(&oldest)
        {
            self.sorted.remove(index);
        }
        self.added.push_back(cost);
        let index = self.sorted.partition_point(|other| *other < cost);
        self.sorted.insert(index, cost);
    }

    /// Returns a quantile: the smallest cost that at least this many thousandths of the costs do not exceed. `None` for
    /// fewer than [`CostSample::LEAST`] costs.
    pub fn quantile(&self, thousandths: u16) -> Option<Cost> {
        if self.sorted.len() < CostSample::LEAST {
            return None;
        }
        let rank = self.sorted.len().saturating_mul(usize::from(thousandths)).div_ceil(1000);
        self.sorted.get(rank.saturating_sub(1)).or(self.sorted.last()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_few_costs_have_no_quantile() {
        let mut sample = CostSample::default();
        for _ in 1..CostSample::LEAST {
            sample.add(Cost::ONE);
            assert_eq!(sample.quantile(500), None);
        }
        sample.add(Cost::from_tokens(9));
        let quantiles = [1, 500, 980, 981, 1000].map(|share| sample.quantile(share).unwrap().whole());
        assert_eq!(quantiles, [1, 1, 1, 9, 9]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn quantiles_are_those_of_the_last_costs(
            costs in prop::collection::vec(0u64..50, 50..2500),
            thousandths in 1u16..=1000,
        ) {
            let mut sample = CostSample::default();
            costs.iter().for_each(|cost| sample.add(Cost::from_tokens(*cost)));
            let last = &costs[costs.len().saturating_sub(CostSample::MOST)..];
            let quantile = sample.quantile(thousandths).unwrap().whole();
            let share = |matches: &dyn Fn(u64) -> bool| last.iter().filter(|cost| matches(**cost)).count() * 1000;
            let needed = last.len() * usize::from(thousandths);
            prop_assert!(share(&|cost| cost <= quantile) >= needed);
            prop_assert!(share(&|cost| cost < quantile) < needed);
        }
    }
}

//! Looks at every window: of all that was asked for and answered within it, how much is beyond the burst and what came back.

use super::Numbers;

/// The grants, by the clock of the caller.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub sent: i64,
    pub answered: i64,
    /// In thousandths of a token.
    pub cost: u64,
}

/// The most that any window has too much, in units; below zero when none has. A window begins when some grant was asked
/// for and ends when some grant was answered, and all that lies within it counts.
///
/// Ends are taken in their order. For each beginning there is the sum of what lies between it and the end, less what came
/// back; a grant adds its price to every beginning before it. So there is one tree to keep, and n log n steps.
pub fn excess(numbers: &Numbers, grants: &[Grant]) -> i128 {
    let mut begins: Vec<i64> = grants.iter().map(|grant| grant.sent).collect();
    begins.sort_unstable();
    let mut ends = grants.to_vec();
    ends.sort_by_key(|grant| grant.answered);
    let mut tree = Tree::new(&begins.iter().map(|begin| numbers.refill(0, *begin)).collect::<Vec<_>>());
    let (mut reached, mut most) = (0, i128::MIN);
    for grant in ends {
        let before = begins.partition_point(|begin| *begin <= grant.sent);
        tree.add(before, numbers.price(grant.cost));
        // Behind the last beginning of a grant that has ended there is nothing to sum up yet.
        reached = reached.max(before);
        most = most.max(tree.peak(reached) - numbers.refill(0, grant.answered) - numbers.capacity());
    }
    most
}

/// A row of numbers: adds to the first so many, and finds the largest of the first so many.
struct Tree {
    width: usize,
    /// Of each node: the largest number below it, but for what was added to nodes above.
    peaks: Vec<i128>,
    added: Vec<i128>,
}

impl Tree {
    fn new(numbers: &[i128]) -> Tree {
        let width = numbers.len().next_power_of_two();
        // Far below everything, but far enough from the end that something can be added.
        let mut peaks = vec![i128::MIN / 2; 2 * width];
        peaks[width..width + numbers.len()].copy_from_slice(numbers);
        for node in (1..width).rev() {
            peaks[node] = peaks[2 * node].max(peaks[2 * node + 1]);
        }
        Tree { width, added: vec![0; peaks.len()], peaks }
    }

    fn add(&mut self, first: usize, amount: i128) {
        self.add_below(1, self.width, first, amount);
    }

    fn add_below(&mut self, node: usize, width: usize, first: usize, amount: i128) {
        if first >= width {
            self.peaks[node] += amount;
            self.added[node] += amount;
        } else if first > 0 {
            let half = width / 2;
            self.add_below(2 * node, half, first.min(half), amount);
            self.add_below(2 * node + 1, half, first.saturating_sub(half), amount);
            self.peaks[node] = self.peaks[2 * node].max(self.peaks[2 * node + 1]) + self.added[node];
        }
    }

    fn peak(&self, first: usize) -> i128 {
        self.peak_below(1, self.width, first)
    }

    fn peak_below(&self, node: usize, width: usize, first: usize) -> i128 {
        if first >= width {
            return self.peaks[node];
        }
        if first == 0 {
            return i128::MIN / 2;
        }
        let half = width / 2;
        let left = self.peak_below(2 * node, half, first.min(half));
        left.max(self.peak_below(2 * node + 1, half, first.saturating_sub(half))) + self.added[node]
    }
}

mod tests {
    use proptest::prelude::*;

    use super::{Grant, Numbers, excess};

    /// Every pair of a beginning and an end, one by one.
    fn one_by_one(numbers: &Numbers, grants: &[Grant]) -> i128 {
        let windows = grants.iter().flat_map(|from| grants.iter().map(move |to| (from.sent, to.answered)));
        let too_much = |(begin, end): (i64, i64)| {
            let within = grants.iter().filter(|grant| grant.sent >= begin && grant.answered <= end);
            let prices: Vec<i128> = within.map(|grant| numbers.price(grant.cost)).collect();
            let sum: i128 = prices.iter().sum();
            (!prices.is_empty()).then(|| sum - numbers.refill(begin, end) - numbers.capacity())
        };
        windows.filter_map(too_much).max().unwrap_or(i128::MIN)
    }

    proptest! {
        #[test]
        fn the_tree_agrees_with_a_search_of_every_window(
            amount in 1u64..5_000,
            period in prop::sample::select(vec![1_000_000u64, 60_000_000, 900_000_007]),
            burst in 1u64..5,
            grants in prop::collection::vec((0i64..50, 0i64..20, 1u64..3_000), 0..40),
        ) {
            let numbers = Numbers { burst, amount, period };
            // Milliseconds, so that many are the same.
            let grant = |(sent, took, cost): &(i64, i64, u64)| {
                Grant { sent: sent * 1000, answered: (sent + took) * 1000, cost: *cost }
            };
            let grants: Vec<Grant> = grants.iter().map(grant).collect();
            prop_assert_eq!(excess(&numbers, &grants), one_by_one(&numbers, &grants));
        }
    }
}

//! Checks every window: how much more was granted in it than the limit promises.

use std::collections::BTreeMap;

use super::{ClockOffset, GrantLifetime, LeakyLimit, Limit, Numbers, WindowLimit};

/// A grant, with times of the caller's clock.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub sent: i64,
    pub answered: i64,
    /// The cost, in thousandths of a token.
    pub cost: u64,
}

/// Returns how much was granted beyond the limit, in its units. It is zero or negative if the limit was kept.
///
/// For a token bucket or the places of a queue, this is the largest excess of any window over the burst and the refill. For
/// periods, it is the sum of the excesses of all periods, without grants that may belong to either of two periods. For a
/// sliding window or a log, it is the largest excess in any time of the window's length.
pub fn excess(limit: &Limit, grants: &[Grant], clock: &ClockOffset) -> i128 {
    match limit {
        Limit::TokenBucket(numbers) | Limit::Leaky(LeakyLimit { places: numbers, .. }) => {
            excess_of_bucket(numbers, grants)
        }
        Limit::Window(window) => {
            let most = limit.capacity();
            match window.counting {
                GrantLifetime::Epoch(_) | GrantLifetime::Calendar(_) => {
                    let beyond = periods(window, grants, clock).into_values().map(|granted| granted - most);
                    let beyond: Vec<i128> = beyond.collect();
                    let sum: i128 = beyond.iter().filter(|excess| **excess > 0).sum();
                    if sum > 0 { sum } else { beyond.into_iter().max().unwrap_or(-most) }
                }
                // From outside nobody sees when a period began: two of them can touch any such time.
                GrantLifetime::FirstGrant(length) => most_within(length, grants) - 2 * most,
                GrantLifetime::Steps { window: length, .. } | GrantLifetime::Log(length) => {
                    most_within(length, grants) - most
                }
            }
        }
    }
}

/// Returns the largest excess of any one period or window over the limit, in its units.
pub fn most_in_a_window(limit: &Limit, grants: &[Grant], clock: &ClockOffset) -> i128 {
    match limit {
        Limit::Window(window) if matches!(window.counting, GrantLifetime::Epoch(_) | GrantLifetime::Calendar(_)) => {
            periods(window, grants, clock).into_values().max().unwrap_or(0) - limit.capacity()
        }
        limit => excess(limit, grants, clock),
    }
}

/// Returns the excess like [`excess`], for a store whose clock differs from the test's by an unknown amount. The beginnings
/// of periods are not known, so any time of a period's length may overlap two periods.
pub fn excess_anywhere(limit: &Limit, grants: &[Grant]) -> i128 {
    match limit {
        Limit::Window(WindowLimit { counting: GrantLifetime::Epoch(length), .. }) => {
            most_within(*length, grants) - 2 * limit.capacity()
        }
        limit => excess(limit, grants, &ClockOffset::default()),
    }
}

/// Returns the amount granted in each period, in thousandths, by the end of the period. Counts only grants that cannot have
/// been decided in another period.
pub fn periods(window: &WindowLimit, grants: &[Grant], clock: &ClockOffset) -> BTreeMap<i64, i128> {
    let mut periods = BTreeMap::new();
    for grant in grants {
        let (first, last) = clock.bounds(grant.sent, grant.answered);
        let end = window.counting.until(first, None);
        if last < end {
            *periods.entry(end).or_default() += i128::from(grant.cost);
        }
    }
    periods
}

/// Returns the most that was granted within any time shorter than this, in thousandths.
pub fn most_within(length: i64, grants: &[Grant]) -> i128 {
    let mut begins: Vec<usize> = (0..grants.len()).collect();
    begins.sort_by_key(|index| grants[*index].sent);
    let mut ends: Vec<usize> = (0..grants.len()).collect();
    ends.sort_by_key(|index| grants[*index].answered);
    let mut ends = ends.into_iter().peekable();
    let (mut counts, mut sum, mut most) = (vec![false; grants.len()], 0, 0);
    for index in begins {
        let begin = grants[index].sent;
        while let Some(next) = ends.next_if(|next| grants[*next].answered < begin + length) {
            if grants[next].sent >= begin {
                counts[next] = true;
                sum += i128::from(grants[next].cost);
            }
        }
        most = most.max(sum);
        // The next one begins later, or at the same moment, where it finds less.
        if std::mem::take(&mut counts[index]) {
            sum -= i128::from(grants[index].cost);
        }
    }
    most
}

/// Returns the largest excess of any window, in units. It is negative if every window has less than allowed. A window begins
/// when the request of some grant was sent and ends when some grant was answered. Every grant in between counts.
///
/// The ends are visited in order. For each beginning, the tree has the sum of the grants between it and the end, minus the
/// refill. A grant adds its price to every beginning before it. This takes n log n steps.
fn excess_of_bucket(numbers: &Numbers, grants: &[Grant]) -> i128 {
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

/// A sequence of numbers that can add a value to a prefix and find the largest number of a prefix.
struct Tree {
    width: usize,
    /// For each node: the largest number below it, without the values that were added to the nodes above.
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

    use super::{ClockOffset, Grant, GrantLifetime, Limit, Numbers, WindowLimit, excess, most_within, periods};

    /// Checks every pair of a beginning and an end, one by one.
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
            let found = excess(&Limit::TokenBucket(numbers), &grants, &ClockOffset::default());
            prop_assert_eq!(found, one_by_one(&numbers, &grants));
        }

        #[test]
        fn the_most_within_a_time_agrees_with_a_search_of_every_beginning(
            length in 1i64..40,
            grants in prop::collection::vec((0i64..50, 0i64..20, 1u64..3_000), 0..40),
        ) {
            let grant = |(sent, took, cost): &(i64, i64, u64)| Grant { sent: *sent, answered: sent + took, cost: *cost };
            let grants: Vec<Grant> = grants.iter().map(grant).collect();
            let from = |begin: i64| -> i128 {
                let within = grants.iter().filter(|grant| grant.sent >= begin && grant.answered < begin + length);
                within.map(|grant| i128::from(grant.cost)).sum()
            };
            prop_assert_eq!(most_within(length, &grants), (0..50).map(from).max().unwrap());
        }
    }

    /// A grant that may have been decided in one of two periods counts in neither.
    #[test]
    fn a_grant_counts_in_the_period_in_which_it_was_surely_decided() {
        let window = WindowLimit { limit: 2, counting: GrantLifetime::Epoch(100) };
        let clock = ClockOffset { ahead: 1000, tolerance: 3 };
        let grant = |sent: i64, answered: i64| Grant { sent, answered, cost: 1000 };
        let grants = [grant(3, 90), grant(2, 90), grant(10, 96), grant(10, 97), grant(103, 190)];
        assert_eq!(periods(&window, &grants, &clock).into_iter().collect::<Vec<_>>(), [(1100, 2000), (1200, 1000)]);
        let limit = Limit::Window(window);
        assert_eq!(excess(&limit, &grants, &clock), 0);
        assert_eq!(excess(&limit, &[&grants[..], &[grant(20, 30)]].concat(), &clock), 1000);
    }
}

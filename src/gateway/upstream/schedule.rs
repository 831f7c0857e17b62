//! Orders the turns of endpoints. Each endpoint has turns in proportion to its weight, and the turns are spread evenly.

/// The maximum number of turns in a schedule. Weights that would need more turns are rounded.
const MAX_TURNS: u64 = 4096;

/// The order in which the endpoints of an upstream get requests, as a list of their indexes.
#[derive(Clone, Debug, Default)]
pub(super) struct Schedule(Vec<u16>);

impl Schedule {
    /// Makes a schedule in which each endpoint has turns in proportion to its weight.
    pub(super) fn new(weights: &[u64]) -> Schedule {
        let divisor = weights.iter().copied().fold(0, greatest_common_divisor).max(1);
        let mut weights: Vec<u64> = weights.iter().map(|weight| weight / divisor).collect();
        let total: u64 = weights.iter().sum();
        if total > MAX_TURNS {
            for weight in &mut weights {
                *weight = (weight.saturating_mul(MAX_TURNS) / total).max(1);
            }
        }
        // Credits may be negative, because an endpoint pays for its turn in advance.
        let weights: Vec<i64> = weights.into_iter().filter_map(|weight| weight.try_into().ok()).collect();
        let turns: i64 = weights.iter().sum();
        let mut credits = vec![0i64; weights.len()];
        let sequence = (0..turns).filter_map(|_| {
            // The endpoint with the most credit has waited longest for its share.
            credits.iter_mut().zip(&weights).for_each(|(credit, weight)| *credit += weight);
            let (index, credit) =
                credits.iter_mut().enumerate().max_by_key(|(index, credit)| (**credit, usize::MAX - index))?;
            *credit -= turns;
            u16::try_from(index).ok()
        });
        Schedule(sequence.collect())
    }

    /// Returns the index of the endpoint that has this turn. `None` if the schedule is empty.
    pub(super) fn turn(&self, number: usize) -> Option<usize> {
        let index = number.checked_rem(self.0.len())?;
        self.0.get(index).map(|endpoint| usize::from(*endpoint))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    match other {
        0 => one,
        other => greatest_common_divisor(other, one % other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(weights: &[u64], order: &[u16]) {
        assert_eq!(Schedule::new(weights).0, order, "{weights:?}");
    }

    #[test]
    fn a_large_weight_does_not_come_in_a_row() {
        check(&[1, 1, 1], &[0, 1, 2]);
        check(&[500], &[0]);
        check(&[2, 2], &[0, 1]);
        check(&[3, 1], &[0, 0, 1, 0]);
        check(&[], &[]);
        assert_eq!(Schedule::default().turn(7), None);
    }

    proptest! {
        #[test]
        fn every_endpoint_has_its_share(weights in proptest::collection::vec(1..100u64, 1..20)) {
            let schedule = Schedule::new(&weights);
            let (total, turns) = (weights.iter().sum::<u64>(), u64::try_from(schedule.len()).unwrap());
            prop_assert!(turns <= MAX_TURNS);
            for (index, weight) in weights.iter().enumerate() {
                let had = schedule.0.iter().filter(|endpoint| usize::from(**endpoint) == index).count();
                prop_assert_eq!(u64::try_from(had).unwrap() * total, weight * turns);
            }
        }
    }
}

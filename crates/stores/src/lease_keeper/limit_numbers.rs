//! Compares the numbers of limits before and after a reload, to find the purses that no request uses any more.

use std::collections::{HashMap, HashSet};

use super::PurseBucket;
use ledger::algorithm::lease::Purse;
use ledger::bucket_key::LimitTag;

/// The numbers of the limits in a file, as hashes, by the tags of their purses. Those from credentials are not in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitNumbers(HashMap<LimitTag, HashSet<[u8; 16]>>);

impl FromIterator<(LimitTag, Purse)> for LimitNumbers {
    fn from_iter<I: IntoIterator<Item = (LimitTag, Purse)>>(purses: I) -> LimitNumbers {
        let mut numbers: HashMap<LimitTag, HashSet<[u8; 16]>> = HashMap::new();
        for (tag, purse) in purses {
            numbers.entry(tag).or_default().insert(purse.numbers_hash());
        }
        LimitNumbers(numbers)
    }
}

/// The numbers of all limits before and after a reload.
#[derive(Clone, Debug)]
pub struct NumberChange {
    pub before: LimitNumbers,
    pub after: LimitNumbers,
    /// The limits whose requests may bring numbers of their own: any numbers.
    pub claimed: HashSet<LimitTag>,
}

impl NumberChange {
    /// Whether no limit has the numbers of a purse any more. `None` if only credentials can tell.
    pub(super) fn is_retired(&self, PurseBucket { purse, tag, .. }: &PurseBucket) -> Option<bool> {
        // A removed limit has no numbers at all.
        let Some(after) = self.after.0.get(tag) else { return Some(true) };
        let numbers = purse.numbers_hash();
        let was_in_file = self.before.0.get(tag).is_some_and(|before| before.contains(&numbers));
        match after.contains(&numbers) {
            true => Some(false),
            false => (was_in_file && !self.claimed.contains(tag)).then_some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::Micros;
    use ledger::algorithm::budget::SpentLimit;
    use ledger::algorithm::fixed_window::{FixedWindow, Window};
    use ledger::bucket_key::BucketKey;
    use ledger::cost::Cost;

    #[test]
    fn a_purse_is_retired_if_its_numbers_or_its_limit_have_left_the_file() {
        let of_limit = |limit| {
            let window = FixedWindow::new(limit, Window::Epoch(Micros(60_000_000))).unwrap();
            Purse::new(SpentLimit::FixedWindow(window), Cost::ONE, Micros(1), Micros(1)).unwrap()
        };
        let file =
            |limits: &[(u32, u64)]| limits.iter().map(|(tag, limit)| (LimitTag(*tag), of_limit(*limit))).collect();
        let change = NumberChange {
            before: file(&[(1, 10), (1, 20), (2, 10), (4, 10)]),
            after: file(&[(1, 10), (1, 30), (3, 10), (4, 20)]),
            claimed: HashSet::from([LimitTag(4)]),
        };
        let retired = |tag, limit| {
            change.is_retired(&PurseBucket { key: BucketKey([1; 16]), purse: of_limit(limit), tag: LimitTag(tag) })
        };
        assert_eq!([10, 20, 30].map(|limit| retired(1, limit)), [Some(false), Some(true), Some(false)]);
        // The numbers of a request.
        assert_eq!((retired(1, 40), retired(3, 40)), (None, None));
        assert_eq!((retired(4, 10), retired(4, 20)), (None, Some(false)));
        assert_eq!([10, 40].map(|limit| retired(2, limit)), [Some(true); 2]);
        assert_eq!(retired(3, 10), Some(false));
    }
}

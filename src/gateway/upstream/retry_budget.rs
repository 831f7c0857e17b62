//! Limits the number of retries to a share of all requests. Some retries are allowed in advance.

use std::sync::atomic::{AtomicU32, Ordering};

/// The cost of a retry, in hundredths of a request.
const RETRY: u32 = 100;
/// The maximum of a budget, and the amount of a new budget.
const MAX_SAVED: u32 = 10 * RETRY;

/// The budget that bounds the retries at an upstream. Every request adds a part of a retry to it.
#[derive(Debug)]
pub(super) struct RetryBudget(AtomicU32);

impl Default for RetryBudget {
    fn default() -> RetryBudget {
        RetryBudget(AtomicU32::new(MAX_SAVED))
    }
}

impl RetryBudget {
    /// Adds the part of a retry that a new request earns. `share` is this part in percent.
    pub(super) fn add(&self, share: u8) {
        let saved = self.0.load(Ordering::Relaxed);
        if saved < MAX_SAVED {
            // If two requests add at the same time, one addition may be lost. No addition is counted twice.
            let more = (saved + u32::from(share)).min(MAX_SAVED);
            let _ = self.0.compare_exchange(saved, more, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Takes one retry from the budget. Returns `false` if the budget is used up.
    pub(super) fn take(&self) -> bool {
        let take = |saved: u32| saved.checked_sub(RETRY);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_share_of_requests_beyond_the_first_ten() {
        let budget = RetryBudget::default();
        assert_eq!((0..20).filter(|_| budget.take()).count(), 10);
        let mut retries = 0;
        for _ in 0..1000 {
            budget.add(20);
            retries += u32::from(budget.take());
        }
        assert_eq!(retries, 200);
        for _ in 0..1000 {
            budget.add(20);
        }
        assert_eq!((0..20).filter(|_| budget.take()).count(), 10);
        let none = RetryBudget::default();
        while none.take() {}
        none.add(0);
        assert!(!none.take());
    }
}

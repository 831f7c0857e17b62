//! Compares limits of one meter, which charge the same bucket.

use super::Algorithm;

impl Algorithm {
    /// Returns this limit for a bucket that `other`, with the same meter, may charge too. The higher of their fastest
    /// refills applies.
    #[must_use]
    pub fn alongside(self, other: &Algorithm) -> Algorithm {
        match (self, other) {
            (Algorithm::TokenBucket(bucket), Algorithm::TokenBucket(other)) => {
                Algorithm::TokenBucket(bucket.alongside(other))
            }
            (Algorithm::LeakyBucket(bucket), Algorithm::LeakyBucket(other)) => {
                Algorithm::LeakyBucket(bucket.alongside(other))
            }
            (Algorithm::Budget(budget), Algorithm::Budget(other)) => Algorithm::Budget(budget.alongside(other)),
            (Algorithm::Purse(purse), Algorithm::Purse(other)) => {
                Algorithm::Purse(purse.with(|limit| limit.alongside(other.limit())))
            }
            (Algorithm::Home(home), Algorithm::Home(other)) => {
                Algorithm::Home(home.with(|limit| limit.alongside(other.limit())))
            }
            // With other algorithms, the time of the refill does not depend on the limit.
            (mine, _) => mine,
        }
    }

    /// Returns the name of a setting that must be equal if both limits charge one bucket, but differs in `other`.
    /// `None` if no setting differs.
    pub fn conflict(&self, other: &Algorithm) -> Option<&'static str> {
        match (self, other) {
            _ if self.ban() != other.ban() => Some("ban"),
            _ if self.name() == other.name() && self.resets() != other.resets() => Some("reset_on"),
            _ if self.name() == other.name() && self.kind().is_purse() != other.kind().is_purse() => Some("scope"),
            _ if self.kind() != other.kind() => Some("algorithm"),
            (Algorithm::FixedWindow(window), Algorithm::FixedWindow(other)) => window.conflict(other),
            (Algorithm::SlidingLog(log), Algorithm::SlidingLog(other)) => {
                (log.quota().window != other.quota().window).then_some("window")
            }
            (Algorithm::SlidingWindow(window), Algorithm::SlidingWindow(other)) => {
                let differs =
                    [("window", window.window() != other.window()), ("steps", window.steps() != other.steps())];
                differs.into_iter().find(|(_, differs)| *differs).map(|(key, _)| key)
            }
            (Algorithm::LeakyBucket(bucket), Algorithm::LeakyBucket(other)) => {
                (bucket.delay_after() != other.delay_after()).then_some("delay_after")
            }
            (Algorithm::Concurrency(slots), Algorithm::Concurrency(other)) => {
                (slots.max_hold() != other.max_hold()).then_some("max_hold")
            }
            (Algorithm::Budget(budget), Algorithm::Budget(other)) => budget.conflict(other),
            (Algorithm::Purse(purse), Algorithm::Purse(other)) => purse.limit().conflict(other.limit()),
            (Algorithm::Home(home), Algorithm::Home(other)) => home.limit().conflict(other.limit()),
            (
                Algorithm::TokenBucket(_)
                | Algorithm::FixedWindow(_)
                | Algorithm::SlidingLog(_)
                | Algorithm::SlidingWindow(_)
                | Algorithm::LeakyBucket(_)
                | Algorithm::Concurrency(_)
                | Algorithm::Budget(_)
                | Algorithm::Purse(_)
                | Algorithm::Home(_),
                _,
            ) => None,
        }
    }
}

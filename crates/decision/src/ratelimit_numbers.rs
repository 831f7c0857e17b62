//! Computes the numbers of the RateLimit fields: the quota of each limit, the remaining amount, and the time until the
//! limit is full again.
//!
//! As in draft-ietf-httpapi-ratelimit-headers-11, amounts are rounded down to whole units, and times are rounded up to
//! whole seconds.

use base::time::Timestamp;
use ledger::algorithm::Algorithm;
use ledger::charge::{Charge, LimitId, Plan, Settlement};
use ledger::outcome::{Outcome, Verdict, most_restrictive};

/// The numbers in the field `RateLimit-Policy`: its parameters `q` and `w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyNumbers {
    pub quota: u64,
    /// The number of seconds in which an empty bucket becomes full.
    pub window: u64,
}

/// The numbers in the field `RateLimit`: its parameters `r` and `t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelNumbers {
    pub remaining: u64,
    /// A time in seconds. For a limit that refuses or delays the request, this is the wait. For any other limit, it is the time
    /// until the bucket is full.
    pub reset: u64,
}

/// The values of the fields `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triple {
    pub limit: u64,
    pub remaining: u64,
    pub reset: u64,
}

impl PolicyNumbers {
    /// Returns the numbers of a limit with this algorithm. `now` is the time on the store's clock. The time matters only for
    /// calendar windows.
    pub fn of(algorithm: &Algorithm, now: Timestamp) -> PolicyNumbers {
        let quota = algorithm.quota(now);
        PolicyNumbers { quota: quota.limit, window: quota.window.ceil_seconds() }
    }
}

impl LevelNumbers {
    pub fn of(algorithm: &Algorithm, outcome: &Outcome) -> LevelNumbers {
        let reset = match outcome.verdict {
            Verdict::Deny => outcome.retry_after,
            Verdict::Allow if algorithm.delays() => outcome.delay,
            Verdict::Allow | Verdict::Never | Verdict::Unasked => outcome.reset_after,
        };
        LevelNumbers { remaining: outcome.remaining.whole(), reset: reset.ceil_seconds() }
    }
}

impl Triple {
    /// Returns the numbers of the most restrictive of these charges. `None` if there are no charges.
    pub fn most_restrictive<'p>(charges: impl Iterator<Item = (&'p Charge, &'p Outcome)>) -> Option<Triple> {
        let outcomes = charges.map(|(charge, outcome)| (charge, *outcome, charge.algorithm.ceiling()));
        most_restrictive(outcomes).map(|(charge, outcome)| {
            let LevelNumbers { remaining, reset } = LevelNumbers::of(&charge.algorithm, &outcome);
            Triple { limit: charge.algorithm.ceiling().whole(), remaining, reset }
        })
    }

    /// Whether `self` leaves the client a smaller part of the limit than the upstream's response does. The RateLimit
    /// fields of this response have the values `limit` and `remaining`. If `limit` is `None`, only the remaining
    /// amounts are compared.
    pub fn is_stricter_than(self, limit: Option<u64>, remaining: u64) -> bool {
        let limit = limit.filter(|limit| *limit > 0).unwrap_or(self.limit);
        u128::from(self.remaining) * u128::from(limit) < u128::from(remaining) * u128::from(self.limit)
    }
}

/// Returns the enforced charges whose limits clients may see, in the order of the configuration, each with a description and an
/// outcome. The function `exposed` returns the description of a limit, or `None` if clients may not see the limit. The outcome
/// is `None` if the amount left is unknown, and always if `settlement` is `None`.
pub fn exposed<'p, L>(
    plan: &'p Plan,
    settlement: Option<&'p Settlement>,
    exposed: impl Fn(LimitId) -> Option<L>,
) -> impl Iterator<Item = (&'p Charge, L, Option<&'p Outcome>)> {
    plan.enforced.iter().enumerate().filter_map(move |(index, charge)| {
        let limit = exposed(charge.limit)?;
        let outcome = settlement.and_then(|settlement| settlement.enforced.get(index));
        Some((charge, limit, outcome.filter(|outcome| outcome.verdict != Verdict::Unasked)))
    })
}

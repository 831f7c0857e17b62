//! Computes the numbers of the RateLimit fields: what each limit grants, what is left, and when it is full again.
//!
//! As in draft-ietf-httpapi-ratelimit-headers-11: amounts are rounded down to whole units, times up to whole seconds.

use base::time::Timestamp;
use ledger::algorithm::Algorithm;
use ledger::charge::{Charge, LimitId, Plan, Settlement};
use ledger::outcome::{Outcome, Verdict, most_restrictive};

/// The numbers of `RateLimit-Policy`: `q` and `w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyNumbers {
    pub quota: u64,
    /// The seconds in which an empty bucket becomes full.
    pub window: u64,
}

/// The numbers of `RateLimit`: `r` and `t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelNumbers {
    pub remaining: u64,
    /// A time in seconds: the wait, for a limit that refuses or delays the request; otherwise the time until the bucket is
    /// full.
    pub reset: u64,
}

/// The values of `RateLimit-Limit`, `-Remaining` and `-Reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triple {
    pub limit: u64,
    pub remaining: u64,
    pub reset: u64,
}

impl PolicyNumbers {
    /// The numbers of a limit at `now` on the store's clock; they depend on the time only for calendar windows.
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
    /// The numbers of the most restrictive of these charges; `None` without charges.
    pub fn most_restrictive<'p>(charges: impl Iterator<Item = (&'p Charge, &'p Outcome)>) -> Option<Triple> {
        let outcomes = charges.map(|(charge, outcome)| (charge, *outcome, charge.algorithm.ceiling()));
        most_restrictive(outcomes).map(|(charge, outcome)| {
            let LevelNumbers { remaining, reset } = LevelNumbers::of(&charge.algorithm, &outcome);
            Triple { limit: charge.algorithm.ceiling().whole(), remaining, reset }
        })
    }

    /// Whether a smaller share is left here than in the fields of the upstream's response. If these have no `limit`, the
    /// remaining amounts are compared.
    pub fn is_stricter_than(self, limit: Option<u64>, remaining: u64) -> bool {
        let limit = limit.filter(|limit| *limit > 0).unwrap_or(self.limit);
        u128::from(self.remaining) * u128::from(limit) < u128::from(remaining) * u128::from(self.limit)
    }
}

/// The enforced charges whose limits clients may see, in the order of the file. `exposed` returns the description of such a
/// limit. The outcome is `None` if the level is not known, so always if `settlement` is `None`.
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

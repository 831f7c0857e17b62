//! Computes the numbers of the RateLimit fields: the quota of each limit, the remaining amount, and the time until the
//! limit is full again.
//!
//! As in draft-ietf-httpapi-ratelimit-headers-11, amounts are rounded down to whole units, and times are rounded up to
//! whole seconds.

use super::speaking_limit::refusing;
use base::time::Timestamp;
use ledger::algorithm::Algorithm;
use ledger::algorithm::concurrency::QUOTA_UNIT;
use ledger::charge::{Charge, LimitId, Plan, Settlement};
use ledger::cost::Cost;
use ledger::outcome::{Outcome, Verdict, most_restrictive};
use rules::settled_price::Unit;

/// The unit of limits on the tokens of language models.
const TOKENS: &str = "tokens";
/// The unit of limits on money.
const CENTS: &str = "usd-cents";

/// The numbers in the field `RateLimit-Policy`: its parameters `q`, `w` and `qu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyNumbers {
    pub quota: u64,
    /// The number of seconds in which an empty bucket becomes full. `None` for slots, which become free when requests end.
    pub window: Option<u64>,
    /// The unit of the quota. `None` if the quota is in requests, which is the default of the field.
    pub unit: Option<&'static str>,
}

/// The numbers in the field `RateLimit`: its parameters `r` and `t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelNumbers {
    pub remaining: u64,
    /// A time in seconds. For a limit that refuses or delays the request, this is the wait. For any other limit, it is the time
    /// until the bucket is full. `None` for slots: nobody knows when a request ends.
    pub reset: Option<u64>,
}

/// The values of the fields `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triple {
    pub limit: u64,
    pub remaining: u64,
    pub reset: u64,
    /// The unit of `limit` and `remaining`. If the limit counts money, both are in cents.
    pub unit: Unit,
}

impl PolicyNumbers {
    /// Returns the numbers of a limit that has this algorithm and counts in this unit. `now` is the time on the store's clock. The
    /// time matters only for calendar windows.
    pub fn of(algorithm: &Algorithm, unit: Unit, now: Timestamp) -> PolicyNumbers {
        let quota = algorithm.quota(now);
        match algorithm.slots() {
            Some(_) => PolicyNumbers { quota: quota.limit, window: None, unit: Some(QUOTA_UNIT) },
            None => {
                let quota_in = unit.whole(algorithm.ceiling());
                let unit = match unit {
                    Unit::Tokens => Some(TOKENS),
                    Unit::Dollars => Some(CENTS),
                    Unit::Requests => None,
                };
                PolicyNumbers { quota: quota_in, window: Some(quota.window.ceil_seconds()), unit }
            }
        }
    }
}

impl LevelNumbers {
    /// Returns the numbers of a limit that has this algorithm and counts in this unit.
    pub fn of(algorithm: &Algorithm, unit: Unit, outcome: &Outcome) -> LevelNumbers {
        let reset = match outcome.verdict {
            Verdict::Deny | Verdict::Held | Verdict::Banned => outcome.retry_after,
            Verdict::Allow if algorithm.delays() => outcome.delay,
            Verdict::Allow | Verdict::Never | Verdict::Unasked => outcome.reset_after,
        };
        let reset = algorithm.slots().is_none().then(|| reset.ceil_seconds());
        // During a ban, what the bucket has left is of no use.
        let remaining = if outcome.verdict == Verdict::Banned { 0 } else { unit.whole(outcome.remaining) };
        LevelNumbers { remaining, reset }
    }
}

impl Triple {
    /// Returns the numbers of the most restrictive of `charges`. Charges that do not count requests, such as charges of
    /// slots and tokens, are used only if they alone have refused the request. `None` if no charge is left. `unit`
    /// returns the unit of a limit.
    pub fn most_restrictive<'p>(
        charges: impl Iterator<Item = (&'p Charge, &'p Outcome)>,
        plan: &Plan,
        settlement: Option<&Settlement>,
        unit: impl Fn(LimitId) -> Unit,
    ) -> Option<Triple> {
        let counts_requests =
            |charge: &Charge| charge.algorithm.slots().is_none() && unit(charge.limit) == Unit::Requests;
        let outcomes = charges.map(|(charge, outcome)| (charge, *outcome, ceiling(charge, outcome)));
        let refused_by_others = settlement.is_some_and(|settlement| {
            !settlement.is_granted() && refusing(plan, settlement).all(|(charge, _)| !counts_requests(charge))
        });
        let outcomes = outcomes.filter(|(charge, outcome, _)| {
            counts_requests(charge) || (refused_by_others && outcome.verdict.is_refusal())
        });
        most_restrictive(outcomes).map(|(charge, outcome)| {
            let unit = unit(charge.limit);
            let LevelNumbers { remaining, reset } = LevelNumbers::of(&charge.algorithm, unit, &outcome);
            let reset = reset.unwrap_or_else(|| outcome.retry_after.ceil_seconds());
            Triple { limit: unit.whole(ceiling(charge, &outcome)), remaining, reset, unit }
        })
    }

    /// Whether `self` leaves the client a smaller part of the limit than the RateLimit fields of the upstream's
    /// response. `limit` and `remaining` are the values of these fields. If `limit` is `None`, only the remaining
    /// amounts are compared.
    pub fn is_stricter_than(self, limit: Option<u64>, remaining: u64) -> bool {
        let limit = limit.filter(|limit| *limit > 0).unwrap_or(self.limit);
        u128::from(self.remaining) * u128::from(limit) < u128::from(remaining) * u128::from(self.limit)
    }
}

/// Returns the burst or limit of a charge, with the raises of its bucket.
pub fn ceiling(charge: &Charge, outcome: &Outcome) -> Cost {
    // Almost no bucket is raised, and the raised limit is a copy.
    if outcome.raised == Cost::default() {
        return charge.algorithm.ceiling();
    }
    charge.algorithm.raised(outcome.raised).ceiling()
}

/// Returns the enforced charges whose limits clients may see, in the order of the configuration, each with a description and an
/// outcome. A limit that was only asked for a ban is left out if none runs. The function `exposed` returns the description of a
/// limit, or `None` if clients may not see the limit. The outcome is `None` if the amount left is unknown, and always if
/// `settlement` is `None`.
pub fn exposed<'p, L>(
    plan: &'p Plan,
    settlement: Option<&'p Settlement>,
    exposed: impl Fn(LimitId) -> Option<L>,
) -> impl Iterator<Item = (&'p Charge, L, Option<&'p Outcome>)> {
    plan.enforced.iter().enumerate().filter_map(move |(index, charge)| {
        let limit = exposed(charge.limit)?;
        let outcome = settlement.and_then(|settlement| settlement.enforced.get(index));
        let is_banned = outcome.is_some_and(|outcome| outcome.verdict == Verdict::Banned);
        if charge.only_asks_for_ban() && !is_banned {
            return None;
        }
        Some((charge, limit, outcome.filter(|outcome| outcome.verdict != Verdict::Unasked)))
    })
}

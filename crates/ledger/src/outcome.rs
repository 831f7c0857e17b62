//! Defines the outcome of a bucket, and chooses the most restrictive of several outcomes.

use serde::{Deserialize, Serialize};

use super::cost::Cost;
use base::time::{Micros, Timestamp};

/// The answer of a bucket to a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Allow,
    /// The bucket cannot pay now, but waiting helps.
    Deny,
    /// The bucket could pay if other requests did not hold some of it. Waiting helps.
    Held,
    /// The cost exceeds what a full bucket holds, so waiting does not help.
    Never,
    /// A ban refuses the request until its end.
    Banned,
    /// The bucket was not asked, because another bucket of the plan refuses, or because there was no store to ask.
    Unasked,
}

impl Verdict {
    pub fn is_refusal(self) -> bool {
        matches!(self, Verdict::Deny | Verdict::Held | Verdict::Never | Verdict::Banned)
    }
}

/// The answer of one bucket to a charge, with the numbers for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The amount in the bucket after this request.
    pub remaining: Cost,
    /// The time until the bucket can pay the cost. Zero if it granted the request, or can never pay.
    pub retry_after: Micros,
    /// The time until the bucket is full, if nothing more is charged.
    pub reset_after: Micros,
    /// How long the bucket delays the request, if all buckets grant it.
    pub delay: Micros,
    /// What requests in flight hold of a budget, as far as the gateway knows, with what a granted request reserves. Zero for other buckets.
    pub held: Cost,
    /// By how much raises enlarge the bucket's burst or limit.
    pub raised: Cost,
    /// The ban that refuses the request.
    pub ban: Option<BanNotice>,
    /// The thresholds of the limit that this charge tells. Usually none.
    pub told: ToldThresholds,
    /// Whether the bucket is a purse for which its region should ask home for more, without a request that waits for it.
    pub is_low: bool,
    /// When the home of a purse was last heard. 0 before that, and for other buckets.
    pub home_heard: Timestamp,
}

/// The thresholds that a charge tells: those with an amount above `above`, up to `to`. None if `to` is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToldThresholds {
    pub above: Cost,
    pub to: Cost,
}

/// A ban, as the refused request learns of it. `retry_after` is the time until its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanNotice {
    /// The number of the ban, from 1: the n-th ban has the n-th duration.
    pub step: u32,
    /// Whether the ban begins with this request.
    pub begins: bool,
}

impl Outcome {
    pub const UNASKED: Outcome = Outcome {
        verdict: Verdict::Unasked,
        remaining: Cost::from_thousandths(0),
        retry_after: Micros(0),
        reset_after: Micros(0),
        delay: Micros(0),
        held: Cost::from_thousandths(0),
        raised: Cost::from_thousandths(0),
        ban: None,
        told: ToldThresholds { above: Cost::from_thousandths(0), to: Cost::from_thousandths(0) },
        is_low: false,
        home_heard: Timestamp(0),
    };
}

/// Chooses the most restrictive of several outcomes: a refusal before a grant, a ban before other refusals, the refusal
/// with the longest wait, or the grant with the smallest share `remaining / limit`. Among equal outcomes, the first is
/// chosen. The `Cost` of each outcome is the amount in a full bucket. `None` if there are no outcomes.
pub fn most_restrictive<T>(outcomes: impl IntoIterator<Item = (T, Outcome, Cost)>) -> Option<(T, Outcome)> {
    let rank = |outcome: &Outcome| match outcome.verdict {
        Verdict::Banned => (3, outcome.retry_after.0),
        Verdict::Never => (2, 0),
        Verdict::Deny | Verdict::Held => (1, outcome.retry_after.0),
        Verdict::Allow | Verdict::Unasked => (0, 0),
    };
    let share_below = |(outcome, limit): (&Outcome, Cost), (other, others): (&Outcome, Cost)| {
        let scaled = |left: Cost, by: Cost| u128::from(left.thousandths()) * u128::from(by.thousandths());
        scaled(outcome.remaining, others) < scaled(other.remaining, limit)
    };
    outcomes
        .into_iter()
        .reduce(|best, next| {
            let (best_rank, next_rank) = (rank(&best.1), rank(&next.1));
            let stricter = next_rank > best_rank
                || (next_rank == best_rank
                    && best.1.verdict == Verdict::Allow
                    && share_below((&next.1, next.2), (&best.1, best.2)));
            if stricter { next } else { best }
        })
        .map(|(subject, outcome, _)| (subject, outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(verdict: Verdict, remaining: u64, wait: u64) -> Outcome {
        Outcome { verdict, remaining: Cost::from_tokens(remaining), retry_after: Micros(wait), ..Outcome::UNASKED }
    }

    #[track_caller]
    fn check(outcomes: &[(Outcome, u64)], index: usize) {
        let numbered =
            outcomes.iter().enumerate().map(|(i, (outcome, limit))| (i, *outcome, Cost::from_tokens(*limit)));
        assert_eq!(most_restrictive(numbered).unwrap().0, index);
    }

    #[test]
    fn a_refusal_binds_more_than_a_grant_and_the_longest_wait_the_most() {
        check(&[(outcome(Verdict::Allow, 0, 0), 9), (outcome(Verdict::Deny, 5, 10), 9)], 1);
        check(&[(outcome(Verdict::Deny, 0, 10), 9), (outcome(Verdict::Deny, 0, 20), 9)], 1);
        check(&[(outcome(Verdict::Deny, 0, 20), 9), (outcome(Verdict::Deny, 0, 20), 9)], 0);
    }

    #[test]
    fn among_grants_the_smallest_share_binds_and_ties_go_to_the_first() {
        check(&[(outcome(Verdict::Allow, 50, 0), 100), (outcome(Verdict::Allow, 9, 0), 10)], 0);
        check(&[(outcome(Verdict::Allow, 50, 0), 100), (outcome(Verdict::Allow, 1, 0), 10)], 1);
        check(&[(outcome(Verdict::Allow, 5, 0), 10), (outcome(Verdict::Allow, 50, 0), 100)], 0);
    }
}

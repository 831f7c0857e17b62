//! Chooses the limit that determines the refusal, and makes the refusal.

use super::reason::Reason;
use super::refusal::{ExceededCapacity, Refusal};
use super::retry_after::{Jitter, retry_after_held, retry_after_limit};
use super::store_failure_refusal;
use base::time::{Micros, Timestamp};
use ledger::algorithm::lease::purse::ASK_HOME;
use ledger::charge::{Charge, Plan, Settlement};
use ledger::outcome::{Outcome, Verdict};
use rules::rule::{BanStatus, Expose, RefusalStatus};
use rules::rule_set::RuleSet;
use rules::settled_price::SettledSource;

/// Returns the enforced charges that refused the request, in the order of the configuration, with their outcomes.
pub fn refusing<'p>(plan: &'p Plan, settlement: &'p Settlement) -> impl Iterator<Item = (&'p Charge, &'p Outcome)> {
    plan.enforced.iter().zip(&settlement.enforced).filter(|(_, outcome)| outcome.verdict.is_refusal())
}

/// Returns the charge that determines the refusal, with its outcome: the charge with the longest wait, or the first of
/// several with the same wait. A ban determines the refusal before all other limits. A limit of slots, or a budget of which other
/// requests hold too much, determines the refusal only if no other limit refused. `None` if no charge refused.
pub fn speaker<'p>(plan: &'p Plan, settlement: &'p Settlement) -> Option<(&'p Charge, &'p Outcome)> {
    let index = speaker_index(&plan.enforced, settlement)?;
    plan.enforced.get(index).zip(settlement.enforced.get(index))
}

/// Returns the index, among these enforced charges, of the charge that determines the refusal. `None` if no charge refused.
pub fn speaker_index(enforced: &[Charge], settlement: &Settlement) -> Option<usize> {
    let charges = enforced.iter().zip(&settlement.enforced).enumerate();
    let refusing = charges.filter(|(_, (_, outcome))| outcome.verdict.is_refusal());
    let rank = |(charge, outcome): (&Charge, &Outcome)| {
        let is_guess = charge.algorithm.slots().is_some() || outcome.verdict == Verdict::Held;
        (outcome.verdict == Verdict::Banned, !is_guess, outcome.retry_after)
    };
    let speaker = refusing.reduce(|worst, next| if rank(next.1) > rank(worst.1) { next } else { worst });
    speaker.map(|(index, _)| index)
}

/// Makes the refusal for a plan that was not granted. `now` is the present time on the store's clock.
pub fn refusal(rules: &RuleSet, plan: &Plan, settlement: &Settlement, now: Timestamp, jitter: Jitter) -> Refusal {
    let limits = || refusing(plan, settlement).map(|(charge, _)| rules.limit(charge.limit));
    // The refusal is due to shared capacity only if all limits that refused are shared.
    let shared = limits().all(|limit| limit.is_some_and(|limit| limit.refusal == RefusalStatus::ReducedCapacity));
    let exceeded = if shared { ExceededCapacity::SharedCapacity } else { ExceededCapacity::Quota };
    let exposed = limits().flatten().filter(|limit| limit.expose == Expose::Yes);
    let speaker = speaker(plan, settlement);
    if speaker.is_some_and(|(_, outcome)| outcome.verdict == Verdict::Banned) {
        let exposed = exposed.map(|limit| limit.name.clone()).collect();
        return Refusal { refused_at: Some(now), ..banned(rules, plan, settlement, jitter, exposed) };
    }
    if let Some((charge, _)) = speaker.filter(|(charge, outcome)| awaits_home(charge, outcome)) {
        let seconds = store_failure_refusal::home_wait(charge, jitter);
        return Refusal { refused_at: Some(now), ..Refusal::home_unavailable(seconds) };
    }
    let violated = exposed.map(|limit| limit.name.clone()).collect();
    let reason = speaker.map_or(Reason::Denied, |(charge, outcome)| match outcome.verdict {
        Verdict::Held => Reason::BudgetHeld,
        _ => Reason::exceeded(charge.algorithm.kind()),
    });
    let seconds = speaker.map(|(charge, outcome)| match outcome.verdict {
        Verdict::Held => retry_after_held(charge.key.spread()),
        _ => retry_after_limit(&charge.algorithm, charge.key.spread(), outcome.retry_after, jitter),
    });
    // Nobody knows when the requests that hold a part of the budget will end. A purse waits until home is asked again, mostly before
    // its period ends.
    let end = |(charge, outcome): (&Charge, &Outcome)| {
        let wait = if charge.algorithm.kind().is_purse() { outcome.reset_after } else { outcome.retry_after };
        let is_known = outcome.verdict != Verdict::Held && wait > Micros(0);
        is_known.then(|| charge.algorithm.print_end(now.plus(wait))).flatten()
    };
    let is_budget_spent = speaker.is_some_and(|(charge, outcome)| {
        outcome.verdict != Verdict::Held && charge.algorithm.kind().is_budget() && !counts_results(rules, charge)
    });
    let held = speaker.filter(|(charge, _)| charge.algorithm.kind().is_budget()).map(|(_, outcome)| outcome.held);
    let resets_at = speaker.and_then(end);
    let refused_at = Some(now);
    Refusal { refused_at, resets_at, held, is_budget_spent, ..Refusal::exceeded(exceeded, reason, seconds, violated) }
}

/// Returns whether a purse could not pay a charge, and its home gave no answer. If home had answered that it is short, there would be
/// a time to wait.
pub fn awaits_home(charge: &Charge, outcome: &Outcome) -> bool {
    let is_unpaid = outcome.verdict == Verdict::Deny && outcome.retry_after == ASK_HOME;
    is_unpaid && charge.algorithm.kind().is_purse()
}

/// Makes the refusal by the bans of a plan. `violated` has the refusing limits that clients may see.
fn banned(rules: &RuleSet, plan: &Plan, settlement: &Settlement, jitter: Jitter, violated: Vec<String>) -> Refusal {
    let is_forbidden = |(charge, outcome): (&Charge, &Outcome)| {
        let status = rules.limit(charge.limit).map(|limit| limit.ban_status);
        outcome.verdict == Verdict::Banned && status == Some(BanStatus::Forbidden)
    };
    if refusing(plan, settlement).any(is_forbidden) {
        return Refusal::banned(None, violated);
    }
    let wait = |(charge, outcome): (&Charge, &Outcome)| match outcome.verdict {
        // A ban needs no jitter: a request before its end is refused without a charge.
        Verdict::Banned => outcome.retry_after.ceil_seconds(),
        Verdict::Held => retry_after_held(charge.key.spread()),
        _ => retry_after_limit(&charge.algorithm, charge.key.spread(), outcome.retry_after, jitter),
    };
    Refusal::banned(refusing(plan, settlement).map(wait).max(), violated)
}

/// Whether the limit counts only requests with certain results. Such a limit is not a quota of the client.
fn counts_results(rules: &RuleSet, charge: &Charge) -> bool {
    let price = rules.limit(charge.limit).and_then(|limit| limit.settled_price());
    price.is_some_and(|price| matches!(price.source, SettledSource::CountOn { .. }))
}

#[cfg(test)]
mod tests {
    use super::super::refusal::ProblemType;
    use super::super::test_rules::{head, limit, policy, request, rule_set};
    use super::*;
    use ledger::algorithm::AlgorithmKind;
    use ledger::cost::Cost;
    use rules::rule::{Action, Limit};
    use rules::rule_set::Answer;

    /// Three kinds of limits: a limit of one caller, a limit that all callers share, and a limit that is not exposed.
    const OWN: Kind = Kind { refusal: RefusalStatus::QuotaExceeded, expose: Expose::Yes };
    const SHARED: Kind = Kind { refusal: RefusalStatus::ReducedCapacity, expose: Expose::Yes };
    const HIDDEN: Kind = Kind { refusal: RefusalStatus::QuotaExceeded, expose: Expose::No };

    #[derive(Clone, Copy)]
    struct Kind {
        refusal: RefusalStatus,
        expose: Expose,
    }

    /// Returns the refusal by limits of these kinds, and the name of the limit that determines the refusal. The limits
    /// are named `0`, `1`, …. Each limit has its wait in seconds, or `None` if it could pay.
    fn refuse(limits: &[(Kind, Option<u64>)]) -> (Refusal, Option<String>) {
        let policies: Vec<_> = limits
            .iter()
            .enumerate()
            .map(|(index, (Kind { refusal, expose }, _))| {
                let limit = Limit { refusal: *refusal, expose: *expose, ..limit(9) };
                policy(&index.to_string(), Action::Charge(vec![limit]))
            })
            .collect();
        let rules = rule_set(policies);
        let head = head(&[]);
        let Answer::Charge(plan) = rules.plan(&request(&head), Timestamp(1)).answer else { panic!("nothing to pay") };
        let outcome = |(_, wait): &(Kind, Option<u64>)| Outcome {
            verdict: if wait.is_some() { Verdict::Deny } else { Verdict::Allow },
            remaining: Cost::ONE,
            retry_after: Micros(wait.unwrap_or_default() * 1_000_000),
            ..Outcome::UNASKED
        };
        let enforced = limits.iter().map(outcome).collect();
        let settlement = Settlement::refused(enforced);
        let speaker = speaker(&plan, &settlement).and_then(|(charge, _)| rules.limit(charge.limit));
        let jitter = Jitter { share: 0, max: Micros(0), max_period: Micros(0) };
        (refusal(&rules, &plan, &settlement, Timestamp(0), jitter), speaker.map(|limit| limit.name.clone()))
    }

    #[track_caller]
    fn check(limits: &[(Kind, Option<u64>)], status: u16, speaks: &str, seconds: u64, names: &[&str]) {
        let (refusal, speaker) = refuse(limits);
        assert_eq!((refusal.status, speaker.as_deref(), refusal.retry_after), (status, Some(speaks), Some(seconds)));
        let violated = names.iter().map(|name| (*name).to_owned()).collect();
        let problem = match status {
            503 => ProblemType::ReducedCapacity { violated },
            _ => ProblemType::QuotaExceeded { violated },
        };
        assert_eq!((refusal.problem, refusal.reason), (problem, Reason::Exceeded(AlgorithmKind::TokenBucket)));
    }

    #[test]
    fn the_limit_with_the_longest_wait_decides_the_refusal_and_of_equal_ones_the_first() {
        check(&[(OWN, Some(3)), (OWN, Some(7)), (OWN, Some(5))], 429, "1", 7, &["0", "1", "2"]);
        check(&[(OWN, Some(3)), (OWN, Some(3))], 429, "0", 3, &["0", "1"]);
        check(&[(OWN, None), (OWN, Some(1))], 429, "1", 1, &["1"]);
    }

    #[test]
    fn only_shared_capacity_that_refuses_alone_is_503() {
        check(&[(SHARED, Some(3))], 503, "0", 3, &["0"]);
        check(&[(SHARED, Some(3)), (OWN, None)], 503, "0", 3, &["0"]);
        check(&[(SHARED, Some(3)), (SHARED, Some(4))], 503, "1", 4, &["0", "1"]);
        check(&[(SHARED, Some(3)), (OWN, Some(1))], 429, "0", 3, &["0", "1"]);
    }

    #[test]
    fn a_limit_that_is_not_exposed_refuses_without_its_name() {
        check(&[(HIDDEN, Some(3)), (OWN, Some(1))], 429, "0", 3, &["1"]);
        check(&[(HIDDEN, Some(3))], 429, "0", 3, &[]);
    }

    /// Returns the refusal by limits with these statuses of bans. Each limit has its verdict, and its wait in seconds.
    fn refuse_banned(limits: &[(BanStatus, Verdict, u64)]) -> Refusal {
        let policy = |(index, (ban_status, ..)): (usize, &(BanStatus, Verdict, u64))| {
            let limit = Limit { ban_status: *ban_status, refusal: RefusalStatus::ReducedCapacity, ..limit(9) };
            policy(&index.to_string(), Action::Charge(vec![limit]))
        };
        let rules = rule_set(limits.iter().enumerate().map(policy).collect());
        let head = head(&[]);
        let Answer::Charge(plan) = rules.plan(&request(&head), Timestamp(1)).answer else { panic!("nothing to pay") };
        let outcome = |(_, verdict, wait): &(BanStatus, Verdict, u64)| Outcome {
            verdict: *verdict,
            retry_after: Micros(wait * 1_000_000),
            ..Outcome::UNASKED
        };
        let settlement = Settlement::refused(limits.iter().map(outcome).collect());
        let jitter = Jitter { share: 1_000_000, max: Micros(1_000_000_000), max_period: Micros(0) };
        refusal(&rules, &plan, &settlement, Timestamp(0), jitter)
    }

    #[test]
    fn a_ban_determines_reason_and_status_and_its_wait_is_exact() {
        use BanStatus::{Forbidden, TooManyRequests};
        use Verdict::{Allow, Banned, Deny};
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let one = refuse_banned(&[(Forbidden, Deny, 9), (TooManyRequests, Banned, 900), (Forbidden, Allow, 0)]);
        assert_eq!((one.status, one.reason, one.retry_after), (429, Reason::Banned, Some(900)));
        assert_eq!(one.problem, ProblemType::QuotaExceeded { violated: names(&["0", "1"]) });
        let longest = refuse_banned(&[(TooManyRequests, Banned, 5), (TooManyRequests, Banned, 70)]);
        assert_eq!(longest.retry_after, Some(70));
        // The wait of another limit gets jitter.
        let other = refuse_banned(&[(TooManyRequests, Deny, 1000), (TooManyRequests, Banned, 5)]);
        assert!(other.reason == Reason::Banned && other.retry_after.is_some_and(|wait| wait >= 1000), "{other:?}");
        let forbidden = refuse_banned(&[(TooManyRequests, Banned, 900), (Forbidden, Banned, 5)]);
        assert_eq!((forbidden.status, forbidden.retry_after), (403, None));
        assert_eq!(forbidden.problem, ProblemType::Blank);
    }
}

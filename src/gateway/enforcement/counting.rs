//! Counts the outcomes of limits.

use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::metrics::LimitMetrics;
use decision::model_requests::UnpricedRequest;
use decision::ratelimit_numbers::ceiling;
use decision::speaking_limit::awaits_home;
use ledger::charge::{ChargePurpose, LimitId, Plan};
use ledger::cost::Cost;
use ledger::outcome::{Outcome, Verdict};
use rules::claimed_numbers::ClaimResult;
use rules::denier::DenierId;
use rules::rule::Mode;
use rules::rule_set::PolicyId;
use stores::{Source, TakeReply};

/// Counts a request as unmatched for each of these policies: no rule of the policy applied to the request.
pub(super) fn count_unmatched(snapshot: &Snapshot, policies: &[PolicyId]) {
    for policy in policies {
        if let Some(counter) = usize::try_from(policy.0).ok().and_then(|index| snapshot.unmatched.get(index)) {
            counter.increment(1);
        }
    }
}

/// Counts a request as denied for each of these rules and policies. Rules in shadow mode are counted too, although they do not
/// deny requests.
pub(super) fn count_denials(snapshot: &Snapshot, deniers: &[DenierId]) {
    for denier in deniers {
        if let Some(counter) = usize::try_from(denier.0).ok().and_then(|index| snapshot.denied.get(index)) {
            counter.increment(1);
        }
    }
}

/// Counts, for each limit, the result of reading the limit's settings from the client's credentials.
pub(super) fn count_claims(snapshot: &Snapshot, claims: &[(LimitId, ClaimResult)]) {
    for (limit, result) in claims {
        if let Some((_, metrics)) = snapshot.limit(*limit) {
            metrics.claimed_numbers.increment(result);
        }
    }
}

/// Counts, for each of these concurrency limits and budgets, a request that holds nothing because another proxy or a service asks
/// about it.
pub(super) fn count_not_at_door(snapshot: &Snapshot, limits: &[LimitId]) {
    for (_, metrics) in limits.iter().filter_map(|limit| snapshot.limit(*limit)) {
        metrics.not_at_door.increment(1);
    }
}

/// Counts a request that costs more than a full bucket holds. All limits of the plan count the request. A limit counts
/// it as too large if the cost is more than a full bucket of this limit holds.
pub(super) fn count_too_large(snapshot: &Snapshot, plan: &Plan) {
    for charge in &plan.enforced {
        let Some((_, metrics)) = snapshot.limit(charge.limit) else { continue };
        metrics.requests.increment(1);
        if charge.is_too_large() {
            metrics.too_large.increment(1);
        }
    }
}

/// Counts a request whose cost is unknown to `limits`, which are limits on language models. All enforced limits of the
/// plan count the request. `limits` also count it as unpriced.
pub(super) fn count_unpriced(snapshot: &Snapshot, UnpricedRequest { plan, limits, .. }: &UnpricedRequest) {
    for charge in &plan.enforced {
        let Some((_, metrics)) = snapshot.limit(charge.limit) else { continue };
        metrics.requests.increment(1);
        if limits.contains(&charge.limit) {
            metrics.unpriced.increment(1);
        }
    }
}

/// Counts the outcome of each limit that was checked. A limit that was only asked for a ban counts the request if one runs.
pub(super) fn count_settlement(snapshot: &Snapshot, plan: &Plan, taken: &TakeReply) {
    let TakeReply { settlement, source, .. } = taken;
    let group = if settlement.is_granted() { Group::Granted } else { Group::Refused };
    for (charge, outcome) in plan.enforced.iter().zip(&settlement.enforced) {
        let Some((limit, metrics)) = snapshot.limit(charge.limit) else { continue };
        if charge.only_asks_for_ban() && outcome.verdict != Verdict::Banned {
            continue;
        }
        let group = if charge.purpose == ChargePurpose::Spend { group } else { Group::Checked };
        if awaits_home(charge, outcome) {
            metrics.requests.increment(1);
            metrics.home_unavailable.increment(1);
            continue;
        }
        count_outcome(metrics, outcome, group);
        let tenth = Cost::from_thousandths(ceiling(charge, outcome).thousandths() / 10);
        let near = group == Group::Granted && *source == Source::Store && outcome.remaining < tenth;
        if near && limit.mode == Mode::Enforce {
            metrics.near_limit.increment(1);
        }
    }
    // A limit in shadow mode waits for nothing, so it is not known what home would have answered.
    let shadow = plan.shadow.iter().zip(&settlement.shadow).filter(|(charge, outcome)| !awaits_home(charge, outcome));
    for (charge, outcome) in shadow {
        if let Some((_, metrics)) = snapshot.limit(charge.limit) {
            count_outcome(metrics, outcome, Group::Granted);
        }
    }
}

/// The result of charges that are taken together. If one charge is refused, no charge is taken, even if other charges
/// could be paid.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Granted,
    Refused,
    /// The bucket is checked and not charged, even if the other charges are taken.
    Checked,
}

fn count_outcome(metrics: &LimitMetrics, outcome: &Outcome, group: Group) {
    metrics.requests.increment(1);
    match outcome.verdict {
        Verdict::Allow if group == Group::Granted => metrics.allowed.increment(1),
        Verdict::Allow | Verdict::Unasked => {}
        Verdict::Deny => metrics.exceeded.increment(1),
        Verdict::Held => match &metrics.budget {
            Some(budget) => {
                budget.refused_by_holds.increment(1);
                budget.rejected_as_held.increment(1);
            }
            None => metrics.exceeded.increment(1),
        },
        Verdict::Never => metrics.too_large.increment(1),
        Verdict::Banned => {
            if let Some(bans) = &metrics.bans {
                bans.refused.increment(1);
            }
        }
    }
}

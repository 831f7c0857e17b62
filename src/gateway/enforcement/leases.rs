//! Charges limits over several regions: asks home for what a purse lacks, and charges a request again that a purse could not pay.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::Patience;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::state::{GatewayState, Leases};
use base::time::{Micros, Timestamp, sleep_precisely, timeout_precisely};
use decision::speaking_limit::awaits_home;
use ledger::algorithm::Algorithm;
use ledger::charge::{Charge, Plan, Settlement};
use ledger::cost::Cost;
use ledger::holds::{Owner, TimedHold};
use ledger::outcome::{Outcome, ToldThresholds, Verdict};
use stores::{AskAnswer, Caller, LeaseKeeper, PurseBucket, TakeFailure, TakeReply, Worker};

/// How long a request waits before it is charged again while another gateway of the region asks home. The pause doubles up to the
/// longest one.
const PAUSE: Micros = Micros(5_000);
const LONGEST_PAUSE: Micros = Micros(40_000);

/// The wait of a request for which home has given less than was asked for: the next lease can be there then.
const NEXT_LEASE: Micros = Micros(1_000_000);

/// A request that may wait for home.
#[derive(Clone)]
pub(super) struct WaitingRequest {
    pub worker: Worker,
    pub caller: Option<Arc<dyn Caller>>,
    pub patience: Patience,
    /// When the head of the request had arrived.
    pub at: Timestamp,
    /// The timed hold of the last try.
    pub hold: Option<TimedHold>,
}

/// Returns whether a limit over several regions charges the request.
pub(super) fn has_purse(plan: &Plan) -> bool {
    plan.enforced.iter().chain(&plan.shadow).any(|charge| matches!(charge.algorithm, Algorithm::Purse(_)))
}

/// Returns whether home is to be asked after a plan was charged.
pub(super) fn is_due(plan: &Plan, settlement: &Settlement) -> bool {
    outcomes(plan, settlement).any(|(charge, outcome)| is_low(outcome) || awaits_home(charge, outcome))
}

/// Settles a plan that was charged: asks home for its purses, and lets them pay from the share of this region if home gives no answer
/// and their limits allow that. Returns the last answer of the store: a refusal without a wait if home gave no answer in time.
/// `request` then has the timed hold of that try. `record_told` gets the answers that another one replaces, because buckets tell a threshold
/// once.
///
/// # Errors
/// If the region's own store gives no answer.
pub(super) async fn settle(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    leases: &Leases,
    plan: &Plan,
    taken: TakeReply,
    request: &mut WaitingRequest,
    record_told: impl Fn(&TakeReply),
) -> Result<Option<TakeReply>, TakeFailure> {
    count_waits(snapshot, plan, &taken.settlement);
    let has_shares = has_shares(plan);
    let timeout = snapshot.config.home.as_ref().map_or(Micros(0), |home| home.timeout);
    let left = left_of(gateway, request);
    // A caller at a door waits for a short time only: half of it is for the region's own store.
    let wait = left.map_or(timeout, |left| timeout.min(if has_shares { Micros(left.0 / 2) } else { left }));
    let taken = wait_for_home(gateway, leases, plan, taken, request, wait, &record_told).await?;
    let Some(taken) = taken else { return Ok(None) };
    let left = left_of(gateway, request);
    if !has_shares || unpaid(plan, &taken.settlement).is_empty() || left == Some(Micros(0)) {
        return Ok(Some(taken));
    }
    let Some(alone) = plan.without_home() else { return Ok(Some(taken)) };
    record_told(&taken);
    let evicted = taken.evicted;
    let Some(again) = take_again(gateway, &alone, request, left).await? else { return Ok(None) };
    for charge in &alone.enforced {
        if let Some(leases) = snapshot.limit(charge.limit).and_then(|(_, metrics)| metrics.leases.as_ref()) {
            leases.decided_alone.increment(1);
        }
    }
    Ok(Some(TakeReply { evicted: again.evicted + evicted, ..again }))
}

/// Returns whether all purses of a plan may pay from the shares of their region.
fn has_shares(plan: &Plan) -> bool {
    plan.charges().all(|charge| match &charge.algorithm {
        Algorithm::Purse(purse) => purse.without_home().is_some(),
        _ => true,
    })
}

/// Counts a request that is to wait for home, at the limits whose purses cannot pay it.
fn count_waits(snapshot: &Snapshot, plan: &Plan, settlement: &Settlement) {
    if unpaid(plan, settlement).is_empty() {
        return;
    }
    let charged = plan.enforced.iter().zip(&settlement.enforced);
    for (charge, _) in charged.filter(|(charge, outcome)| awaits_home(charge, outcome)) {
        if let Some(leases) = snapshot.limit(charge.limit).and_then(|(_, metrics)| metrics.leases.as_ref()) {
            leases.waited.increment(1);
        }
    }
}

/// Returns the time that is left to a caller with a deadline of its own.
fn left_of(gateway: &GatewayState, request: &WaitingRequest) -> Option<Micros> {
    let passed = gateway.clock.now().since(request.at);
    request.patience.answer_within().map(|most| Micros(most.0.saturating_sub(passed.0)))
}

/// Asks home for the purses of a plan that was charged. A granted request does not wait. One that only purses could not pay waits
/// for their leases, at most for `wait`, and is charged again. Returns the last answer of the store.
///
/// # Errors
/// If the region's own store gives no answer.
async fn wait_for_home(
    gateway: &GatewayState,
    Leases { keeper, .. }: &Leases,
    plan: &Plan,
    mut taken: TakeReply,
    request: &mut WaitingRequest,
    wait: Micros,
    record_told: impl Fn(&TakeReply),
) -> Result<Option<TakeReply>, TakeFailure> {
    let deadline = gateway.clock.now().plus(wait);
    let (mut pause, mut has_retried_store) = (PAUSE, false);
    let mut before = HeardBefore(smallvec![None; plan.enforced.len()]);
    loop {
        before.note(plan, &taken.settlement);
        ask_in_background(keeper, plan, &taken.settlement);
        let asked = unpaid(plan, &taken.settlement);
        let left = deadline.since(gateway.clock.now());
        if asked.is_empty() || left == Micros(0) {
            break;
        }
        // The request may end while it waits.
        record_told(&taken);
        taken.settlement.enforced.iter_mut().for_each(|outcome| outcome.told = ToldThresholds::default());
        match timeout_precisely(left.into(), keeper.ask(asked.iter().copied())).await {
            // At the deadline too, a last charge shows whether another gateway has heard home.
            Some(AskAnswer::Answered) | None => {}
            // What another gateway asked, or this one before, has no answer while home is away.
            Some(AskAnswer::UnderWay) if asked.iter().any(|(purse, _)| keeper.is_home_away(purse)) => {
                return Ok(Some(taken));
            }
            Some(AskAnswer::NoStore) if has_retried_store => break,
            Some(answer @ (AskAnswer::UnderWay | AskAnswer::NoStore)) => {
                has_retried_store |= answer == AskAnswer::NoStore;
                sleep_precisely(pause.min(left).into()).await;
                pause = Micros(pause.0 * 2).min(LONGEST_PAUSE);
            }
            Some(AskAnswer::NoHome) => return Ok(Some(taken)),
        }
        let most = left_of(gateway, request);
        if most == Some(Micros(0)) {
            break;
        }
        let evicted = taken.evicted;
        match take_again(gateway, plan, request, most).await? {
            Some(again) => taken = TakeReply { evicted: again.evicted + evicted, ..again },
            None => return Ok(None),
        }
    }
    before.refuse_by_limit(plan, &mut taken.settlement);
    Ok(Some(taken))
}

/// When the home of each enforced charge had been heard before the request waited for it. All gateways of a region see that in the
/// purse, also one that does not ask because another one does. `None` for a charge that has not waited.
struct HeardBefore(SmallVec<[Option<Timestamp>; 2]>);

impl HeardBefore {
    fn note(&mut self, plan: &Plan, settlement: &Settlement) {
        for ((charge, outcome), heard) in plan.enforced.iter().zip(&settlement.enforced).zip(&mut self.0) {
            if awaits_home(charge, outcome) {
                heard.get_or_insert(outcome.home_heard);
            }
        }
    }

    /// If home has answered while the request waited, others have spent what it gave. So the limit refuses the request: home is not
    /// away.
    fn refuse_by_limit(&self, plan: &Plan, settlement: &mut Settlement) {
        for ((charge, outcome), heard) in plan.enforced.iter().zip(&mut settlement.enforced).zip(&self.0) {
            // A purse that was lost meanwhile has heard nothing.
            let is_heard = outcome.home_heard > Timestamp(0) && *heard != Some(outcome.home_heard);
            if is_heard && awaits_home(charge, outcome) {
                outcome.retry_after = NEXT_LEASE;
            }
        }
    }
}

/// Charges a request again, and waits for the store for at most `most`. A timed hold is a new owner: what the nodes of a cluster give back
/// of the last try settles that one, perhaps later than this try.
async fn take_again(
    gateway: &GatewayState,
    plan: &Plan,
    request: &mut WaitingRequest,
    most: Option<Micros>,
) -> Result<Option<TakeReply>, TakeFailure> {
    let (worker, caller) = (request.worker, request.caller.clone());
    request.hold = request.hold.map(|hold| TimedHold { owner: Owner::of_timed_hold(fastrand::u64(..)), ..hold });
    match (request.hold, most) {
        (Some(hold), most) => gateway.store.take_timed(worker, plan, caller, most, hold.within(plan)).await,
        (None, Some(most)) => gateway.store.take_within(most, worker, plan, caller).await,
        (None, None) => gateway.store.take(worker, plan, caller).await,
    }
}

/// Tells the keeper which purses are low, and which of limits in shadow mode are empty.
fn ask_in_background(keeper: &LeaseKeeper, plan: &Plan, settlement: &Settlement) {
    let enforced = plan.enforced.iter().zip(&settlement.enforced).filter(|(_, outcome)| is_low(outcome));
    let shadow = plan.shadow.iter().zip(&settlement.shadow);
    let shadow = shadow.filter(|(charge, outcome)| is_low(outcome) || awaits_home(charge, outcome));
    for (charge, outcome) in enforced.chain(shadow) {
        if let Some(purse) = PurseBucket::of(charge) {
            // More than the largest lease is only for a request that needs it.
            let cost = if is_low(outcome) { charge.cost.min(purse.purse.largest()) } else { charge.cost };
            keeper.is_low(purse, cost);
        }
    }
}

/// Returns the purses that could not pay a plan, if nothing else refuses it.
fn unpaid(plan: &Plan, settlement: &Settlement) -> SmallVec<[(PurseBucket, Cost); 1]> {
    let refusing =
        || plan.enforced.iter().zip(&settlement.enforced).filter(|(_, outcome)| outcome.verdict.is_refusal());
    if !refusing().all(|(charge, outcome)| awaits_home(charge, outcome)) {
        return SmallVec::new();
    }
    refusing().filter_map(|(charge, _)| Some((PurseBucket::of(charge)?, charge.cost))).collect()
}

fn outcomes<'p>(plan: &'p Plan, settlement: &'p Settlement) -> impl Iterator<Item = (&'p Charge, &'p Outcome)> {
    let enforced = plan.enforced.iter().zip(&settlement.enforced);
    enforced.chain(plan.shadow.iter().zip(&settlement.shadow))
}

/// Returns whether the bucket is a purse that should be filled in the background.
fn is_low(outcome: &Outcome) -> bool {
    outcome.is_low && outcome.verdict == Verdict::Allow
}

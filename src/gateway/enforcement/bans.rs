//! Counts and logs the bans that begin.

use crate::gateway::state::snapshot::Snapshot;
use base::time::Timestamp;
use ledger::charge::{Charge, Plan, Settlement};
use ledger::outcome::{BanNotice, Outcome};
use rules::rule::Mode;

/// Counts each ban that has begun with this plan. `now` is the time in this process.
pub(super) fn count_bans(snapshot: &Snapshot, plan: &Plan, settlement: &Settlement, now: impl Fn() -> Timestamp) {
    let enforced = plan.enforced.iter().zip(&settlement.enforced);
    for (charge, outcome) in enforced.chain(plan.shadow.iter().zip(&settlement.shadow)) {
        if let Some(BanNotice { step, begins: true }) = outcome.ban {
            count_ban(snapshot, charge, outcome, step, now());
        }
    }
}

/// Counts a ban that has begun, and logs it. At most one line a second is logged for a limit.
fn count_ban(snapshot: &Snapshot, charge: &Charge, outcome: &Outcome, step: u32, now: Timestamp) {
    let Some((limit, metrics)) = snapshot.limit(charge.limit) else { return };
    let Some(bans) = &metrics.bans else { return };
    bans.count(step);
    if let Some(bans) = bans.log.admit(now) {
        let (policy, rule) = (&*limit.policy, &*limit.name);
        let bucket = snapshot.config.hash_key.bucket(&charge.key.0);
        let (seconds, shadow) = (outcome.retry_after.ceil_seconds(), limit.mode == Mode::Shadow);
        log::info!(policy, rule, bucket:%, step, seconds, shadow, bans; "ban began");
    }
}

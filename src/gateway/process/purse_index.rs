//! Writes which purses this gateway has filled into the index of purses, and finds those of earlier processes there at its start.

use std::time::Duration;

use super::own_connection::on_own_connection;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use base::interval::fixed_interval;
use ledger::algorithm::Algorithm;
use ledger::bucket_key::LimitTag;
use stores::{IndexedPurse, PurseBucket};

/// The interval between two batches. After a failure it is [`RETRY`] times as long.
const EVERY: Duration = Duration::from_secs(5);
const RETRY: u32 = 6;

/// Adopts the purses in the index, and then adds others at intervals. Returns at once without limits over several regions, and if the
/// buckets are in memory.
pub(super) async fn run(gateway: &GatewayState) {
    if gateway.leases.is_none() || !gateway.store.is_shared() {
        return;
    }
    while !adopt(gateway).await {
        pause(RETRY).await;
    }
    let mut pauses = 1;
    loop {
        pause(pauses).await;
        pauses = if tell(gateway).await { 1 } else { RETRY };
    }
}

async fn pause(pauses: u32) {
    tokio::time::sleep(fixed_interval("purse_index", EVERY).mul_f64(0.75 + fastrand::f64() / 2.0) * pauses).await;
}

/// Looks later at the purses in the index. Returns `false` if it could not be read.
async fn adopt(gateway: &GatewayState) -> bool {
    let Some(leases) = &gateway.leases else { return true };
    let snapshot = gateway.snapshot.load_full();
    match on_own_connection(snapshot.config.store.clone(), async |store| store.indexed_purses().await).await {
        Ok(found) => {
            let purses: Vec<PurseBucket> = found.iter().filter_map(|purse| in_file(&snapshot, purse)).collect();
            leases.keeper.adopt(&purses);
            true
        }
        Err(error) => {
            log::debug!(error:%; "index of purses not read");
            false
        }
    }
}

/// Returns the purse with the numbers that its limit has in the file. `None` if no limit has them. Numbers from credentials are not in
/// the file.
fn in_file(snapshot: &Snapshot, indexed: &IndexedPurse) -> Option<PurseBucket> {
    let IndexedPurse { key, numbers, tag, .. } = *indexed;
    let of_limit = |tags: [LimitTag; 2]| tags.contains(&tag);
    let limits = snapshot.all_limits().filter(|(limit, _)| of_limit([limit.tag(0), limit.tag(1)]));
    let mut all = limits.flat_map(|(limit, _)| &limit.variants).filter_map(|variant| match variant {
        Algorithm::Purse(purse) => Some(*purse),
        _ => None,
    });
    let purse = all.find(|purse| purse.numbers_hash() == numbers)?;
    Some(PurseBucket { key, purse, tag })
}

/// Adds the purses to the index that this gateway has filled. Returns `false` if this failed. Then they are added later.
pub(super) async fn tell(gateway: &GatewayState) -> bool {
    let Some(leases) = gateway.leases.as_ref().filter(|_| gateway.store.is_shared()) else { return true };
    let filled = leases.keeper.take_filled();
    if filled.is_empty() {
        return true;
    }
    let by_store = |purse: &IndexedPurse| IndexedPurse { ends: gateway.store.clock_at(purse.ends), ..*purse };
    let purses: Vec<IndexedPurse> = filled.iter().map(by_store).collect();
    let store = gateway.snapshot.load().config.store.clone();
    let Err(error) = on_own_connection(store, async move |store| store.index_purses(&purses).await).await else {
        return true;
    };
    log::debug!(error:%; "purses not added to the index");
    leases.keeper.put_back(&filled);
    false
}

//! Writes which purses this gateway has filled into the index of purses, and finds those of earlier processes there at its start.

use std::collections::HashMap;

use super::own_connection::{next_batch, on_own_connection};
use crate::gateway::state::GatewayState;
use crate::gateway::state::lease_limits::purses;
use ledger::algorithm::lease::Purse;
use ledger::bucket_key::LimitTag;
use stores::{IndexedPurse, PurseBucket};

/// Adopts the purses in the index, and then adds others at intervals. Returns at once without limits over several regions, and if the
/// buckets are in memory.
pub(super) async fn run(gateway: &GatewayState) {
    if gateway.leases.is_none() || !gateway.store.is_shared() {
        return;
    }
    while !adopt(gateway).await {
        next_batch("purse_index", false).await;
    }
    let mut is_told = true;
    loop {
        next_batch("purse_index", is_told).await;
        is_told = tell(gateway).await;
    }
}

/// Looks later at the purses in the index. Returns `false` if it could not be read.
async fn adopt(gateway: &GatewayState) -> bool {
    let Some(leases) = &gateway.leases else { return true };
    let snapshot = gateway.snapshot.load_full();
    match on_own_connection(snapshot.config.store.clone(), async |store| store.indexed_purses().await).await {
        Ok(found) => {
            // Numbers from credentials are not in the file, and nothing tells more of numbers that have left it.
            let in_file: HashMap<(LimitTag, [u8; 16]), Purse> =
                purses(&snapshot).map(|(tag, purse)| ((tag, purse.numbers_hash()), purse)).collect();
            let purse = |IndexedPurse { key, numbers, tag, .. }: &IndexedPurse| {
                Some(PurseBucket { key: *key, purse: *in_file.get(&(*tag, *numbers))?, tag: *tag })
            };
            let found: Vec<PurseBucket> = found.iter().filter_map(purse).collect();
            leases.keeper.adopt(&found);
            true
        }
        Err(error) => {
            log::debug!(error:%; "index of purses not read");
            false
        }
    }
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

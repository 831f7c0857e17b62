//! Tells home which store the gateways of this region use, and reports that others of the region use another one.

use std::time::Duration;

use super::own_connection::{on_own_connection, pause};
use crate::gateway::state::GatewayState;
use stores::{OtherStore, StoreIdentity};

/// The interval between two reports to home.
const EVERY: Duration = Duration::from_secs(10);

/// Tells home at intervals. Returns at once without limits over several regions.
pub(super) async fn run(gateway: &GatewayState) {
    let Some(leases) = &gateway.leases else { return };
    // A store in memory is that of this process alone.
    let in_memory = (!gateway.store.is_shared()).then(StoreIdentity::random);
    let mut other = OtherStore::default();
    loop {
        let snapshot = gateway.snapshot.load_full();
        let Some(home) = snapshot.config.home.clone() else { return };
        let own = match in_memory {
            Some(identity) => Ok(identity),
            None => {
                let settings = snapshot.config.store.clone();
                on_own_connection(settings, async |store| store.identity().await).await
            }
        };
        let region = home.region.clone();
        let told = match own {
            Ok(own) => {
                let told = on_own_connection(home.store, async move |home| home.tell_store(&region, own).await);
                told.await.map(|heard| (own, heard))
            }
            Err(error) => Err(error),
        };
        match told {
            Ok((own, heard)) => leases.health.record_other_store(&home.region, other.note(own, heard)),
            Err(error) => log::debug!(error:%; "home not told the store of this region"),
        }
        pause("region_stores", EVERY, 1).await;
    }
}

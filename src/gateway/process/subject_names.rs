//! Tells the store the names of the subjects of buckets that this gateway has charged, so that every gateway can list them.
//!
//! It has a connection of its own for each batch, so that no request waits for it.

use std::collections::HashMap;

use super::own_connection::{next_batch, on_own_connection};
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::records::IndexedSubject;
use ledger::bucket_key::BucketKey;
use stores::SubjectName;

/// The most names of a batch.
const BATCH: usize = 2_000;

/// Tells names at intervals. Returns at once if the buckets are in memory.
pub(super) async fn run(gateway: &GatewayState) {
    let mut is_told = true;
    while gateway.store.is_shared() {
        next_batch("subject_names", is_told).await;
        is_told = tell(gateway).await;
    }
}

/// Tells the names that wait, up to [`BATCH`]. Returns `false` if this failed. Then they wait again.
pub(super) async fn tell(gateway: &GatewayState) -> bool {
    let untold = gateway.records.subjects.take_untold(BATCH, gateway.clock.now());
    if untold.is_empty() || !gateway.store.is_shared() {
        return true;
    }
    let keys: Vec<BucketKey> = untold.iter().map(|(key, _)| *key).collect();
    let snapshot = gateway.snapshot.load_full();
    let names = names(gateway, &snapshot, untold);
    if names.is_empty() {
        return true;
    }
    let told = on_own_connection(snapshot.config.store.clone(), async move |store| {
        for (meter, names) in &names {
            store.add_subjects(meter, names).await?;
        }
        Ok(())
    });
    let Err(error) = told.await else { return true };
    log::debug!(error:%; "names of subjects not told");
    gateway.records.subjects.put_back(keys);
    false
}

/// Returns the names by meter. Those that the configuration does not record are left out.
fn names(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    untold: Vec<(BucketKey, IndexedSubject)>,
) -> HashMap<String, Vec<SubjectName>> {
    let config = &snapshot.config;
    let mut names: HashMap<String, Vec<SubjectName>> = HashMap::new();
    for (bucket, subject) in untold {
        let IndexedSubject { attribute, value, algorithm, limit: (policy, limit), is_shared, charged, until, .. } =
            subject;
        let limits = config.rules.limits();
        let of_bucket = limits.iter().find(|known| *known.policy == *policy && *known.name == *limit);
        let meter = of_bucket.and_then(|limit| limit.meter.clone());
        let records = config.records.as_ref().filter(|records| records.names(&attribute));
        let (Some(meter), Some(_)) = (meter, records) else { continue };
        names.entry(meter).or_default().push(SubjectName {
            bucket,
            policy: policy.into_string(),
            limit: limit.into_string(),
            attribute: attribute.into_string(),
            value: value.into_vec(),
            ceiling: algorithm.ceiling(),
            is_shared,
            charged: gateway.store.clock_at(charged),
            until: gateway.store.clock_at(until),
        });
    }
    names
}

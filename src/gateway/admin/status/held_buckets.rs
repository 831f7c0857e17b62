//! Lists the buckets of which requests of this process hold most slots, with a command that shows their other slots.

use std::net::SocketAddr;

use serde::Serialize;

use super::top_refused::command;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::held_buckets::HeldBucket;

const MAX_ROWS: usize = 10;

#[derive(Debug, Serialize)]
pub(super) struct HeldRow {
    bucket: String,
    policy: String,
    rule: String,
    slots: u64,
    /// The command that shows the bucket, for a shell on this machine.
    command: String,
}

impl HeldRow {
    pub(super) fn rows(gateway: &GatewayState, admin: Option<SocketAddr>, snapshot: &Snapshot) -> Vec<HeldRow> {
        let row = |held: &HeldBucket| {
            let (limit, _) = snapshot.limit(held.limit_version.limit)?;
            let bucket = snapshot.config.hash_key.bucket(&held.key.0).to_string();
            Some(HeldRow {
                command: command(admin, &format!("{}/{}", limit.policy, limit.name), &bucket),
                bucket,
                policy: limit.policy.clone(),
                rule: limit.name.clone(),
                slots: held.slots,
            })
        };
        gateway.held_buckets.top(MAX_ROWS, snapshot.number).iter().filter_map(row).collect()
    }
}

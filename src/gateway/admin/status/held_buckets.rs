//! Lists the buckets of which requests of this process hold slots or amounts, those with the most requests first. The
//! command in each row also shows what other processes hold.

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
    /// The number of requests in flight that hold a slot, or an amount of a budget.
    requests: u64,
    /// What these requests hold of a budget. `None` for slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    amount: Option<HeldAmount>,
    /// The command that shows the bucket, for a shell on this machine.
    command: String,
}

#[derive(Debug, Serialize)]
struct HeldAmount {
    held: f64,
    unit: &'static str,
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
                requests: held.requests,
                amount: limit
                    .settled_price()
                    .map(|price| HeldAmount { held: price.unit().number(held.amount), unit: price.unit().name() }),
            })
        };
        gateway.held_buckets.top(MAX_ROWS, snapshot.number).iter().filter_map(row).collect()
    }
}

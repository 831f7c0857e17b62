//! Starts and stops fetching the keys of token issuers, and reports keys that cannot be fetched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::Gauge;
use tokio::task::AbortHandle;

use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::events::EventKind;
use base::time::Timestamp;
use identity::jwt::remote_key_set::{FetchError, RemoteKeySet};

/// The tasks that fetch the keys of token issuers for the configuration in force.
#[derive(Default)]
pub(crate) struct JwksFetches {
    tasks: Vec<(Arc<RemoteKeySet>, AbortHandle)>,
}

impl JwksFetches {
    /// Starts the fetches that `snapshot` needs, and stops all others. Returns the issuers whose fetches were started now.
    pub(crate) fn follow(&mut self, gateway: &Arc<GatewayState>, snapshot: &Snapshot) -> Vec<Arc<RemoteKeySet>> {
        let is_wanted = |known: &Arc<RemoteKeySet>| snapshot.remotes().any(|remote| Arc::ptr_eq(remote, known));
        let (kept, gone): (Vec<_>, Vec<_>) = self.tasks.drain(..).partition(|(remote, _)| is_wanted(remote));
        self.tasks = kept;
        gone.iter().for_each(|(_, task)| task.abort());
        let is_new = |remote: &Arc<RemoteKeySet>| !self.tasks.iter().any(|(known, _)| Arc::ptr_eq(known, remote));
        let new: Vec<_> = snapshot.remotes_with_metric().filter(|(remote, _)| is_new(remote)).collect();
        for (remote, fetched) in &new {
            let task = tokio::spawn(keep_fresh(Arc::clone(gateway), Arc::clone(remote), (*fetched).clone()));
            self.tasks.push((Arc::clone(remote), task.abort_handle()));
        }
        new.into_iter().map(|(remote, _)| Arc::clone(remote)).collect()
    }
}

/// Fetches one issuer's keys repeatedly, and records in `fetched` when they were last fetched. A failure is reported once,
/// until a fetch succeeds again.
async fn keep_fresh(gateway: Arc<GatewayState>, remote: Arc<RemoteKeySet>, fetched: Gauge) {
    let failing = AtomicBool::new(false);
    let has_keys = AtomicBool::new(remote.current().is_some());
    let report = |issuer: &str, outcome: Result<usize, FetchError>| match outcome {
        Ok(keys) => {
            fetched.set(gateway.clock.wall().since(Timestamp(0)).seconds());
            let had_keys = has_keys.swap(true, Ordering::Relaxed);
            if failing.swap(false, Ordering::Relaxed) {
                gateway.events.note(EventKind::KeysFetchedAgain, issuer);
                match had_keys {
                    true => log::info!(issuer, keys; "keys fetched again"),
                    false => log::info!(issuer, keys; "keys fetched"),
                }
            }
        }
        Err(error) => {
            if !failing.swap(true, Ordering::Relaxed) {
                gateway.events.note(EventKind::KeysNotFetched, issuer);
                match has_keys.load(Ordering::Relaxed) {
                    true => log::warn!(issuer, error:% = error; "keys not fetched, the previous ones stay in force"),
                    false => {
                        log::warn!(issuer, error:% = error; "keys not fetched, tokens are answered 503 until they are")
                    }
                }
            }
        }
    };
    remote.keep_fresh(report).await;
}

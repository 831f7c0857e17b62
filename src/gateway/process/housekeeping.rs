//! Runs the gateway's periodic work: removes old buckets and tokens, notes events, keeps the history of the status page,
//! reloads files, and saves buckets.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;

use super::bucket_saver::BucketSaver;
use super::drain;
use super::drain::{LastActs, SecondSignal};
use super::fallback_events::FallbackEvents;
use super::reload::Reload;
use super::{purse_index, region_stores, subject_names};
use crate::gateway::admin::status::Status;
use crate::gateway::enforcement::running_holds::RunningHolds;
use crate::gateway::enforcement::{left_holds, settled_thresholds};
use crate::gateway::runtime::supervise;
use crate::gateway::server::connection_limits::ConnectionLimits;
use crate::gateway::server::queued_connections::AcceptingSockets;
use crate::gateway::state::GatewayState;

pub(crate) struct Housekeeping {
    pub gateway: Arc<GatewayState>,
    pub status: Arc<Status>,
    /// Counts the open connections of all threads.
    pub limits: Arc<ConnectionLimits>,
    pub accepting: AcceptingSockets,
    pub second_signal: SecondSignal,
    /// The reload task. `None` after the task was started.
    pub reload: Mutex<Option<Reload>>,
    pub bucket_saver: Option<Arc<BucketSaver>>,
    pub running_holds: Arc<RunningHolds>,
}

#[async_trait]
impl BackgroundService for Housekeeping {
    /// Runs the work, and ends the process at a shutdown, because Pingora itself would wait for a fixed time.
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let reload = self.reload.lock().take().map(Reload::run);
        let reload = async {
            if let Some(reload) = reload {
                reload.await;
            }
        };
        let (gateway, status, saver) = (Arc::clone(&self.gateway), Arc::clone(&self.status), self.bucket_saver.clone());
        let holds = Arc::clone(&self.running_holds);
        let work = supervise::spawn_critical("housekeeping", async move {
            let save = async {
                if let Some(saver) = saver {
                    saver.run(&gateway).await;
                }
            };
            let told = async {
                tokio::join!(subject_names::run(&gateway), purse_index::run(&gateway), region_stores::run(&gateway))
            };
            let left = left_holds::take_over(&gateway, &holds);
            tokio::join!(sweep(&gateway), status.keep_history(&gateway), reload, save, told, left);
        });
        // Costs settle during the drain too.
        let gateway = Arc::clone(&self.gateway);
        drop(supervise::spawn_critical("thresholds", async move { settled_thresholds::run(&gateway).await }));
        if let Some(leases) = &self.gateway.leases {
            // Requests that the process still has during its drain wait for leases too.
            let keeper = Arc::clone(&leases.keeper);
            let home = keeper.home().clone();
            drop(supervise::spawn_critical("leases", async move {
                tokio::join!(home.run(), keeper.run());
            }));
        }
        let _ = shutdown.wait_for(|stop| *stop).await;
        work.abort();
        let last = LastActs { saver: self.bucket_saver.as_deref(), holds: &self.running_holds };
        drain::wait_and_exit(&self.gateway, &self.limits, &self.accepting, last, &self.second_signal).await
    }
}

/// Runs the work of every second.
async fn sweep(gateway: &Arc<GatewayState>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    let mut fallback_events = FallbackEvents::default();
    loop {
        second.tick().await;
        fallback_events.update(&gateway.snapshot.load(), &gateway.events);
        supervise::fault_point("housekeeping");
        gateway.store.sweep();
        gateway.access_logs.report_drops();
        let snapshot = gateway.snapshot.load();
        if let Some(tokens) = &snapshot.tokens {
            tokens.sweep();
        }
        if let Some(limit) = &snapshot.usage_limit {
            limit.sweep();
        }
    }
}

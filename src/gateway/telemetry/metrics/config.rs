//! Counts reloads, and exports the hash of the current configuration.

use metrics::{Counter, Gauge};
use parking_lot::Mutex;

use super::registry::{ConfigSeries, Registry};
use crate::gateway::telemetry::reload_status::{File, FileState, ReloadStatus};
use base::time::{Clock, Timestamp};

#[derive(Debug)]
pub(crate) struct ConfigMetrics {
    reloaded: Counter,
    rejected: Counter,
    last_reload: Gauge,
    status: ReloadStatus,
    loaded: Gauge,
    /// The hash of the current configuration.
    hash: Mutex<String>,
}

impl ConfigMetrics {
    pub(crate) fn new(registry: &Registry) -> ConfigMetrics {
        let reloads = |result| registry.counter("tollgate_config_reloads_total", &[("result", result)]);
        ConfigMetrics {
            reloaded: reloads("success"),
            rejected: reloads("failure"),
            last_reload: registry.gauge("tollgate_config_last_reload_successful", &[]),
            status: ReloadStatus::default(),
            loaded: registry.gauge("tollgate_config_loaded_timestamp_seconds", &[]),
            hash: Mutex::default(),
        }
    }

    /// Records that a configuration is in force. `hash` is the hash that identifies it in `tollgate_config_info`.
    pub(crate) fn loaded(&self, hash: &str, clock: &Clock) {
        self.in_force(File::Config);
        self.loaded.set(clock.wall().since(Timestamp(0)).seconds());
        hash.clone_into(&mut self.hash.lock());
    }

    /// Counts a successful reload: a changed file has come into force.
    pub(crate) fn reloaded(&self, file: File) {
        self.reloaded.increment(1);
        self.in_force(file);
    }

    /// Counts a failed reload: a changed file is invalid, and its old content stays in force.
    pub(crate) fn rejected(&self, file: File) {
        self.rejected.increment(1);
        self.status.set(file, FileState::Invalid);
        self.last_reload.set(0.0);
    }

    /// Records that a file is still invalid, although another file of the same kind has come into force.
    pub(crate) fn remains_invalid(&self, file: File) {
        self.status.set(file, FileState::Invalid);
        self.last_reload.set(0.0);
    }

    /// Records that the present content of a file is in force.
    pub(crate) fn in_force(&self, file: File) {
        self.status.set(file, FileState::InForce);
        self.last_reload.set(if self.status.all_in_force() { 1.0 } else { 0.0 });
    }

    /// Adds `tollgate_config_info`, with the hash of the configuration in force, to the metrics that are being
    /// rendered.
    pub(crate) fn collect_info(&self) {
        metrics::gauge!("tollgate_config_info", "hash" => self.hash.lock().clone()).set(1.0);
    }
}

/// Records that a list in a file has come into force. `entries` is the number of its entries.
pub(crate) fn record_list(file: &str, entries: usize, series: ConfigSeries<'_>, clock: &Clock) {
    let labels = [("file", file)];
    let entries = u32::try_from(entries).unwrap_or(u32::MAX);
    series.gauge("tollgate_list_entries", &labels).set(f64::from(entries));
    let now = clock.wall().since(Timestamp(0)).seconds();
    series.gauge("tollgate_list_last_success_timestamp_seconds", &labels).set(now);
}

//! Saves the buckets of the memory store to their file, at the interval `save_every` and when the process ends.
//!
//! A failure is only logged and counted, because requests do not depend on the file.

use std::sync::Arc;

use metrics::Counter;
use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;

use crate::gateway::runtime::log_throttle::LogThrottle;
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::events::EventKind;
use crate::gateway::telemetry::metrics::Metrics;
use base::time::Micros;
use stores::Settings;
use stores::memory::Memory;
use stores::memory::bucket_file::{BucketFile, BucketFileSettings, LockError};

const LOG_INTERVAL: Micros = Micros(60_000_000);

#[derive(Debug)]
pub(crate) struct BucketSaver {
    settings: BucketFileSettings,
    claim: Mutex<Claim>,
    saved: Counter,
    failed: Counter,
    log_throttle: LogThrottle,
}

/// Whether this process holds the file.
#[derive(Debug)]
enum Claim {
    /// Another process may hold the file. Each save tries to claim it again.
    NotYet,
    Held(BucketFile),
    /// The next process holds the file.
    GivenUp,
}

impl BucketSaver {
    /// Makes a saver. `None` if the settings name no file of buckets.
    pub(crate) fn new(settings: &Settings, metrics: &Metrics) -> Option<BucketSaver> {
        let settings = settings.bucket_file()?;
        let saves = |result| metrics.registry.counter("rate_limiter_bucket_saves_total", &[("result", result)]);
        Some(BucketSaver {
            settings: settings.clone(),
            claim: Mutex::new(Claim::NotYet),
            saved: saves("success"),
            failed: saves("failure"),
            log_throttle: LogThrottle::default(),
        })
    }

    /// Locks the file of buckets for this process.
    ///
    /// # Errors
    /// If another process uses the file, or the folder of the file cannot be written.
    pub(crate) fn claim(&self) -> Result<(), LockError> {
        *self.claim.lock() = Claim::Held(BucketFile::lock(&self.settings.path)?);
        Ok(())
    }

    pub(crate) fn settings(&self) -> &BucketFileSettings {
        &self.settings
    }

    /// Loads the buckets from the file into `memory`, if this process has locked the file. Must be called before the first
    /// request. An invalid file is logged and ignored.
    pub(crate) fn load(&self, memory: &Memory) {
        let Claim::Held(file) = &*self.claim.lock() else { return };
        let path = self.settings.path.display();
        match file.load(memory) {
            Ok(Some(buckets)) => log::info!(file:% = path, buckets; "buckets loaded"),
            Ok(None) => log::info!(file:% = path; "no buckets to load, the file does not exist yet"),
            Err(error) => {
                let hint = "all buckets are full, and the file will be replaced";
                log::error!(file:% = path, error:%, hint; "buckets not loaded");
            }
        }
    }

    /// Saves the buckets to the file. Blocks the thread until the file is written.
    pub(crate) fn save(&self, gateway: &GatewayState) {
        let Some(memory) = gateway.store.local_buckets() else { return };
        let claim = &mut *self.claim.lock();
        if matches!(claim, Claim::NotYet) {
            match BucketFile::lock(&self.settings.path) {
                Ok(file) => *claim = Claim::Held(file),
                Err(error) => return self.report_failure(gateway, &error.to_string()),
            }
        }
        let Claim::Held(file) = claim else { return };
        match file.save(memory) {
            Ok(buckets) => {
                self.saved.increment(1);
                log::debug!(file:% = self.settings.path.display(), buckets; "buckets saved");
            }
            Err(error) => self.report_failure(gateway, &error.to_string()),
        }
    }

    fn report_failure(&self, gateway: &GatewayState, error: &str) {
        self.failed.increment(1);
        if let Some(saves) = self.log_throttle.admit_every(LOG_INTERVAL, gateway.clock.now()) {
            gateway.events.note(EventKind::BucketsNotSaved, "");
            log::error!(file:% = self.settings.path.display(), error, saves; "buckets not saved");
        }
    }

    /// Unlocks the file, so that the next process can lock it. Blocks while a save is under way.
    pub(crate) fn give_up(&self) {
        *self.claim.lock() = Claim::GivenUp;
    }

    /// Lets this process use the file again after [`BucketSaver::give_up`]. The next save locks the file.
    pub(crate) fn take_back(&self) {
        *self.claim.lock() = Claim::NotYet;
    }

    /// Saves the buckets at intervals of `save_every`. Never returns.
    pub(crate) async fn run(self: &Arc<Self>, gateway: &Arc<GatewayState>) {
        let mut interval = tokio::time::interval(self.settings.save_every.into());
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick comes at once, and nothing needs to be saved then.
        interval.tick().await;
        loop {
            interval.tick().await;
            let (saver, gateway) = (Arc::clone(self), Arc::clone(gateway));
            // A panic in the thread is logged, and the file keeps its old content.
            let _ = tokio::task::spawn_blocking(move || saver.save(&gateway)).await;
        }
    }
}

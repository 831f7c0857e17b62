//! Takes up what has changed in files while requests go on: the configuration, and the API keys.
//!
//! What is to be in force is made beside what is, and put in its place in one step; a request goes on under what it
//! began with. What was spent stays spent, because buckets live in the store, which stays. A file that is wrong changes
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;

use super::api_key_watch::{ApiKeyWatch, Unfit};
use super::config_watch::{ConfigWatch, Found};
use super::file_fingerprint::{PACE, Trigger};
use super::jwks_refresh::keep_fresh;
use super::warned::warn;
use crate::auth::jwt::jwks::RemoteKeySet;
use crate::base::interval::fixed_interval;
use crate::config::diff::Reset;
use crate::config::problem::Problems;
use crate::config::{Config, Log, Source};
use crate::gateway::runtime::fd_limit::FdBudget;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::events::Happened;
use crate::gateway::telemetry::reload_status::File;
use crate::gateway::upstream::keep_resolving;

/// How long the keys of an issuer that is new are waited for.
const FIRST_KEYS: Duration = Duration::from_secs(1);
/// The most problems, or limits, that one line of the log names.
const NAMED: usize = 10;

/// Changes how diagnostics are written; that is not done in this room.
pub type Relog = Box<dyn Fn(Log) + Send + Sync>;

/// What goes on beside one configuration after the other.
pub struct Reload {
    gateway: Arc<GatewayState>,
    fd_budget: FdBudget,
    relog: Relog,
    /// None: the file cannot be read again.
    config: Option<ConfigWatch>,
    keys: Option<ApiKeyWatch>,
    fetching: Vec<(Arc<RemoteKeySet>, AbortHandle)>,
    /// Those that requests may still run under. They are kept here until none does, so that no request has to free one.
    leaving: Vec<Arc<Snapshot>>,
}

impl Reload {
    pub fn new(gateway: Arc<GatewayState>, fd_budget: FdBudget, sources: Vec<Source>, relog: Relog) -> Reload {
        let (config, leaving, fetching) = (ConfigWatch::new(sources), Vec::new(), Vec::new());
        Reload { gateway, fd_budget, relog, config, keys: None, fetching, leaving }
    }

    /// Goes on for as long as the process does.
    pub async fn run(mut self) {
        let first = self.gateway.snapshot.load_full();
        self.follow(&first);
        warn(&first.config.warnings.at(self.gateway.clock.wall()));
        drop(first);
        let mut pace = tokio::time::interval(fixed_interval("watch", PACE));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let why = tokio::select! {
                _ = pace.tick() => Trigger::Time,
                () = self.gateway.lifecycle.reload_requested() => Trigger::Asked,
            };
            self.gateway.clock.compare();
            self.leaving.retain(|snapshot| Arc::strong_count(snapshot) > 1);
            self.look_at_config(why).await;
            self.look_at_keys(why).await;
        }
    }

    async fn look_at_config(&mut self, why: Trigger) {
        let Some(mut watch) = self.config.take() else { return };
        // A large file takes its time to read, and one on a network as long as it likes.
        let look = tokio::task::spawn_blocking(move || {
            let found = watch.look(why);
            (watch, found)
        });
        let Ok((back, found)) = look.await else { return };
        self.config = Some(back);
        match found {
            None => {}
            Some(Found::Changed(config)) => self.take_up(config).await,
            Some(Found::InForce) => {
                self.gateway.metrics.config.in_force(File::Config);
                log::info!("configuration is the one in force");
            }
            Some(Found::Wrong(problems)) => {
                self.gateway.metrics.config.rejected(File::Config);
                self.gateway.events.note(Happened::WrongFile, &places(&problems));
                let (file, count, detail) = (&problems.file, problems.problems.len(), brief(&problems));
                log::warn!(file, problems = count, detail; "configuration not taken up, the one before stays in force");
            }
        }
    }

    async fn take_up(&mut self, config: Box<Config>) {
        let before = self.gateway.snapshot.load_full();
        let before_bounds = before.config.bounds;
        let gateway = Arc::clone(&self.gateway);
        let made = tokio::task::spawn_blocking(move || {
            let (config, late) = config.as_reload_of(&before.config);
            let anew = config.reset_buckets(&before.config);
            let relog = (config.log != before.config.log).then_some(config.log);
            let now = gateway.clock.wall();
            let warnings = config.warnings.at(now).beyond(&before.config.warnings.at(now));
            (
                Snapshot::after(&before, config, &gateway.metrics, &gateway.access_logs, &gateway.clock),
                late,
                anew,
                relog,
                warnings,
            )
        });
        let Ok((snapshot, late, anew, relog, warnings)) = made.await else { return };
        let snapshot = Arc::new(snapshot);
        let new = self.follow(&snapshot);
        let tried = async {
            for remote in &new {
                remote.first_attempt().await;
            }
        };
        // Without its keys it is taken up as well: an issuer that is away must not keep the rest of the file out.
        let _ = tokio::time::timeout(FIRST_KEYS, tried).await;
        self.leaving.push(self.gateway.snapshot.swap(Arc::clone(&snapshot)));
        self.gateway.store.invalidate();
        if let Some(log) = relog {
            (self.relog)(log);
        }
        self.gateway.metrics.config.reloaded(File::Config);
        // They were read with it.
        self.gateway.metrics.config.in_force(File::ApiKeys);
        let config = &snapshot.config;
        if config.bounds != before_bounds {
            self.fd_budget.warn_if_clamped(&config.bounds);
        }
        self.gateway.metrics.config.loaded(&config.hash, &self.gateway.clock);
        self.gateway.store.announce(&config.hash);
        self.gateway.events.note(Happened::Reloaded, &config.hash);
        log::info!(hash = config.hash, limits = config.rules.limits().len(); "configuration taken up");
        if !late.is_empty() {
            self.gateway.events.note(Happened::NeedsRestart, &late.join(", "));
            log::warn!(keys = late.join(", "); "only a restart changes these, they are as they were");
        }
        if !anew.is_empty() {
            let which = list(anew.iter().map(Reset::to_string));
            log::warn!(limits = anew.len(), which; "buckets start anew");
        }
        warn(&warnings);
    }

    /// Keeps up what a snapshot looks up and fetches, and gives up what it does not. Whose keys are new comes back.
    fn follow(&mut self, snapshot: &Arc<Snapshot>) -> Vec<Arc<RemoteKeySet>> {
        self.keys = snapshot.config.api_keys.clone().map(ApiKeyWatch::new);
        if snapshot.upstream.needs_resolver() {
            tokio::spawn(keep_resolving(Arc::downgrade(&snapshot.upstream)));
        }
        let wanted: Vec<_> = snapshot.remotes().cloned().collect();
        let is_wanted = |known: &Arc<RemoteKeySet>| wanted.iter().any(|remote| Arc::ptr_eq(remote, known));
        let (kept, gone): (Vec<_>, Vec<_>) = self.fetching.drain(..).partition(|(remote, _)| is_wanted(remote));
        self.fetching = kept;
        gone.iter().for_each(|(_, task)| task.abort());
        let is_new = |remote: &Arc<RemoteKeySet>| !self.fetching.iter().any(|(known, _)| Arc::ptr_eq(known, remote));
        let new: Vec<_> = wanted.iter().filter(|remote| is_new(remote)).cloned().collect();
        for remote in &new {
            let task = tokio::spawn(keep_fresh(Arc::clone(&self.gateway), Arc::clone(remote)));
            self.fetching.push((Arc::clone(remote), task.abort_handle()));
        }
        new
    }

    async fn look_at_keys(&mut self, why: Trigger) {
        let Some(mut watch) = self.keys.take() else { return };
        let look = tokio::task::spawn_blocking(move || {
            let found = watch.look(why);
            (watch, found)
        });
        let Ok((back, found)) = look.await else { return };
        let file = back.api_keys.file.display();
        match found {
            None => {}
            Some(Ok(keys)) => {
                self.gateway.metrics.config.reloaded(File::ApiKeys);
                self.gateway.events.note(Happened::ApiKeysTakenUp, "");
                log::info!(file:%, keys; "API keys taken up");
            }
            Some(Err(Unfit { problems, detail })) => {
                self.gateway.metrics.config.rejected(File::ApiKeys);
                self.gateway.events.note(Happened::ApiKeysWrong, "");
                log::warn!(file:%, problems, detail; "API keys not taken up, those before stay in force");
            }
        }
        self.keys = Some(back);
    }
}

/// Where the first of them is. What was found there stays in the log: it may be a secret, and whoever sees the status page
/// need not be one who reads that.
fn places(problems: &Problems) -> String {
    let Some(first) = problems.problems.first() else { return String::new() };
    let file = std::path::Path::new(first.file.as_ref().unwrap_or(&problems.file)).file_name().unwrap_or_default();
    let place = first.position.map_or_else(String::new, |position| format!(":{}:{}", position.line, position.column));
    let path = if first.path.is_empty() { String::new() } else { format!(" {}", first.path) };
    let more = match problems.problems.len() {
        1 => String::new(),
        count => format!(", and {} more problems", count - 1),
    };
    format!("{}{place}{path}{more}", file.display())
}

/// The report that `check` gives, in one line that does not end the disk.
fn brief(problems: &Problems) -> String {
    list(problems.lines())
}

fn list(all: impl ExactSizeIterator<Item = String>) -> String {
    let rest = if all.len() > NAMED { "; …" } else { "" };
    all.take(NAMED).collect::<Vec<_>>().join("; ") + rest
}

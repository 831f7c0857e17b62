//! Reloads the configuration and the API keys while requests go on.
//!
//! The new snapshot is built next to the one in force and replaces it in one step; a request goes on under the snapshot
//! that it began with. What was spent stays spent, because buckets live in the store, which stays. An invalid file
//! changes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;

use super::api_key_watch::{ApiKeyWatch, InvalidKeyFile};
use super::certificate_watch::{CertificateWatch, InvalidCertificates};
use super::config_warnings::warn;
use super::config_watch::{ConfigChange, ConfigWatch};
use super::file_fingerprint::{INTERVAL, Trigger};
use super::jwks_events::keep_fresh;
use crate::auth::jwt::jwks::RemoteKeySet;
use crate::base::endpoint_address::EndpointAddress;
use crate::base::interval::fixed_interval;
use crate::config::diff::Reset;
use crate::config::problem::Problems;
use crate::config::{Config, Log, Source};
use crate::gateway::runtime::fd_limit::FdBudget;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::events::EventKind;
use crate::gateway::telemetry::metrics::record_expiry;
use crate::gateway::telemetry::reload_status::File;
use crate::gateway::upstream::{HealthChange, Upstream, keep_checking, keep_resolving};
use crate::limit::number_changes::ChangedLimit;

/// How long a reload waits for the keys of a new issuer.
const FIRST_KEYS: Duration = Duration::from_secs(1);
/// How many problems or limits one log line names at most.
const NAMED: usize = 10;

/// Changes how diagnostics are written. The diagnostics belong to the command line, not to the gateway.
pub type Relog = Box<dyn Fn(Log) + Send + Sync>;

/// Runs what accompanies the configuration in force, one configuration after another.
pub struct Reload {
    gateway: Arc<GatewayState>,
    fd_budget: FdBudget,
    relog: Relog,
    /// `None`: the file cannot be read again.
    config: Option<ConfigWatch>,
    keys: Option<ApiKeyWatch>,
    /// One for each listener with TLS.
    certificates: Vec<CertificateWatch>,
    fetching: Vec<(Arc<RemoteKeySet>, AbortHandle)>,
    /// Snapshots that requests may still run under. They are kept here until none does, so that no request has to free
    /// one.
    retired: Vec<Arc<Snapshot>>,
}

impl Reload {
    pub fn new(gateway: Arc<GatewayState>, fd_budget: FdBudget, sources: Vec<Source>, relog: Relog) -> Reload {
        let lists = gateway.snapshot.load().config.remarks.lists.clone();
        let (config, retired, fetching) = (ConfigWatch::new(sources, lists), Vec::new(), Vec::new());
        Reload { gateway, fd_budget, relog, config, keys: None, certificates: Vec::new(), fetching, retired }
    }

    /// Runs as long as the process does.
    pub async fn run(mut self) {
        let first = self.gateway.snapshot.load_full();
        self.start_background_tasks(&first);
        warn(&first.config.warnings.at(self.gateway.clock.wall()));
        drop(first);
        let mut interval = tokio::time::interval(fixed_interval("watch", INTERVAL));
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let trigger = tokio::select! {
                _ = interval.tick() => Trigger::Interval,
                () = self.gateway.lifecycle.reload_requested() => Trigger::Operator,
            };
            self.gateway.clock.compare();
            self.retired.retain(|snapshot| Arc::strong_count(snapshot) > 1);
            self.reload_config(trigger).await;
            self.reload_api_keys(trigger).await;
            self.reload_certificates(trigger).await;
        }
    }

    async fn reload_config(&mut self, trigger: Trigger) {
        let Some(mut watch) = self.config.take() else { return };
        // A large file takes time to read, and one on a network file system may block.
        let check = tokio::task::spawn_blocking(move || {
            let change = watch.check(trigger);
            (watch, change)
        });
        let Ok((watch, change)) = check.await else { return };
        self.config = Some(watch);
        match change {
            None => {}
            Some(ConfigChange::Changed(config)) => self.put_in_force(config).await,
            Some(ConfigChange::Unchanged) => {
                self.gateway.metrics.config.in_force(File::Config);
                log::info!("configuration is unchanged");
            }
            Some(ConfigChange::Invalid(problems)) => {
                self.gateway.metrics.config.rejected(File::Config);
                self.gateway.events.note(EventKind::ConfigRejected, &first_position(&problems));
                let (file, count, detail) = (&problems.file, problems.problems.len(), brief(&problems));
                log::warn!(file, problems = count, detail; "configuration rejected, the previous one stays in force");
            }
        }
    }

    async fn put_in_force(&mut self, config: Box<Config>) {
        let before = self.gateway.snapshot.load_full();
        let before_bounds = before.config.bounds;
        let gateway = Arc::clone(&self.gateway);
        let built = tokio::task::spawn_blocking(move || {
            let now = gateway.clock.wall();
            let (config, restart_keys) = config.as_reload_of(&before.config, now);
            let changes = Changes::between(&before.config, &config);
            let relog = (config.log != before.config.log).then_some(config.log);
            let warnings = config.warnings.at(now).beyond(&before.config.warnings.at(now));
            (
                Snapshot::after(&before, config, &gateway.metrics, &gateway.access_logs, &gateway.clock),
                restart_keys,
                changes,
                relog,
                warnings,
            )
        });
        let Ok((snapshot, restart_keys, changes, relog, warnings)) = built.await else { return };
        let snapshot = Arc::new(snapshot);
        let new = self.start_background_tasks(&snapshot);
        let attempted = async {
            for remote in &new {
                remote.first_attempt().await;
            }
        };
        // A missing issuer must not keep the rest of the configuration out, so it comes into force even without its
        // keys.
        let _ = tokio::time::timeout(FIRST_KEYS, attempted).await;
        self.retired.push(self.gateway.snapshot.swap(Arc::clone(&snapshot)));
        self.gateway.store.replace_login(&snapshot.config.store);
        self.gateway.metrics.registry.reloaded(snapshot.number);
        self.gateway.store.expect_undone_charges(snapshot.config.limits_charged_beside_others());
        self.gateway.store.invalidate();
        if let Some(log) = relog {
            (self.relog)(log);
        }
        self.gateway.metrics.config.reloaded(File::Config);
        // The API keys were read together with the configuration.
        self.gateway.metrics.config.in_force(File::ApiKeys);
        if !self.certificates.iter().any(CertificateWatch::is_invalid) {
            self.gateway.metrics.config.in_force(File::Certificates);
        }
        let config = &snapshot.config;
        if config.bounds != before_bounds {
            self.fd_budget.warn_if_clamped(&config.bounds);
        }
        self.gateway.metrics.config.loaded(&config.hash, &self.gateway.clock);
        self.gateway.store.announce(&config.hash);
        self.gateway.events.note(EventKind::Reloaded, &config.hash);
        log::info!(hash = config.hash, limits = config.rules.limits().len(); "configuration reloaded");
        if !restart_keys.is_empty() {
            self.gateway.events.note(EventKind::NeedsRestart, &restart_keys.join(", "));
            log::warn!(keys = restart_keys.join(", "); "these keys take effect only after a restart");
        }
        changes.log();
        warn(&warnings);
    }

    /// Starts the lookups and fetches that a snapshot needs, stops those that it does not, and returns the issuers
    /// whose keys are new.
    fn start_background_tasks(&mut self, snapshot: &Arc<Snapshot>) -> Vec<Arc<RemoteKeySet>> {
        self.keys = snapshot.config.api_keys.clone().map(|api_keys| {
            let columns = snapshot.config.rules.key_columns();
            ApiKeyWatch::new(api_keys, columns.map(str::to_owned).collect())
        });
        self.watch_certificates(snapshot);
        for upstream in snapshot.destinations.upstreams().filter(|upstream| upstream.needs_resolver()) {
            let listeners = snapshot.config.listeners.iter().filter_map(|listener| listener.address.inet()).collect();
            tokio::spawn(keep_resolving(Arc::downgrade(upstream), listeners));
        }
        for upstream in snapshot.destinations.upstreams().filter(|upstream| upstream.needs_checks()) {
            let events = Arc::clone(&self.gateway.events);
            let report = move |upstream: &Upstream, endpoint: &EndpointAddress, change| {
                let kind = match change {
                    HealthChange::Down => EventKind::EndpointDown,
                    HealthChange::Up => EventKind::EndpointUp,
                };
                events.note(kind, &format!("{endpoint} of {}", upstream.name()));
            };
            tokio::spawn(keep_checking(Arc::downgrade(upstream), report));
        }
        let is_wanted = |known: &Arc<RemoteKeySet>| snapshot.remotes().any(|remote| Arc::ptr_eq(remote, known));
        let (kept, gone): (Vec<_>, Vec<_>) = self.fetching.drain(..).partition(|(remote, _)| is_wanted(remote));
        self.fetching = kept;
        gone.iter().for_each(|(_, task)| task.abort());
        let is_new = |remote: &Arc<RemoteKeySet>| !self.fetching.iter().any(|(known, _)| Arc::ptr_eq(known, remote));
        let new: Vec<_> = snapshot.remotes_with_metric().filter(|(remote, _)| is_new(remote)).collect();
        for (remote, fetched) in &new {
            let task = tokio::spawn(keep_fresh(Arc::clone(&self.gateway), Arc::clone(remote), (*fetched).clone()));
            self.fetching.push((Arc::clone(remote), task.abort_handle()));
        }
        new.into_iter().map(|(remote, _)| Arc::clone(remote)).collect()
    }

    /// A watch goes on whose certificates stay: what it has reported is not reported again.
    fn watch_certificates(&mut self, snapshot: &Snapshot) {
        let servers = snapshot.config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
        let mut known = std::mem::take(&mut self.certificates);
        let watches = servers.map(|server| {
            let index = known.iter().position(|watch| Arc::ptr_eq(&watch.server, server));
            index.map_or_else(|| CertificateWatch::new(Arc::clone(server)), |index| known.swap_remove(index))
        });
        self.certificates = watches.collect();
    }

    async fn reload_certificates(&mut self, trigger: Trigger) {
        let (mut watches, now) = (std::mem::take(&mut self.certificates), self.gateway.clock.wall());
        if watches.is_empty() {
            return;
        }
        let check = tokio::task::spawn_blocking(move || {
            let changes: Vec<_> = watches.iter_mut().filter_map(|watch| watch.check(trigger, now)).collect();
            (watches, changes)
        });
        let Ok((watches, changes)) = check.await else { return };
        self.certificates = watches;
        if changes.is_empty() {
            return;
        }
        let snapshot = self.gateway.snapshot.load_full();
        record_expiry(&snapshot.config.listeners, self.gateway.metrics.registry.of_config(snapshot.number));
        for change in changes {
            match change {
                Ok(()) => {
                    self.gateway.metrics.config.reloaded(File::Certificates);
                    self.gateway.events.note(EventKind::CertificatesReloaded, "");
                    log::info!("certificates reloaded");
                }
                Err(InvalidCertificates { problems, detail }) => {
                    self.gateway.metrics.config.rejected(File::Certificates);
                    self.gateway.events.note(EventKind::CertificatesRejected, "");
                    log::warn!(problems, detail; "certificates rejected, the previous ones stay in force");
                }
            }
        }
        if self.certificates.iter().any(CertificateWatch::is_invalid) {
            self.gateway.metrics.config.remains_invalid(File::Certificates);
        }
    }

    async fn reload_api_keys(&mut self, trigger: Trigger) {
        let Some(mut watch) = self.keys.take() else { return };
        let check = tokio::task::spawn_blocking(move || {
            let change = watch.check(trigger);
            (watch, change)
        });
        let Ok((watch, change)) = check.await else { return };
        let file = watch.api_keys.file.display();
        match change {
            None => {}
            Some(Ok(keys)) => {
                self.gateway.metrics.config.reloaded(File::ApiKeys);
                self.gateway.events.note(EventKind::ApiKeysReloaded, "");
                log::info!(file:%, keys; "API keys reloaded");
            }
            Some(Err(InvalidKeyFile { problems, detail })) => {
                self.gateway.metrics.config.rejected(File::ApiKeys);
                self.gateway.events.note(EventKind::ApiKeysRejected, "");
                log::warn!(file:%, problems, detail; "API keys rejected, the previous ones stay in force");
            }
        }
        self.keys = Some(watch);
    }
}

/// What differs from the configuration before.
struct Changes {
    resets: Vec<Reset>,
    kept: Vec<ChangedLimit>,
    routes: Vec<String>,
    upstreams: Vec<String>,
}

impl Changes {
    fn between(before: &Config, after: &Config) -> Changes {
        Changes {
            resets: after.reset_buckets(before),
            kept: after.changed_limits(before),
            routes: after.changed_routes(before),
            upstreams: after.changed_upstreams(before),
        }
    }

    fn log(&self) {
        let Changes { resets, kept, routes, upstreams } = self;
        if !resets.is_empty() {
            let which = list(resets.iter().map(Reset::to_string));
            log::warn!(limits = resets.len(), which; "buckets are reset");
        }
        if !kept.is_empty() {
            let which = list(kept.iter().map(ChangedLimit::to_string));
            log::info!(limits = kept.len(), which; "limits have other numbers, their buckets are kept");
        }
        if !routes.is_empty() {
            let which = list(routes.iter().cloned());
            log::info!(routes = routes.len(), which; "routes are changed");
        }
        if !upstreams.is_empty() {
            let which = list(upstreams.iter().cloned());
            log::info!(upstreams = upstreams.len(), which; "upstreams are changed");
        }
    }
}

/// Where the first problem is. The value found there appears in the log only: it may be a secret, and not everyone who
/// may see the status page may read the log.
fn first_position(problems: &Problems) -> String {
    let Some(first) = problems.problems.first() else { return String::new() };
    let file = std::path::Path::new(first.file.as_ref().unwrap_or(&problems.file)).file_name().unwrap_or_default();
    let position =
        first.position.map_or_else(String::new, |position| format!(":{}:{}", position.line, position.column));
    let path = if first.path.is_empty() { String::new() } else { format!(" {}", first.path) };
    let more = match problems.problems.len() {
        1 => String::new(),
        count => format!(", and {} more problems", count - 1),
    };
    format!("{}{position}{path}{more}", file.display())
}

/// The report of `check`, as one line of bounded length.
fn brief(problems: &Problems) -> String {
    list(problems.lines())
}

fn list(all: impl ExactSizeIterator<Item = String>) -> String {
    let rest = if all.len() > NAMED { "; …" } else { "" };
    all.take(NAMED).collect::<Vec<_>>().join("; ") + rest
}

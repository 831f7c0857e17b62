//! Reloads the configuration, the API keys and the certificates while requests continue.
//!
//! The new snapshot is built beside the current one and replaces it in one step. A request keeps the snapshot with
//! which it began. Spent amounts stay, because the store is not replaced. An invalid file changes nothing.

use std::sync::Arc;
use std::time::Duration;

use metrics::Gauge;
use tokio::time::MissedTickBehavior;

use super::api_key_watch::{ApiKeyWatch, InvalidKeyFile};
use super::certificate_watch::{CertificateWatch, InvalidCertificates};
use super::config_warnings::warn;
use super::config_watch::{ConfigChange, ConfigWatch};
use super::file_fingerprint::{INTERVAL, Trigger};
use super::file_look::{FileLook, LookOutcome};
use super::jwks_tasks::JwksFetches;
use super::reload_report::{Changes, brief, first_position};
use crate::gateway::runtime::fd_limit::FdBudget;
use crate::gateway::state::GatewayState;
use crate::gateway::state::lease_limits::{claimed_purses, keeper_settings, purses};
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::events::EventKind;
use crate::gateway::telemetry::metrics::{record_expiry, record_list};
use crate::gateway::telemetry::reload_status::File;
use crate::gateway::upstream::{HealthChange, Upstream, start_background_tasks};
use base::endpoint_address::EndpointAddress;
use base::interval::fixed_interval;
use base::time::Timestamp;
use base::tls::server::Server;
use config::{API_KEYS_FILE, Config, Listener, Log, Source};
use identity::jwt::remote_key_set::RemoteKeySet;
use rules::without_store::without_store;
use stores::{LimitNumbers, NumberChange};

/// How long a reload waits for the keys of a new issuer.
const FIRST_KEYS: Duration = Duration::from_secs(1);

/// A function that changes the format and the level of the log.
pub(crate) type Relog = Box<dyn Fn(Log) + Send + Sync>;

/// Reloads the configuration, the API keys and the certificates when their files change, and runs the tasks of a configuration.
pub(crate) struct Reload {
    gateway: Arc<GatewayState>,
    fd_budget: FdBudget,
    relog: Relog,
    /// The watch of the configuration; `None` if the configuration cannot be read again.
    config: Option<FileLook<ConfigWatch, Option<ConfigChange>>>,
    keys: Option<FileLook<ApiKeyWatch, Option<Result<usize, InvalidKeyFile>>>>,
    /// The certificates of each listener with TLS.
    certificates: Vec<ListenerCertificates>,
    /// The gauges for the time of the last check of each kind of file.
    last_looks: Vec<(File, Gauge)>,
    fetches: JwksFetches,
    /// Old snapshots that requests may still use. Kept, so that no request has to free a snapshot.
    retired: Vec<Arc<Snapshot>>,
}

/// The certificates of a listener.
struct ListenerCertificates {
    server: Arc<Server>,
    look: FileLook<CertificateWatch, Option<Result<(), InvalidCertificates>>>,
    /// Whether the files were unusable at the last check.
    invalid: bool,
}

impl Reload {
    pub(crate) fn new(gateway: Arc<GatewayState>, fd_budget: FdBudget, sources: Vec<Source>, relog: Relog) -> Reload {
        let config = ConfigWatch::new(sources, &gateway.snapshot.load().config);
        let config = config.map(|watch| FileLook::new(watch, gateway.clock.wall()));
        Reload {
            gateway,
            fd_budget,
            relog,
            config,
            keys: None,
            certificates: Vec::new(),
            last_looks: Vec::new(),
            fetches: JwksFetches::default(),
            retired: Vec::new(),
        }
    }

    /// Checks the files at intervals and when an operator asks for a reload, and puts changes in force. Never returns.
    pub(crate) async fn run(mut self) {
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
            self.record_last_looks();
        }
    }

    /// Returns the result of a check that has ended. A check that takes too long is reported.
    fn ended<C>(&self, files: File, looked: LookOutcome<C>) -> Option<C> {
        match looked {
            LookOutcome::UnderWay => None,
            LookOutcome::Overdue(taken) => {
                let seconds = taken.0 / 1_000_000;
                log::warn!(files = files.label(), seconds; "files cannot be read, their changes are not followed");
                None
            }
            LookOutcome::Found { change, late } => {
                if late {
                    log::info!(files = files.label(); "files can be read again");
                }
                Some(change)
            }
        }
    }

    fn record_last_looks(&self) {
        let certificates = || self.certificates.iter().map(|listener| listener.look.ended()).min();
        for (files, gauge) in &self.last_looks {
            let ended = match files {
                File::Config => self.config.as_ref().map(FileLook::ended),
                File::ApiKeys => self.keys.as_ref().map(FileLook::ended),
                File::Certificates => certificates(),
            };
            if let Some(ended) = ended {
                gauge.set(ended.since(Timestamp(0)).seconds());
            }
        }
    }

    /// Makes a metrics series for the last check of each kind of file that is currently watched.
    fn watch_last_looks(&mut self, snapshot: &Snapshot) {
        let series = self.gateway.metrics.registry.of_config(snapshot.number);
        let followed = [
            (File::Config, self.config.is_some()),
            (File::ApiKeys, self.keys.is_some()),
            (File::Certificates, !self.certificates.is_empty()),
        ];
        let gauge =
            |files: File| series.gauge("tollgate_files_last_looked_at_timestamp_seconds", &[("files", files.label())]);
        let followed = followed.into_iter().filter(|(_, is_followed)| *is_followed);
        self.last_looks = followed.map(|(files, _)| (files, gauge(files))).collect();
        self.record_last_looks();
    }

    async fn reload_config(&mut self, trigger: Trigger) {
        let Some(config) = &mut self.config else { return };
        let looked = config.look(trigger, &self.gateway.clock, ConfigWatch::check).await;
        let Some(change) = self.ended(File::Config, looked) else { return };
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
            let snapshot = Snapshot::after(&before, config, &gateway.metrics, gateway.log_writers(), &gateway.clock);
            let [before, after] = [&before, &snapshot].map(|snapshot| purses(snapshot).collect::<LimitNumbers>());
            let claimed = claimed_purses(&snapshot);
            let numbers = (before != after).then_some(NumberChange { before, after, claimed });
            (snapshot, restart_keys, changes, relog, warnings, numbers)
        });
        let Ok((snapshot, restart_keys, changes, relog, warnings, numbers)) = built.await else { return };
        let snapshot = Arc::new(snapshot);
        let new = self.start_background_tasks(&snapshot);
        let attempted = async {
            for remote in &new {
                remote.first_attempt().await;
            }
        };
        // The configuration comes into force even without the issuer's keys.
        let _ = tokio::time::timeout(FIRST_KEYS, attempted).await;
        self.retired.push(self.gateway.snapshot.swap(Arc::clone(&snapshot)));
        self.gateway.certificates_changed.send_replace(());
        self.gateway.store.replace_login(&snapshot.config.store);
        if let (Some(leases), Some(home)) = (&self.gateway.leases, &snapshot.config.home) {
            leases.keeper.replace_settings(keeper_settings(home));
            leases.keeper.home().replace_login(&home.store);
        }
        if let (Some(leases), Some(change)) = (&self.gateway.leases, numbers) {
            leases.keeper.change_numbers(change);
        }
        self.gateway.store_health.set_meanwhile(without_store(snapshot.config.rules.limits()));
        self.gateway.metrics.registry.reloaded(snapshot.number);
        self.gateway.store.expect_undone_charges(snapshot.config.limits_charged_beside_others());
        self.gateway.store.invalidate();
        if let Some(log) = relog {
            (self.relog)(log);
        }
        self.gateway.metrics.config.reloaded(File::Config);
        // The API keys were read as a part of the configuration, so they are in force too.
        self.gateway.metrics.config.in_force(File::ApiKeys);
        if !self.certificates.iter().any(|listener| listener.invalid) {
            self.gateway.metrics.config.in_force(File::Certificates);
        }
        let config = &snapshot.config;
        if config.bounds != before_bounds {
            self.fd_budget.warn_if_clamped(&config.bounds);
            self.gateway.bound_response_buffers(&config.bounds);
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

    /// Starts the lookups and fetches that a snapshot needs, and stops others. Returns the issuers whose fetches were
    /// started now.
    fn start_background_tasks(&mut self, snapshot: &Arc<Snapshot>) -> Vec<Arc<RemoteKeySet>> {
        let now = self.gateway.clock.wall();
        self.keys = snapshot.config.api_keys.clone().map(|api_keys| {
            let columns = snapshot.config.rules.key_columns();
            FileLook::new(ApiKeyWatch::new(api_keys, columns.map(str::to_owned).collect()), now)
        });
        self.watch_certificates(snapshot, now);
        self.watch_last_looks(snapshot);
        let listeners: Vec<_> =
            snapshot.config.listeners.iter().filter_map(|listener| listener.address.inet()).collect();
        let events = Arc::clone(&self.gateway.events);
        let report = move |upstream: &Upstream, endpoint: &EndpointAddress, change| {
            let kind = match change {
                HealthChange::Down => EventKind::EndpointDown,
                HealthChange::Up => EventKind::EndpointUp,
            };
            events.note(kind, &format!("{endpoint} of {}", upstream.name()));
        };
        start_background_tasks(snapshot.destinations.upstreams(), &listeners, report);
        self.fetches.follow(&self.gateway, snapshot)
    }

    /// Watches the certificates of a snapshot. The watch of an unchanged listener is kept, so that its faults are not
    /// reported again.
    fn watch_certificates(&mut self, snapshot: &Snapshot, now: Timestamp) {
        let servers = snapshot.config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
        let mut known = std::mem::take(&mut self.certificates);
        let watched = |server: &Arc<Server>| ListenerCertificates {
            server: Arc::clone(server),
            look: FileLook::new(CertificateWatch::new(Arc::clone(server)), now),
            invalid: false,
        };
        let watches = servers.map(|server| {
            let index = known.iter().position(|listener| Arc::ptr_eq(&listener.server, server));
            index.map_or_else(|| watched(server), |index| known.swap_remove(index))
        });
        self.certificates = watches.collect();
    }

    async fn reload_certificates(&mut self, trigger: Trigger) {
        let (mut listeners, now) = (std::mem::take(&mut self.certificates), self.gateway.clock.wall());
        let mut changes = Vec::new();
        for listener in &mut listeners {
            let check = move |watch: &mut CertificateWatch, trigger| watch.check(trigger, now);
            let looked = listener.look.look(trigger, &self.gateway.clock, check).await;
            if let Some(change) = self.ended(File::Certificates, looked) {
                listener.invalid = listener.look.watch().is_some_and(CertificateWatch::is_invalid);
                changes.extend(change.map(|change| (Arc::clone(&listener.server), change)));
            }
        }
        self.certificates = listeners;
        if changes.is_empty() {
            return;
        }
        let snapshot = self.gateway.snapshot.load_full();
        record_expiry(&snapshot.config.listeners, self.gateway.metrics.registry.of_config(snapshot.number));
        for (server, change) in changes {
            match change {
                Ok(()) => {
                    self.gateway.certificates_changed.send_replace(());
                    self.gateway.metrics.config.reloaded(File::Certificates);
                    self.gateway.events.note(EventKind::CertificatesReloaded, "");
                    log::info!("certificates reloaded");
                }
                Err(InvalidCertificates { problems, detail }) => {
                    self.gateway.metrics.config.rejected(File::Certificates);
                    self.gateway.events.note(EventKind::CertificatesRejected, "");
                    let has_it = |one: &&Listener| one.tls.as_ref().is_some_and(|tls| Arc::ptr_eq(tls, &server));
                    let listener = snapshot.config.listeners.iter().find(has_it).map_or("", |one| &*one.name);
                    log::warn!(listener, problems, detail; "certificates rejected, the previous ones stay in force");
                }
            }
        }
        if self.certificates.iter().any(|listener| listener.invalid) {
            self.gateway.metrics.config.remains_invalid(File::Certificates);
        }
    }

    async fn reload_api_keys(&mut self, trigger: Trigger) {
        let Some(keys) = &mut self.keys else { return };
        let looked = keys.look(trigger, &self.gateway.clock, ApiKeyWatch::check).await;
        let Some(Some(change)) = self.ended(File::ApiKeys, looked) else { return };
        let snapshot = self.gateway.snapshot.load_full();
        let Some(file) = snapshot.config.api_keys.as_ref().map(|api_keys| api_keys.file.display()) else { return };
        match change {
            Ok(keys) => {
                self.gateway.metrics.config.reloaded(File::ApiKeys);
                self.gateway.events.note(EventKind::ApiKeysReloaded, "");
                let series = self.gateway.metrics.registry.of_config(snapshot.number);
                for list in snapshot.config.remarks.lists.iter().filter(|list| list.path == API_KEYS_FILE) {
                    record_list(&list.file, keys, series, &self.gateway.clock);
                }
                log::info!(file:%, keys; "API keys reloaded");
            }
            Err(InvalidKeyFile { problems, detail }) => {
                self.gateway.metrics.config.rejected(File::ApiKeys);
                self.gateway.events.note(EventKind::ApiKeysRejected, "");
                log::warn!(file:%, problems, detail; "API keys rejected, the previous ones stay in force");
            }
        }
    }
}

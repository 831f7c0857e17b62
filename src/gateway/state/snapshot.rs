//! Holds the snapshot that a request uses from its first byte to its last: one configuration, with everything that is built
//! from it.

use std::sync::Arc;

use metrics::{Counter, Gauge};

use super::destinations::Destinations;
use super::learned_costs::LearnedCosts;
use crate::gateway::response::ratelimit_fields::ExposedLimit;
use crate::gateway::telemetry::access_log::Writer;
use crate::gateway::telemetry::log_writers::LogWriters;
use crate::gateway::telemetry::metrics::{LimitMetrics, Metrics, TokenMetrics, record_expiry, record_list};
use crate::gateway::telemetry::records::RecordedLimits;
use base::seal::SealKey;
use base::time::{Clock, Timestamp};
use base::tls::server::Session;
use config::{Config, ListSize};
use decision::access_log_line::Kind;
use identity::address_limit::AddressLimit;
use identity::jwt::remote_key_set::RemoteKeySet;
use identity::token_auth::TokenAuth;
use ledger::charge::LimitId;
use rules::rule_set::CompiledLimit;

/// The purpose of the key with which ids of holds are sealed.
const HOLD_IDS: &str = "ids of holds";

/// A loaded configuration, with everything that was built from it to serve requests. A reload replaces the whole snapshot.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The number of configurations that were in force before this one.
    pub number: u32,
    pub config: Config,
    /// The texts that show each limit in the rate-limit fields. `None` for a limit that clients do not see.
    pub shown: Vec<Option<ExposedLimit>>,
    /// The verifier of tokens. `None` if tokens are not verified.
    pub tokens: Option<Arc<TokenAuth>>,
    /// The limit of requests to the path of `usage`. `None` without that key.
    pub usage_limit: Option<AddressLimit>,
    pub destinations: Destinations,
    /// The writer of the access log; `None` if there is no access log.
    pub access_log: Option<Arc<Writer>>,
    /// The limits that are recorded for billing; `None` without `records`.
    pub records: Option<RecordedLimits>,
    /// Seals and opens the ids of holds. `None` without a secret `hash_key`.
    pub hold_key: Option<SealKey>,
    limits: Vec<LimitMetrics>,
    /// The costs from which the reserves of budgets are learned.
    pub learned_costs: LearnedCosts,
    /// One counter for each policy: the requests to which no rule of the policy applied.
    pub unmatched: Vec<Counter>,
    /// The counters of denied requests, one for each rule or policy that may deny. A [`rules::denier::DenierId`] is the index
    /// of its counter.
    pub denied: Vec<Counter>,
    /// The time of the last fetch, for each issuer whose keys are fetched.
    keys_fetched: Vec<Gauge>,
}

impl Snapshot {
    /// Makes the snapshot of the configuration with which the process starts.
    pub(crate) fn new(config: Config, metrics: &Metrics, writers: LogWriters<'_>, clock: &Clock) -> Snapshot {
        Snapshot::made(None, config, metrics, writers, clock)
    }

    /// Makes the snapshot of a reloaded configuration, which replaces `before`. Unchanged parts are taken from `before`.
    pub(crate) fn after(
        before: &Snapshot,
        config: Config,
        metrics: &Metrics,
        writers: LogWriters<'_>,
        clock: &Clock,
    ) -> Snapshot {
        Snapshot::made(Some(before), config, metrics, writers, clock)
    }

    /// Returns whether the current certificates of the listener still admit the client of a TLS session.
    pub(crate) fn admits_client(&self, session: &Session, listener: usize, now: Timestamp) -> bool {
        let server = self.config.listeners.get(listener).and_then(|listener| listener.tls.as_ref());
        server.is_none_or(|server| session.is_admitted_by(&server.in_force(), now))
    }

    fn made(
        before: Option<&Snapshot>,
        config: Config,
        metrics: &Metrics,
        writers: LogWriters<'_>,
        clock: &Clock,
    ) -> Snapshot {
        let tokens = before.and_then(|before| before.tokens.as_ref());
        // If the settings are unchanged, the verified tokens stay in the cache.
        let kept = tokens.filter(|_| before.is_some_and(|before| before.config.jwt == config.jwt));
        let tokens = config.jwt.as_ref().map(|settings| match kept {
            Some(kept) => Arc::clone(kept),
            None => Arc::new(TokenAuth::after(tokens.map(Arc::as_ref), settings, clock.clone())),
        });
        let usage_limit = config.usage.as_ref().map(|usage| {
            let kept = before.and_then(|before| before.usage_limit.as_ref());
            AddressLimit::after(kept, "usage", usage.limit, clock.clone())
        });
        let access_log = config.access_log.as_ref().map(|settings| {
            let kept =
                before.filter(|before| before.config.access_log.as_ref().is_some_and(|log| log.to == settings.to));
            let kept = kept.and_then(|before| before.access_log.clone());
            kept.unwrap_or_else(|| Arc::new(writers.access_logs.start(&settings.to)))
        });
        let number = before.map_or(0, |before| before.number.wrapping_add(1));
        let series = metrics.registry.of_config(number);
        record_expiry(&config.listeners, series);
        let remotes = tokens.iter().flat_map(|tokens| tokens.verifier().remotes());
        let keys_fetched = |remote: &Arc<RemoteKeySet>| {
            let fetched = TokenMetrics::keys_fetched(remote.issuer(), series);
            // The series may still have the time of a fetch from another URL.
            if !before.is_some_and(|before| before.remotes().any(|known| Arc::ptr_eq(known, remote))) {
                fetched.set(0.0);
            }
            fetched
        };
        for ListSize { file, entries, .. } in &config.remarks.lists {
            record_list(file, *entries, series, clock);
        }
        Snapshot {
            number,
            access_log,
            records: RecordedLimits::of(&config, before.and_then(|before| before.records.as_ref()), writers.records),
            hold_key: config.hash_key.seal_key(HOLD_IDS),
            usage_limit,
            shown: config.rules.limits().iter().map(ExposedLimit::new).collect(),
            destinations: Destinations::new(before.map(|before| &before.destinations), &config, number, metrics),
            learned_costs: LearnedCosts::after(before.map(|before| &before.learned_costs), &config.rules),
            limits: LimitMetrics::of(&config.rules, &config.store, series),
            unmatched: LimitMetrics::unmatched(&config.rules, series),
            denied: LimitMetrics::denied(&config.rules, series),
            keys_fetched: remotes.map(keys_fetched).collect(),
            tokens,
            config,
        }
    }

    /// Returns the key sets that the gateway fetches from token issuers.
    pub(crate) fn remotes(&self) -> impl Iterator<Item = &Arc<RemoteKeySet>> {
        self.tokens.iter().flat_map(|tokens| tokens.verifier().remotes())
    }

    /// Returns the key sets that the gateway fetches from token issuers. Each has a metric with the time of its last fetch.
    pub(crate) fn remotes_with_metric(&self) -> impl Iterator<Item = (&Arc<RemoteKeySet>, &Gauge)> {
        self.remotes().zip(&self.keys_fetched)
    }

    /// Returns the writer of the access log. `None` if requests of this kind are not logged.
    pub(crate) fn access_log_of(&self, kind: Kind) -> Option<&Writer> {
        self.config.access_log.as_ref().filter(|settings| settings.when.contains(&kind))?;
        self.access_log.as_deref()
    }

    /// Returns every limit with its metrics, in the order of the configuration file.
    pub(crate) fn all_limits(&self) -> impl Iterator<Item = (&CompiledLimit, &LimitMetrics)> {
        self.config.rules.limits().iter().zip(&self.limits)
    }

    /// Returns the limit with this id, and its metrics. `None` if the id is unknown.
    pub(crate) fn limit(&self, id: LimitId) -> Option<(&CompiledLimit, &LimitMetrics)> {
        self.config.rules.limit(id).zip(self.limits.get(usize::try_from(id.0).ok()?))
    }
}

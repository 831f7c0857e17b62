//! Holds the upstreams: their endpoints, the selection of an endpoint for a request, and the handling of failed endpoints.
//!
//! Every address to which a host name resolves is an endpoint. Pooled connections and the condition of an endpoint
//! belong to its address, so they stay when the configuration changes.

mod background_tasks;
mod ejection;
pub(super) mod endpoint;
mod endpoint_counts;
mod failure;
mod hashing;
mod health;
mod health_probe;
mod health_state;
mod join_all;
mod resolver;
mod retry_budget;
mod schedule;
mod selection;
mod stable_hash;
mod tls;

pub(crate) use background_tasks::start_background_tasks;
pub(crate) use endpoint_counts::Availability;
pub(crate) use failure::{EndpointFailure, RetriedFailure, UpstreamError};
pub(crate) use hashing::BalanceKey;
pub(crate) use health_state::HealthChange;
pub(crate) use selection::{Choice, Turn};

#[cfg(test)]
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use base::time;
use base::time::{Micros, Timestamp};
use config::Balance;
use ejection::Ejector;
use endpoint::{ConnectOptions, Endpoint};
use request::attribute::Attribute;
use resolver::Addresses;
use retry_budget::RetryBudget;
use rules::route::retries::RetryCauses;
use schedule::Schedule;
use tls::PeerTls;

/// The size of the receive buffer for a response. The size bounds how much of the response arrives before the client reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// The ordinary size of the connection.
    Whole,
    /// A small size, so that a response that its client does not read takes little memory.
    Narrow,
}

#[derive(Debug)]
pub(crate) struct Upstream {
    settings: config::Upstream,
    connecting: ConnectOptions,
    /// The addresses of each configured endpoint.
    addresses: parking_lot::Mutex<Addresses>,
    pool: ArcSwap<Pool>,
    /// The number of the next turn. The turns decide which endpoint gets a request.
    turn: AtomicUsize,
    ejector: Ejector,
    retry_budget: RetryBudget,
    /// Whether the first look-ups have ended, successfully or not.
    looked_up: watch::Sender<bool>,
    /// `true` when a task that resolves the names is running, or when there are no names to resolve.
    has_resolver: AtomicBool,
    /// Whether a task checks the endpoints repeatedly.
    has_checks: AtomicBool,
    /// Whether another upstream has replaced this one and has taken over its endpoints.
    is_replaced: AtomicBool,
}

/// Whether a failed request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    Yes,
    No,
    /// The request may not be sent again, because too many requests to the upstream have been retried.
    OverBudget,
}

/// The known endpoints.
#[derive(Debug, Default)]
struct Pool {
    endpoints: Vec<Arc<Endpoint>>,
    schedule: Schedule,
}

impl Upstream {
    pub(crate) fn new(settings: &config::Upstream) -> Upstream {
        Upstream::made(settings, None)
    }

    /// Returns this upstream if the settings are unchanged, or else a new upstream that replaces it. Endpoints that are
    /// in both upstreams keep their state.
    pub(crate) fn reconfigured(self: &Arc<Upstream>, settings: &config::Upstream) -> Arc<Upstream> {
        if self.settings == *settings {
            return Arc::clone(self);
        }
        self.is_replaced.store(true, Ordering::Relaxed);
        Arc::new(Upstream::made(settings, Some(self)))
    }

    fn made(settings: &config::Upstream, before: Option<&Upstream>) -> Upstream {
        let (looked_up, _) = watch::channel(false);
        let addresses = Addresses::new(settings, before);
        let is_complete = addresses.needs_no_resolver();
        let new = Upstream {
            settings: settings.clone(),
            connecting: ConnectOptions {
                timeouts: settings.timeouts,
                protocol: settings.protocol,
                tls: settings.tls.as_deref().map(PeerTls::new),
            },
            addresses: parking_lot::Mutex::new(addresses),
            pool: ArcSwap::default(),
            // Begins at a random turn, so that many gateways do not all begin with the same endpoint.
            turn: AtomicUsize::new(fastrand::usize(..usize::MAX / 2)),
            ejector: Ejector::default(),
            retry_budget: RetryBudget::default(),
            looked_up,
            has_resolver: AtomicBool::new(is_complete),
            has_checks: AtomicBool::new(false),
            is_replaced: AtomicBool::new(false),
        };
        let known = before.map(|before| before.pool.load_full()).unwrap_or_default();
        if new.settings.health.is_none() {
            known.endpoints.iter().for_each(|endpoint| endpoint.condition.health.forget());
        }
        new.rebuild(&known);
        new
    }

    /// Makes the pool again from the current addresses. Endpoints that are in `known` keep their condition.
    fn rebuild(&self, known: &Pool) {
        let endpoints: Vec<Arc<Endpoint>> = self
            .addresses
            .lock()
            .weighted()
            .into_iter()
            .filter_map(|one| {
                let known = known.endpoints.iter().find(|endpoint| endpoint.address == one.address);
                let condition = known.map(|endpoint| Arc::clone(&endpoint.condition)).unwrap_or_default();
                Endpoint::new(one, &self.connecting, condition).map(Arc::new).ok()
            })
            .collect();
        let weights: Vec<u64> = endpoints.iter().map(|endpoint| endpoint.weight).collect();
        self.pool.store(Arc::new(Pool { endpoints, schedule: Schedule::new(&weights) }));
    }

    /// Returns the first endpoint of the upstream in the configuration.
    pub(crate) fn first_endpoint(&self) -> Option<&config::Endpoint> {
        self.settings.endpoints.first()
    }

    pub(crate) fn name(&self) -> &str {
        &self.settings.name
    }

    /// Returns the value of `Host` for a request without the field `Host`. The port is appended unless it is the
    /// default port of the scheme.
    pub(crate) fn authority(&self) -> String {
        let Some(config::Endpoint { host, port, scheme, .. }) = self.first_endpoint() else { return String::new() };
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        if *port == scheme.default_port() { host } else { format!("{host}:{port}") }
    }

    /// Returns the attribute whose value determines the endpoint. `None` if the upstream does not select endpoints by a value.
    pub(crate) fn balance_attribute(&self) -> Option<&Attribute> {
        match &self.settings.balance {
            Balance::Hash(attribute) => Some(attribute),
            Balance::RoundRobin | Balance::LeastRequests => None,
        }
    }

    /// Returns the timeout for a whole request with its retries, if there is one. A route may replace this timeout.
    pub(crate) fn total_timeout(&self) -> Option<Micros> {
        self.settings.timeouts.total
    }

    /// Returns the longest wait for the first byte of a response. `None` if the read timeout applies.
    pub(crate) fn first_byte_timeout(&self) -> Option<Micros> {
        self.settings.timeouts.first_byte
    }

    /// Returns whether the caller must start the task that resolves the host names repeatedly. Returns `true` at most once for
    /// each upstream.
    pub(crate) fn needs_resolver(&self) -> bool {
        !self.has_resolver.swap(true, Ordering::Relaxed)
    }

    /// Returns the failures after which a request is sent again. A route may replace them.
    pub(crate) fn retry_causes(&self) -> RetryCauses {
        self.settings.retries.on
    }

    /// Notes the first attempt of a request, which adds to the retry budget.
    fn begin(&self) {
        self.retry_budget.add(self.settings.retries.budget);
    }

    /// Decides whether a request that has failed at `failed` endpoints may be sent to another endpoint. A permitted retry is
    /// counted. `max` is the maximum number of retries. If `None`, the upstream's setting applies.
    pub(crate) fn retry(&self, failed: usize, max: Option<u32>) -> Retry {
        let retries = u32::try_from(failed).unwrap_or(u32::MAX);
        if failed >= self.pool.load().endpoints.len() || retries > max.unwrap_or(self.settings.retries.max) {
            return Retry::No;
        }
        self.take_retry()
    }

    /// Decides whether a request may be sent again because the upstream closed a reused connection or refused the
    /// request. A permitted retry is counted, and may go to any endpoint. `max` is as in [`Upstream::retry`].
    pub(crate) fn repeat(&self, max: Option<u32>) -> Retry {
        if max.unwrap_or(self.settings.retries.max) == 0 { Retry::No } else { self.take_retry() }
    }

    fn take_retry(&self) -> Retry {
        if self.retry_budget.take() { Retry::Yes } else { Retry::OverBudget }
    }

    /// Records that a request has failed at an endpoint. Returns whether this failure ejected the endpoint.
    pub(crate) fn failed(&self, endpoint: &Endpoint, now: Timestamp) -> bool {
        let Some(settings) = &self.settings.ejection else { return false };
        self.ejector.failed(endpoint, &self.pool.load().endpoints, settings, now)
    }

    /// Records that an endpoint has answered. Returns whether the endpoint had been ejected before.
    pub(crate) fn succeeded(&self, endpoint: &Endpoint, now: impl Fn() -> Timestamp) -> bool {
        Ejector::succeeded(endpoint, now)
    }

    /// Waits until the first look-ups of host names have ended, but not longer than the connection timeout.
    pub(crate) async fn first_lookups(&self) {
        let mut looked_up = self.looked_up.subscribe();
        let first = looked_up.wait_for(|done| *done);
        let _ = time::timeout(self.settings.timeouts.connect.into(), first).await;
    }

    #[cfg(test)]
    fn known_addresses(&self) -> Vec<SocketAddr> {
        self.pool.load().endpoints.iter().filter_map(|endpoint| endpoint.address.inet()).collect()
    }
}

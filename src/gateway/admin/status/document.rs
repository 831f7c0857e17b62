//! Makes the document of the status page: the current configuration, and the counts since the start.
//!
//! It contains no text from a client. [`MAX_ROWS`] limits its size.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;

use super::endpoints::{self, EndpointRow};
use super::held_buckets::HeldRow;
use super::readings::{Histogram, Readings, date};
use super::rule_rows::{self, Row};
use super::top_refused::TopRefusedDocument;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::state::{GatewayState, Leases};
use crate::gateway::telemetry::events::Event;
use base::printable::{Printable, write_json};
use base::time::Timestamp;
use config::warning::Warning;
use ledger::algorithm::Algorithm;
use rules::rule::{Action, Mode, Policy};
use rules::without_store::without_store;
use stores::RunningGateway;

/// The maximum number of rows that are shown. The busiest rows are kept.
const MAX_ROWS: usize = 2000;
/// The maximum number of warnings that are shown. `check` reports all of them.
const MAX_WARNINGS: usize = 20;
/// The maximum number of the store's servers that are shown. The metrics have all of them.
const MAX_NODES: usize = 5;

/// Facts about this process that the status page shows.
#[derive(Debug)]
pub(super) struct Instance {
    /// The name of this machine.
    pub host: String,
    pub started: Timestamp,
    /// The time at which the process started, by the wall clock.
    pub started_at: Timestamp,
    /// The address of the admin listener, with the port that was chosen. `None` without an admin listener.
    pub admin: Option<SocketAddr>,
}

#[derive(Debug, Serialize)]
struct Document<'d> {
    host: &'d str,
    version: &'static str,
    status: &'static str,
    /// The time of the document, in seconds since the epoch. All dates of the document are in this form.
    now: f64,
    started: f64,
    /// The time since the start in seconds, by a monotonic clock. The page computes rates from it.
    uptime: f64,
    config: ConfigInForce<'d>,
    store: StoreSummary,
    /// Other gateways on the same store with another configuration.
    others: Vec<RunningGateway>,
    answers: ResponseTotals,
    decisions: BTreeMap<String, u64>,
    /// Decisions by door; `None` if no other proxy asks this gateway.
    doors: Option<BTreeMap<String, u64>>,
    refused: BTreeMap<String, u64>,
    unmatched: BTreeMap<&'d str, u64>,
    decision_seconds: Histogram,
    upstream_seconds: Histogram,
    upstream_errors: u64,
    connections: f64,
    /// The number of requests in queues; `None` if no limit delays requests.
    waiting: Option<f64>,
    /// The number of lines that the access log has dropped; `None` if there is no access log.
    access_log_dropped: Option<u64>,
    issuers: Vec<Issuer>,
    top_refused: TopRefusedDocument,
    /// The buckets that requests of this process hold, those with the most requests first. `None` if no enforced limit
    /// has slots or is a budget.
    held: Option<Vec<HeldRow>>,
    /// The events, the newest first.
    events: Vec<Event>,
    warnings: Vec<WarningRow>,
    warnings_left_out: usize,
    rows: Vec<Row<'d>>,
    rows_left_out: usize,
    endpoints: Vec<EndpointRow>,
    endpoints_left_out: usize,
}

/// A warning about the current configuration.
#[derive(Debug, Serialize)]
struct WarningRow {
    name: &'static str,
    path: String,
    line: usize,
}

#[derive(Debug, Serialize)]
struct ConfigInForce<'d> {
    hash: &'d str,
    loaded: f64,
    /// Whether all files were valid when they were last read. `false` while a file is invalid.
    last_reload_successful: bool,
}

#[derive(Debug, Serialize)]
struct StoreSummary {
    kind: &'static str,
    /// The address of the store while it is up; `None` for buckets in this process.
    server: Option<String>,
    up: bool,
    /// What the limits do while the store gives no answer, in words.
    meanwhile: String,
    /// The number of servers of a store with several servers; otherwise 0.
    nodes: usize,
    /// The servers to which at least one thread is not connected.
    nodes_down: Vec<String>,
    breaker_open: bool,
    may_evict: bool,
    gateways: f64,
    calls: u64,
    errors: u64,
    call_seconds: Histogram,
    /// The number of limits that were decided without the store.
    without: u64,
    /// Where limits over several regions live. `None` without `store.home`.
    home: Option<HomeSummary>,
    /// The number of buckets in this process.
    buckets: usize,
    evicted: u64,
}

/// The home of limits over several regions.
#[derive(Debug, Serialize)]
struct HomeSummary {
    address: String,
    /// The region of this gateway.
    region: String,
    up: bool,
    /// Whether home may evict buckets.
    may_evict: bool,
    /// Whether gateways of this region use another store.
    other_store: bool,
    /// How long ago home last answered, in seconds. `None` before the first answer.
    heard_seconds: Option<f64>,
    calls: u64,
}

/// The number of responses by origin, and the number of those with status 5xx.
#[derive(Debug, Serialize)]
struct ResponseTotals {
    gateway: u64,
    upstream: u64,
    gateway_5xx: u64,
    upstream_5xx: u64,
}

#[derive(Debug, Serialize)]
struct Issuer {
    issuer: String,
    /// The time of the last fetch; `None` if the keys were never fetched.
    fetched: Option<f64>,
}

/// Makes the document about the current state for the status page, as JSON.
pub(super) fn make(gateway: &GatewayState, instance: &Instance) -> Vec<u8> {
    let snapshot = gateway.snapshot.load_full();
    let (now, wall) = (gateway.clock.now(), gateway.clock.wall());
    let readings = Readings(&gateway.metrics.registry);
    let (rows, rows_left_out) = rule_rows::busiest(&snapshot, readings, gateway.store.clock_at(now), MAX_ROWS);
    let (endpoints, endpoints_left_out) = endpoints::rows(&snapshot, now, MAX_ROWS);
    let warnings = snapshot.config.warnings.at(wall).warnings;
    let document = Document {
        host: &instance.host,
        version: env!("CARGO_PKG_VERSION"),
        status: gateway.readiness().name(),
        now: date(wall),
        started: date(instance.started_at),
        uptime: now.since(instance.started).seconds(),
        config: ConfigInForce {
            hash: &snapshot.config.hash,
            loaded: readings.level("tollgate_config_loaded_timestamp_seconds"),
            last_reload_successful: readings.level("tollgate_config_last_reload_successful") > 0.0,
        },
        store: store(gateway, &snapshot, readings),
        others: gateway.store_health.others(&snapshot.config.hash),
        answers: answers(readings),
        decisions: readings.by("rate_limiter_decisions_total", "result"),
        doors: snapshot.config.decides().then(|| readings.by("rate_limiter_decisions_total", "door")),
        refused: readings.by("tollgate_refused_requests_total", "reason"),
        unmatched: unmatched(&snapshot, readings),
        decision_seconds: readings.histogram("rate_limiter_latency_seconds"),
        upstream_seconds: readings.histogram("tollgate_upstream_request_duration_seconds"),
        upstream_errors: readings.total("tollgate_upstream_errors_total"),
        connections: readings.level("tollgate_http_connections"),
        waiting: delays(&snapshot).then(|| readings.level("rate_limiter_waiting")),
        access_log_dropped: snapshot.access_log.is_some().then(|| readings.total("tollgate_access_log_dropped_total")),
        issuers: issuers(&snapshot, readings),
        top_refused: TopRefusedDocument::of(gateway, instance.admin, &snapshot, now, now.since(instance.started)),
        held: has_holds(&snapshot).then(|| HeldRow::rows(gateway, instance.admin, &snapshot)),
        events: gateway.events.all(),
        warnings: warnings.iter().take(MAX_WARNINGS).map(warning_row).collect(),
        warnings_left_out: warnings.len().saturating_sub(MAX_WARNINGS),
        rows,
        rows_left_out,
        endpoints,
        endpoints_left_out,
    };
    let mut json = Vec::new();
    // Writing fails only for keys that are not text, and all keys here are text.
    let _ = write_json(&mut json, &document);
    json
}

fn delays(snapshot: &Snapshot) -> bool {
    let enforced = snapshot.config.rules.limits().iter().filter(|limit| limit.mode == Mode::Enforce);
    enforced.flat_map(|limit| &limit.variants).any(Algorithm::delays)
}

/// Returns whether an enforced limit has slots or is a budget, so that requests in flight may hold something.
fn has_holds(snapshot: &Snapshot) -> bool {
    let mut enforced = snapshot.config.rules.limits().iter().filter(|limit| limit.mode == Mode::Enforce);
    enforced.any(|limit| limit.variants.iter().any(Algorithm::is_held))
}

fn warning_row(warning: &Warning) -> WarningRow {
    WarningRow { name: warning.name, path: Printable(&warning.path).to_string(), line: warning.position.line }
}

fn store(gateway: &GatewayState, snapshot: &Snapshot, readings: Readings<'_>) -> StoreSummary {
    let (nodes_down, nodes) = gateway.store_health.nodes_down();
    StoreSummary {
        kind: gateway.store.name(),
        server: gateway.store_health.server(),
        up: gateway.store_health.is_up(),
        meanwhile: without_store(snapshot.config.rules.limits()),
        nodes,
        nodes_down: nodes_down.iter().take(MAX_NODES).map(ToString::to_string).collect(),
        breaker_open: readings.level("rate_limiter_breaker_open") > 0.0,
        may_evict: readings.level("rate_limiter_store_may_evict") > 0.0,
        gateways: readings.level("rate_limiter_live_gateways"),
        calls: readings.total("rate_limiter_store_calls_total"),
        // The series without a node also counts the errors of nodes.
        errors: readings.by("rate_limiter_store_errors_total", "node").remove("").unwrap_or_default(),
        call_seconds: readings.histogram("rate_limiter_store_call_duration_seconds"),
        without: readings.total("rate_limiter_fallback_decisions_total"),
        home: gateway.leases.as_ref().map(|leases| home(gateway, leases, readings)),
        buckets: gateway.store.local_buckets().map_or(0, |memory| memory.buckets()),
        evicted: readings.total("rate_limiter_evicted_total"),
    }
}

fn home(gateway: &GatewayState, leases: &Leases, readings: Readings<'_>) -> HomeSummary {
    let snapshot = gateway.snapshot.load();
    HomeSummary {
        address: leases.health.address().to_owned(),
        region: snapshot.config.home.as_ref().map_or_else(String::new, |home| home.region.clone()),
        up: leases.health.is_up(),
        may_evict: readings.level("rate_limiter_home_may_evict") > 0.0,
        other_store: leases.health.has_other_store(),
        heard_seconds: leases.keeper.home().heard().map(|at| gateway.clock.now().since(at).seconds()),
        calls: readings.total("rate_limiter_home_calls_total"),
    }
}

fn answers(readings: Readings<'_>) -> ResponseTotals {
    let answers =
        |origin, code| readings.with_prefixes("tollgate_http_requests_total", [("origin", origin), ("code", code)]);
    ResponseTotals {
        gateway: answers("gateway", ""),
        upstream: answers("upstream", ""),
        gateway_5xx: answers("gateway", "5"),
        upstream_5xx: answers("upstream", "5"),
    }
}

/// Returns the unmatched requests of each policy that has limits in the current configuration.
fn unmatched<'d>(snapshot: &'d Snapshot, readings: Readings<'_>) -> BTreeMap<&'d str, u64> {
    let counts = readings.by("rate_limiter_unmatched_total", "policy");
    let has_limits = |policy: &&Policy| policy.rules.iter().any(|rule| matches!(rule.action, Action::Charge(_)));
    let policies = snapshot.config.rules.source().policies.iter().filter(has_limits);
    let of = |policy: &'d Policy| {
        let count = counts.get(&*policy.name).filter(|count| **count > 0);
        count.map(|count| (&*policy.name, *count))
    };
    policies.filter_map(of).take(MAX_ROWS).collect()
}

fn issuers(snapshot: &Snapshot, readings: Readings<'_>) -> Vec<Issuer> {
    let fetched = readings.levels("tollgate_jwks_last_success_timestamp_seconds", "issuer");
    let issuer = |issuer: &str| Issuer {
        issuer: Printable(issuer).to_string(),
        fetched: fetched.get(issuer).copied().filter(|date| *date > 0.0),
    };
    snapshot.remotes().map(|remote| issuer(remote.issuer())).collect()
}

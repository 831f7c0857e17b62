//! Lists every metric, and makes the handles by which they are counted.
//!
//! A handle is made once, per process or per limit at load; no request looks one up. Labels come from the file and from
//! closed lists, never from a client. To add a metric: a line in [`METRICS`], a handle, one call.

use std::sync::atomic::{AtomicBool, Ordering};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use parking_lot::Mutex;

use super::labels::{DecisionResult, Origin, TokenResult, UpstreamError};
use super::reload_status::{File, ReloadStatus};
use super::response_counts::ResponseCounts;
use crate::base::time::{Clock, Timestamp};
use crate::decision::reason::Reason;
use crate::limit::rule::Mode;
use crate::limit::rule_set::{CompiledLimit, RuleSet};
use crate::store::{Source, StoreError};

/// The only route and upstream so far, by their names.
pub const DEFAULT: &str = "default";

enum Kind {
    Counter,
    Gauge,
    /// Of seconds.
    Histogram(&'static [f64]),
    /// Of numbers of something.
    Counts(&'static [f64]),
}

/// 10 µs to 1 s, with a bound at the default store timeout.
const DECISION: &[f64] = &[
    10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1.0,
];
/// A call's bound is 512.
const BATCH: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
const REQUEST: &[f64] = &[1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

const METRICS: &[(&str, Kind, &str)] = &[
    ("rate_limiter_decisions_total", Kind::Counter, "Requests by what became of them."),
    ("rate_limiter_requests_total", Kind::Counter, "Limits asked to pay."),
    ("rate_limiter_allowed_total", Kind::Counter, "Charges taken."),
    ("rate_limiter_rejected_total", Kind::Counter, "Limits that refused."),
    ("rate_limiter_near_limit_total", Kind::Counter, "Charges taken that left less than a tenth."),
    ("rate_limiter_unmatched_total", Kind::Counter, "Requests to which no rule of a policy applied."),
    ("rate_limiter_latency_seconds", Kind::Histogram(DECISION), "Time of the whole decision."),
    ("rate_limiter_store_calls_total", Kind::Counter, "Calls of a store outside of this process."),
    (
        "rate_limiter_store_errors_total",
        Kind::Counter,
        "Calls and connections that failed, and buckets that had to be healed.",
    ),
    ("rate_limiter_store_call_duration_seconds", Kind::Histogram(DECISION), "Time from sending a call to its answer."),
    ("rate_limiter_store_batch_requests", Kind::Counts(BATCH), "Requests that travelled in one call."),
    ("rate_limiter_fallback_decisions_total", Kind::Counter, "Limits that decided without the store."),
    ("rate_limiter_store_up", Kind::Gauge, "Whether the store can be asked."),
    ("rate_limiter_breaker_open", Kind::Gauge, "Whether the store is not asked for a while."),
    ("rate_limiter_live_gateways", Kind::Gauge, "Gateways that share the limits while the store is away."),
    ("rate_limiter_buckets", Kind::Gauge, "Buckets kept in this process."),
    ("rate_limiter_evicted_total", Kind::Counter, "Buckets forgotten at the bound although something was spent."),
    ("tollgate_http_requests_total", Kind::Counter, "Requests answered, by who made the answer."),
    ("tollgate_refused_requests_total", Kind::Counter, "Refusals by reason."),
    (
        "tollgate_http_request_duration_seconds",
        Kind::Histogram(REQUEST),
        "Time from the head to the end of the answer.",
    ),
    ("tollgate_upstream_request_duration_seconds", Kind::Histogram(REQUEST), "Time spent on the upstream."),
    ("tollgate_upstream_errors_total", Kind::Counter, "Requests that the upstream failed."),
    ("tollgate_jwt_verifications_total", Kind::Counter, "Tokens by what came of them."),
    ("tollgate_jwks_last_success_timestamp_seconds", Kind::Gauge, "When an issuer's keys were last fetched."),
    ("tollgate_http_connections", Kind::Gauge, "Open client connections."),
    (
        "tollgate_admin_connections_closed_total",
        Kind::Counter,
        "Connections to the admin listener closed because there were too many.",
    ),
    ("tollgate_proxy_protocol_errors_total", Kind::Counter, "Connections closed for want of a header."),
    ("tollgate_config_reloads_total", Kind::Counter, "Changed files that were taken up, or were wrong."),
    ("tollgate_config_last_reload_successful", Kind::Gauge, "Whether what was last read was good."),
    ("tollgate_config_loaded_timestamp_seconds", Kind::Gauge, "When the file in force was read."),
    ("tollgate_config_info", Kind::Gauge, "The file in force."),
    ("tollgate_access_log_dropped_total", Kind::Counter, "Lines of the access log that were not written."),
    ("tollgate_build_info", Kind::Gauge, "The version that runs."),
];

const METADATA: Metadata<'static> = Metadata::new("tollgate", Level::INFO, None);

/// Every handle of the process.
pub struct Metrics {
    pub(super) recorder: PrometheusRecorder,
    exposition: PrometheusHandle,
    process: metrics_process::Collector,
    decisions: [Counter; 4],
    latency: [Histogram; 3],
    pub buckets: Gauge,
    pub evicted: Counter,
    responses: ResponseCounts,
    refused: Vec<Counter>,
    pub request_duration: [Histogram; 2],
    pub upstream_duration: Histogram,
    upstream_errors: Vec<Counter>,
    tokens: Vec<Counter>,
    pub access_log_dropped: Counter,
    reloads: [Counter; 2],
    last_reload: Gauge,
    wrong: ReloadStatus,
    config_loaded: Gauge,
    /// The hash of the file in force.
    config: Mutex<String>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

/// The handles of one limit.
#[derive(Debug)]
pub struct LimitMetrics {
    pub requests: Counter,
    pub allowed: Counter,
    pub exceeded: Counter,
    pub too_large: Counter,
    pub near_limit: Counter,
    /// That it said `deny` when there was no store.
    pub unavailable: Counter,
    /// By error; none for what never decides without the store.
    fallback: Vec<Counter>,
    fell_back: AtomicBool,
}

impl LimitMetrics {
    /// Whether it decided without the store since this was last asked.
    pub fn has_fallen_back(&self) -> bool {
        self.fell_back.load(Ordering::Relaxed) && self.fell_back.swap(false, Ordering::Relaxed)
    }

    pub fn count_fallback(&self, cause: StoreError) {
        self.fell_back.store(true, Ordering::Relaxed);
        if let Some(counter) = position(&StoreError::ALL, &cause).and_then(|place| self.fallback.get(place)) {
            counter.increment(1);
        }
    }
}

/// What is counted of a store's calls.
#[derive(Debug)]
pub struct StoreMetrics {
    pub calls: Counter,
    pub duration: Histogram,
    pub batch: Histogram,
    pub up: Gauge,
    pub breaker_open: Gauge,
    pub gateways: Gauge,
    pub healed: Counter,
    errors: Vec<Counter>,
}

impl StoreMetrics {
    pub fn count_error(&self, error: StoreError) {
        if let Some(counter) = position(&StoreError::ALL, &error).and_then(|place| self.errors.get(place)) {
            counter.increment(1);
        }
    }
}

impl Metrics {
    pub fn new() -> Result<Metrics, BuildError> {
        let mut builder = PrometheusBuilder::new();
        for (name, kind, _) in METRICS {
            if let Kind::Histogram(bounds) | Kind::Counts(bounds) = kind {
                builder = builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), bounds)?;
            }
        }
        let recorder = builder.build_recorder();
        for (name, kind, help) in METRICS {
            let (name, help) = (KeyName::from_const_str(name), SharedString::const_str(help));
            match kind {
                Kind::Counter => recorder.describe_counter(name, Some(Unit::Count), help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
                Kind::Histogram(_) => recorder.describe_histogram(name, Some(Unit::Seconds), help),
                Kind::Counts(_) => recorder.describe_histogram(name, Some(Unit::Count), help),
            }
        }
        let process = metrics_process::Collector::default();
        metrics::with_local_recorder(&recorder, || process.describe());
        let metrics = Metrics {
            exposition: recorder.handle(),
            process,
            decisions: ["allowed", "refused", "exempt", "unlimited"]
                .map(|result| counter(&recorder, "rate_limiter_decisions_total", &[("result", result)])),
            latency: ["store", "cached", "fallback"]
                .map(|source| histogram(&recorder, "rate_limiter_latency_seconds", &[("source", source)])),
            buckets: gauge(&recorder, "rate_limiter_buckets", &[]),
            evicted: counter(&recorder, "rate_limiter_evicted_total", &[]),
            responses: ResponseCounts::new(),
            refused: Reason::ALL
                .iter()
                .map(|reason| counter(&recorder, "tollgate_refused_requests_total", &[("reason", reason.name())]))
                .collect(),
            request_duration: ["gateway", "upstream"].map(|origin| {
                let labels = [("route", DEFAULT), ("origin", origin)];
                histogram(&recorder, "tollgate_http_request_duration_seconds", &labels)
            }),
            upstream_duration: histogram(
                &recorder,
                "tollgate_upstream_request_duration_seconds",
                &[("upstream", DEFAULT)],
            ),
            upstream_errors: UpstreamError::ALL
                .iter()
                .map(|error| {
                    let labels = [("upstream", DEFAULT), ("kind", error.name())];
                    counter(&recorder, "tollgate_upstream_errors_total", &labels)
                })
                .collect(),
            tokens: TokenResult::all()
                .map(|result| counter(&recorder, "tollgate_jwt_verifications_total", &[("result", result.name())]))
                .collect(),
            access_log_dropped: counter(&recorder, "tollgate_access_log_dropped_total", &[]),
            reloads: ["success", "failure"]
                .map(|result| counter(&recorder, "tollgate_config_reloads_total", &[("result", result)])),
            last_reload: gauge(&recorder, "tollgate_config_last_reload_successful", &[]),
            wrong: ReloadStatus::default(),
            config_loaded: gauge(&recorder, "tollgate_config_loaded_timestamp_seconds", &[]),
            config: Mutex::default(),
            recorder,
        };
        gauge(&metrics.recorder, "tollgate_build_info", &[("version", env!("CARGO_PKG_VERSION"))]).set(1.0);
        Ok(metrics)
    }

    /// The text of `/metrics`.
    pub fn render(&self) -> String {
        metrics::with_local_recorder(&self.recorder, || self.process.collect());
        let mut text = self.exposition.render();
        // By hand: the recorder forgets no series, and there is one file in force, not all that ever were.
        let name = "tollgate_config_info";
        let help = METRICS.iter().find(|(known, ..)| *known == name).map_or("", |(.., help)| help);
        let hash = self.config.lock();
        text += &format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{hash=\"{hash}\"}} 1\n\n");
        text
    }

    /// The same without what the operating system knows of the process.
    pub fn counted(&self) -> String {
        self.exposition.render()
    }

    /// Moves histogram samples into their buckets; without it they pile up between scrapes.
    pub fn upkeep(&self) {
        self.exposition.run_upkeep();
    }

    pub fn count_decision(&self, fate: DecisionResult) {
        let [allowed, refused, exempt, unlimited] = &self.decisions;
        let counter = match fate {
            DecisionResult::Allowed => allowed,
            DecisionResult::Refused => refused,
            DecisionResult::Exempt => exempt,
            DecisionResult::Unlimited => unlimited,
        };
        counter.increment(1);
    }

    /// How long decisions take, by where they come from.
    pub fn latency(&self, source: Source) -> &Histogram {
        let [store, cached, fallback] = &self.latency;
        match source {
            Source::Store => store,
            Source::Cached => cached,
            Source::Fallback => fallback,
        }
    }

    pub fn count_refusal(&self, reason: Reason) {
        if let Some(counter) = position(&Reason::ALL, &reason).and_then(|place| self.refused.get(place)) {
            counter.increment(1);
        }
    }

    pub fn count_token(&self, result: TokenResult) {
        if let Some(counter) = TokenResult::all().position(|one| one == result).and_then(|place| self.tokens.get(place))
        {
            counter.increment(1);
        }
    }

    /// Says that an issuer's keys were fetched.
    pub fn keys_fetched(&self, issuer: &str, unix_seconds: f64) {
        gauge(&self.recorder, "tollgate_jwks_last_success_timestamp_seconds", &[("issuer", issuer)]).set(unix_seconds);
    }

    pub fn count_upstream_error(&self, error: UpstreamError) {
        if let Some(counter) = position(&UpstreamError::ALL, &error).and_then(|place| self.upstream_errors.get(place)) {
            counter.increment(1);
        }
    }

    pub fn count_response(&self, method: &str, code: u16, origin: Origin) {
        self.responses.counter(&self.recorder, method, code, origin).increment(1);
    }

    pub fn connections(&self, listener: &str) -> Gauge {
        gauge(&self.recorder, "tollgate_http_connections", &[("listener", listener)])
    }

    pub fn admin_connections_closed(&self) -> Counter {
        counter(&self.recorder, "tollgate_admin_connections_closed_total", &[])
    }

    pub fn proxy_protocol_errors(&self, listener: &str, kind: &str) -> Counter {
        let labels = [("listener", listener), ("kind", kind)];
        counter(&self.recorder, "tollgate_proxy_protocol_errors_total", &labels)
    }

    /// The handles of a store; `store` is its name.
    pub fn store(&self, store: &'static str) -> StoreMetrics {
        let labels = [("store", store)];
        let error = |kind| {
            let labels = [labels[0], ("kind", kind)];
            counter(&self.recorder, "rate_limiter_store_errors_total", &labels)
        };
        StoreMetrics {
            calls: counter(&self.recorder, "rate_limiter_store_calls_total", &labels),
            duration: histogram(&self.recorder, "rate_limiter_store_call_duration_seconds", &labels),
            batch: histogram(&self.recorder, "rate_limiter_store_batch_requests", &labels),
            up: gauge(&self.recorder, "rate_limiter_store_up", &[]),
            breaker_open: gauge(&self.recorder, "rate_limiter_breaker_open", &[]),
            gateways: gauge(&self.recorder, "rate_limiter_live_gateways", &[]),
            healed: error("impossible_bucket"),
            errors: StoreError::ALL.iter().map(|kind| error(kind.name())).collect(),
        }
    }

    /// Says which file is in force, from now on.
    pub fn config_loaded(&self, hash: &str, clock: &Clock) {
        self.in_force(File::Config);
        self.config_loaded.set(clock.wall().since(Timestamp(0)).seconds());
        hash.clone_into(&mut self.config.lock());
    }

    /// What is in a file has come into force.
    pub fn taken_up(&self, file: File) {
        self.reloads[0].increment(1);
        self.in_force(file);
    }

    /// A file is wrong.
    pub fn not_taken_up(&self, file: File) {
        self.reloads[1].increment(1);
        self.wrong.note(file, true);
        self.last_reload.set(0.0);
    }

    /// What is in a file is what is in force.
    pub fn in_force(&self, file: File) {
        self.wrong.note(file, false);
        self.last_reload.set(if self.wrong.any() { 0.0 } else { 1.0 });
    }

    /// The handles of every limit of a rule set, in its order. Every series exists from here on, at 0.
    pub fn limits(&self, rules: &RuleSet) -> Vec<LimitMetrics> {
        rules.limits().iter().map(|limit| self.limit(limit)).collect()
    }

    /// How often no rule of a policy applied, in the order of the policies.
    pub fn unmatched(&self, rules: &RuleSet) -> Vec<Counter> {
        let unmatched = |policy| counter(&self.recorder, "rate_limiter_unmatched_total", &[("policy", policy)]);
        rules.policies().map(unmatched).collect()
    }

    fn limit(&self, limit: &CompiledLimit) -> LimitMetrics {
        let names = [("policy", &*limit.policy), ("rule", &*limit.name)];
        let labels = [names[0], names[1], ("mode", limit.mode.name())];
        let algorithm = limit.variants.first().map_or(Reason::CostTooLarge, Reason::exceeded);
        let rejected = |reason: Reason| {
            let labels = [labels[0], labels[1], labels[2], ("reason", reason.name())];
            counter(&self.recorder, "rate_limiter_rejected_total", &labels)
        };
        let fallback = |cause: StoreError| {
            let labels = [names[0], names[1], ("action", limit.on_store_failure.name()), ("cause", cause.name())];
            counter(&self.recorder, "rate_limiter_fallback_decisions_total", &labels)
        };
        LimitMetrics {
            requests: counter(&self.recorder, "rate_limiter_requests_total", &labels),
            allowed: counter(&self.recorder, "rate_limiter_allowed_total", &labels),
            exceeded: rejected(algorithm),
            too_large: rejected(Reason::CostTooLarge),
            near_limit: counter(&self.recorder, "rate_limiter_near_limit_total", &names),
            unavailable: rejected(Reason::StoreUnavailable),
            fallback: match limit.mode {
                Mode::Enforce => StoreError::ALL.iter().map(|cause| fallback(*cause)).collect(),
                Mode::Shadow => Vec::new(),
            },
            fell_back: AtomicBool::new(false),
        }
    }
}

fn position<T: PartialEq>(all: &[T], one: &T) -> Option<usize> {
    all.iter().position(|known| known == one)
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}

pub fn counter(recorder: &PrometheusRecorder, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
    let counter = recorder.register_counter(&key(name, labels), &METADATA);
    counter.increment(0);
    counter
}

fn gauge(recorder: &PrometheusRecorder, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
    let gauge = recorder.register_gauge(&key(name, labels), &METADATA);
    gauge.increment(0.0);
    gauge
}

fn histogram(recorder: &PrometheusRecorder, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
    recorder.register_histogram(&key(name, labels), &METADATA)
}

//! Lists every metric with its name, kind and help text. A test compares `docs/metrics.md` with this list.

pub(crate) enum Kind {
    Counter,
    Gauge,
    /// A histogram with the upper bounds of its ranges, in seconds or in requests.
    Histogram(&'static [f64]),
    /// A summary without quantiles: a sum and a count.
    Summary,
}

/// The bounds for durations of decisions: 10 µs to 1 s.
const DECISION: &[f64] = &[
    10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1.0,
];
/// The bounds for the number of requests in a call.
const BATCH: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
const DELAY: &[f64] = &[1e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const REQUEST: &[f64] = &[1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

pub(crate) const METRICS: &[(&str, Kind, &str)] = &[
    ("rate_limiter_decisions_total", Kind::Counter, "Requests by the result of their decision."),
    ("rate_limiter_requests_total", Kind::Counter, "Requests that were checked against a limit."),
    ("rate_limiter_allowed_total", Kind::Counter, "Requests that a limit allowed and charged."),
    ("rate_limiter_rejected_total", Kind::Counter, "Requests that a limit refused, or that a rule or policy denied."),
    ("rate_limiter_near_limit_total", Kind::Counter, "Allowed requests that left less than a tenth of a limit."),
    ("rate_limiter_unmatched_total", Kind::Counter, "Requests that matched no rule of a policy."),
    (
        "rate_limiter_claimed_numbers_total",
        Kind::Counter,
        "Numbers of limits that were to come from a claim or a column of the key file, by what was read.",
    ),
    ("rate_limiter_in_flight", Kind::Gauge, "Slots of a concurrency limit that requests of this process hold."),
    ("rate_limiter_held", Kind::Gauge, "What requests of this process hold of a budget, in the unit of its limit."),
    (
        "rate_limiter_not_at_door_total",
        Kind::Counter,
        "Requests to which a concurrency limit or a budget did not apply, because another proxy or a service asked.",
    ),
    ("rate_limiter_settled_total", Kind::Counter, "Requests whose cost at a budget was settled when they ended."),
    ("rate_limiter_overrun_total", Kind::Counter, "Requests that cost a budget more than was reserved for them."),
    (
        "rate_limiter_settled_cost_total",
        Kind::Counter,
        "What these requests have cost a budget, in the unit of its limit.",
    ),
    (
        "rate_limiter_usage_missing_total",
        Kind::Counter,
        "Requests whose response should have named their cost at a budget, and did not.",
    ),
    ("rate_limiter_resets_total", Kind::Counter, "Requests that reset the bucket of a limit with `reset_on`."),
    (
        "rate_limiter_model_unpriced_total",
        Kind::Counter,
        "Requests that a limit on money counted and that a model without a price answered.",
    ),
    ("rate_limiter_bans_total", Kind::Counter, "Bans that have begun, by their step."),
    (
        "rate_limiter_refused_by_holds_total",
        Kind::Counter,
        "Requests that a budget refused only because of what requests in flight held of it.",
    ),
    ("rate_limiter_latency_seconds", Kind::Histogram(DECISION), "Duration of a decision, by where it was made."),
    ("rate_limiter_waiting", Kind::Gauge, "Requests that a limit delays at present."),
    ("rate_limiter_waited_seconds", Kind::Histogram(DELAY), "How long requests were delayed before they went on."),
    ("rate_limiter_left_waiting_total", Kind::Counter, "Requests whose clients left while a limit delayed them."),
    ("rate_limiter_store_calls_total", Kind::Counter, "Calls to a store outside this process."),
    (
        "rate_limiter_store_errors_total",
        Kind::Counter,
        "Failed store calls and connections, and buckets with impossible values that were reset.",
    ),
    ("rate_limiter_store_call_duration_seconds", Kind::Histogram(DECISION), "Duration of a store call."),
    ("rate_limiter_store_batch_requests", Kind::Histogram(BATCH), "Requests served by one store call."),
    ("rate_limiter_fallback_decisions_total", Kind::Counter, "Limits decided without the store."),
    ("rate_limiter_store_up", Kind::Gauge, "1 if every thread is connected to the store."),
    (
        "rate_limiter_store_may_evict",
        Kind::Gauge,
        "1 if the store evicts buckets when its memory is full, 0 if it does not.",
    ),
    ("rate_limiter_store_bytes", Kind::Gauge, "Size of the table of the buckets in PostgreSQL, and of its index."),
    (
        "rate_limiter_store_rows",
        Kind::Gauge,
        "Rows of that table, and old versions of rows that are not reclaimed yet, as PostgreSQL estimates.",
    ),
    ("rate_limiter_breaker_open", Kind::Gauge, "1 while the circuit breaker keeps calls from the store."),
    ("rate_limiter_home_heard_seconds", Kind::Gauge, "Seconds since home last answered this gateway."),
    ("rate_limiter_home_up", Kind::Gauge, "1 if this gateway is connected to the home of limits over several regions."),
    ("rate_limiter_home_may_evict", Kind::Gauge, "1 if home evicts buckets when its memory is full, 0 if it does not."),
    ("rate_limiter_home_calls_total", Kind::Counter, "Calls to home."),
    ("rate_limiter_home_words_total", Kind::Counter, "Leases asked for and amounts returned in these calls."),
    ("rate_limiter_home_errors_total", Kind::Counter, "Failed calls and connections to home."),
    ("rate_limiter_home_call_duration_seconds", Kind::Histogram(DECISION), "Duration of a call to home."),
    (
        "rate_limiter_leased",
        Kind::Gauge,
        "What lay in the purses of a limit over several regions, when this gateway filled them last.",
    ),
    ("rate_limiter_leased_total", Kind::Counter, "What this gateway has leased from home."),
    ("rate_limiter_returned_total", Kind::Counter, "What this gateway has given back to home, because nobody used it."),
    (
        "rate_limiter_region_has_other_store",
        Kind::Gauge,
        "1 if gateways with this region use another store, as home has heard, 0 if they use one.",
    ),
    (
        "rate_limiter_waited_for_home_total",
        Kind::Counter,
        "Requests that waited for home, because the purse of a limit over several regions could not pay.",
    ),
    (
        "rate_limiter_without_home_total",
        Kind::Counter,
        "Requests about which this region's share of a limit over several regions decided: home gave no answer.",
    ),
    (
        "rate_limiter_stranded_total",
        Kind::Counter,
        "What home gave and no purse waited for any more: lost until the period ends, unless another gateway got it.",
    ),
    ("rate_limiter_live_gateways", Kind::Gauge, "Gateways that share the limits while the store is unavailable."),
    ("rate_limiter_buckets", Kind::Gauge, "Buckets held in this process."),
    (
        "rate_limiter_evicted_total",
        Kind::Counter,
        "Buckets evicted at the memory bound although they were partly spent.",
    ),
    (
        "rate_limiter_slot_handover_errors_total",
        Kind::Counter,
        "Failures in which one process of an upgrade did not learn which slots the other one holds.",
    ),
    ("rate_limiter_records_written_total", Kind::Counter, "Lines of `records` that are on the disk."),
    ("rate_limiter_records_kept", Kind::Gauge, "Lines of `records` that are kept in memory until they can be written."),
    (
        "rate_limiter_records_lost_total",
        Kind::Counter,
        "Records that were lost because there was no memory to keep them.",
    ),
    ("rate_limiter_bucket_saves_total", Kind::Counter, "Attempts to save the buckets in their file, by result."),
    ("tollgate_http_requests_total", Kind::Counter, "Requests by status code and by the origin of the response."),
    ("tollgate_refused_requests_total", Kind::Counter, "Refused requests by reason."),
    (
        "tollgate_http_request_duration_seconds",
        Kind::Histogram(REQUEST),
        "Duration from the request head to the end of the response.",
    ),
    (
        "tollgate_upstream_request_duration_seconds",
        Kind::Histogram(REQUEST),
        "Duration from the connection to the upstream to the end of the response.",
    ),
    ("tollgate_upstream_errors_total", Kind::Counter, "Requests that failed at the upstream."),
    ("tollgate_upstream_retries_total", Kind::Counter, "Attempts that failed, after which the request was sent again."),
    (
        "tollgate_upstream_retries_over_budget_total",
        Kind::Counter,
        "Requests that failed and were not sent again because too many had been.",
    ),
    ("tollgate_upstream_ejections_total", Kind::Counter, "How often an endpoint was ejected."),
    ("tollgate_upstream_endpoints", Kind::Gauge, "Endpoints by whether requests are sent to them."),
    ("tollgate_endpoint_up", Kind::Gauge, "1 if requests are sent to an endpoint, 0 while it is down or ejected."),
    ("tollgate_endpoint_requests_total", Kind::Counter, "Attempts of requests at an endpoint."),
    ("tollgate_endpoint_failures_total", Kind::Counter, "Attempts that failed at an endpoint, by how."),
    (
        "tollgate_endpoint_request_duration_seconds",
        Kind::Summary,
        "Duration from the connection to an endpoint to the end of the response.",
    ),
    ("tollgate_jwt_verifications_total", Kind::Counter, "Tokens by the result of their verification."),
    ("tollgate_jwks_last_success_timestamp_seconds", Kind::Gauge, "When the keys of an issuer were last fetched."),
    ("tollgate_llm_tokens_total", Kind::Counter, "Tokens that language models have used, by model and by kind."),
    ("tollgate_http_connections", Kind::Gauge, "Open client connections."),
    (
        "tollgate_response_buffers_bytes",
        Kind::Gauge,
        "Bytes of responses that are held at most for clients that do not read them.",
    ),
    ("tollgate_response_buffers_limit_bytes", Kind::Gauge, "How many there may be: `limits.response_buffers`."),
    (
        "tollgate_response_buffers_closed_total",
        Kind::Counter,
        "Responses given up because unread ones filled `limits.response_buffers`.",
    ),
    (
        "rate_limiter_usage_unread_total",
        Kind::Counter,
        "Requests to the path of `usage` that were refused because the store did not answer.",
    ),
    (
        "tollgate_admin_connections_closed_total",
        Kind::Counter,
        "Connections to the admin listener closed because there were too many.",
    ),
    (
        "tollgate_proxy_protocol_errors_total",
        Kind::Counter,
        "Connections closed because they did not begin with a valid PROXY protocol header.",
    ),
    (
        "tollgate_http2_errors_total",
        Kind::Counter,
        "Streams and connections of HTTP/2 that ended because their client has broken the protocol, or asked for too much.",
    ),
    (
        "tollgate_descriptors_total",
        Kind::Counter,
        "Descriptors of calls of the rate limit service, by whether a limit was found for them.",
    ),
    (
        "tollgate_descriptors_ignored_total",
        Kind::Counter,
        "Parts of descriptors that are not used: limits of the caller's own, and hits that it gives back.",
    ),
    (
        "tollgate_take_ids_total",
        Kind::Counter,
        "Ids of the door json: calls that repeat one, and ids that were forgotten before their time because of the memory.",
    ),
    ("tollgate_settled_holds_total", Kind::Counter, "Calls of the door json that settle, by result."),
    (
        "tollgate_decision_connections_closed_total",
        Kind::Counter,
        "Connections closed because their peer may not ask for decisions.",
    ),
    ("tollgate_tls_handshakes_total", Kind::Counter, "TLS handshakes by result."),
    (
        "tollgate_tls_certificate_expiry_timestamp_seconds",
        Kind::Gauge,
        "When a certificate that is presented to clients expires.",
    ),
    ("tollgate_config_reloads_total", Kind::Counter, "Reloads of changed files, by result."),
    ("tollgate_config_last_reload_successful", Kind::Gauge, "1 if the last reload of every file succeeded."),
    ("tollgate_config_loaded_timestamp_seconds", Kind::Gauge, "When the configuration in force was loaded."),
    (
        "tollgate_files_last_looked_at_timestamp_seconds",
        Kind::Gauge,
        "When files that are followed were last looked at.",
    ),
    ("tollgate_config_info", Kind::Gauge, "The configuration in force."),
    ("tollgate_list_entries", Kind::Gauge, "Entries of a list in a file."),
    (
        "tollgate_list_last_success_timestamp_seconds",
        Kind::Gauge,
        "When a list in a file was last read and put in force.",
    ),
    ("tollgate_access_log_dropped_total", Kind::Counter, "Access log lines that were not written."),
    ("tollgate_build_info", Kind::Gauge, "The version of this build."),
    ("tollgate_metric_exports_total", Kind::Counter, "Exports of metrics to a collector, by their result."),
    ("tollgate_trace_spans_sent_total", Kind::Counter, "Spans that the collector accepted."),
    ("tollgate_trace_spans_dropped_total", Kind::Counter, "Spans that did not reach the collector."),
    (
        "tollgate_traces_declined_total",
        Kind::Counter,
        "Requests not traced because more clients than allowed asked for it.",
    ),
];

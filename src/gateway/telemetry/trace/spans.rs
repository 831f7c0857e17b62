//! Makes the spans of a request from its access log line. Data from a client are in a span only if they are in this
//! line too.
//!
//! Attributes have the names of OpenTelemetry's HTTP conventions, or begin with `tollgate.`. The attributes `url.path`,
//! `url.query`, `client.address` and `user_agent.original` contain data of the client, and are left out.

use opentelemetry::trace::{SpanKind, Status};
use opentelemetry::{Array, InstrumentationScope, Key, KeyValue, SpanId, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::ended_request::{EndedRequest, UpstreamCall};
use super::span_ids::{SpanIds, context, integer, time};
use base::endpoint_address::EndpointAddress;
use base::time::Micros;
use decision::access_log_line::{Kind, LoggedAttempt, LoggedLimit, LoggedValue, Origin, Source};
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use stores::span_links::SpanLink;

/// Makes the spans of one request, from the span ids and the values of the request.
#[derive(Debug)]
pub(super) struct RequestSpans<'r> {
    pub ids: &'r SpanIds,
    pub request: &'r EndedRequest<'r>,
}

/// The values for the span of one failed attempt to send the request to the upstream.
pub(super) struct Attempt<'r> {
    /// The number of the attempt, counted from 0.
    number: usize,
    span: u64,
    failed: &'r LoggedAttempt<'r>,
    from: Micros,
    to: Micros,
}

/// The values of one span, without its attributes. Times are counted from the arrival of the head.
struct Outline {
    span: u64,
    parent: Option<u64>,
    kind: SpanKind,
    name: &'static str,
    from: Micros,
    to: Micros,
    status: Status,
}

impl RequestSpans<'_> {
    pub(super) fn request(&self, scope: InstrumentationScope) -> SpanData {
        let line = &self.request.line;
        let mut attributes = Attributes::default();
        attributes.add("http.request.method", self.method());
        attributes.add("url.scheme", self.request.scheme);
        attributes.add("http.response.status_code", i64::from(line.code));
        if let Some(address) = self.request.server {
            attributes.add("server.address", address.ip().to_string());
            attributes.add("server.port", i64::from(address.port()));
        }
        attributes.add("tollgate.request_id", line.request_id.to_string());
        attributes.add(
            "tollgate.origin",
            match line.origin {
                Origin::Gateway => "gateway",
                Origin::Upstream => "upstream",
            },
        );
        self.add_reason(&mut attributes);
        self.add_limit(&mut attributes);
        let status = attributes.status((line.code >= 500).then(|| line.code.to_string()));
        self.span(
            attributes,
            scope,
            Outline {
                span: self.ids.request,
                parent: self.ids.parent,
                kind: SpanKind::Server,
                name: self.name(),
                from: Micros(0),
                to: line.duration_us,
                status,
            },
        )
    }

    pub(super) fn decision(&self, scope: InstrumentationScope) -> SpanData {
        let line = &self.request.line;
        let mut attributes = Attributes::default();
        // A forwarded request has passed the decision, even if it was refused later because of its body.
        let refused = line.kind == Kind::Refused && self.request.upstream.is_none();
        attributes.add(
            "tollgate.outcome",
            match self.request.upstream {
                Some(_) => "passed",
                None if refused => "refused",
                None => "gone",
            },
        );
        self.add_limit(&mut attributes);
        if refused {
            self.add_reason(&mut attributes);
            attributes.add("http.response.status_code", i64::from(line.code));
        }
        if let Some(source) = line.source {
            attributes.add(
                "tollgate.source",
                match source {
                    Source::Store => "store",
                    Source::Cached => "cached",
                    Source::Fallback => "fallback",
                },
            );
        }
        if let Some(cost) = line.cost {
            attributes.add("tollgate.cost", tokens(cost));
        }
        if let Some(remaining) = line.remaining {
            attributes.add("tollgate.remaining", tokens(remaining));
        }
        if let Some(bucket) = line.bucket {
            attributes.add("tollgate.bucket", bucket.to_string());
        }
        if let Some(retry_after) = line.retry_after {
            attributes.add("tollgate.retry_after", i64::try_from(retry_after).unwrap_or(i64::MAX));
        }
        if !line.limits.is_empty() {
            let limits = line.limits.iter().map(limit).collect();
            attributes.add("tollgate.limits", Value::Array(Array::String(limits)));
        }
        for (attribute, value) in &line.attributes {
            let value = match value {
                LoggedValue::Single(name) => Value::from(name.to_string()),
                LoggedValue::List(names) => {
                    Value::Array(Array::String(names.iter().map(|name| name.to_string().into()).collect()))
                }
            };
            attributes.add(format!("tollgate.attribute.{attribute}"), value);
        }
        self.span(
            attributes,
            scope,
            Outline {
                span: self.ids.decision,
                parent: Some(self.ids.request),
                kind: SpanKind::Internal,
                name: "decide",
                from: Micros(0),
                to: self.decided(),
                status: Status::Unset,
            },
        )
    }

    /// Returns the span of the delay by a limit, which begins at the decision.
    pub(super) fn delay(&self, scope: InstrumentationScope) -> SpanData {
        let mut attributes = Attributes::default();
        self.add_limit(&mut attributes);
        self.span(
            attributes,
            scope,
            Outline {
                span: self.ids.delay,
                parent: Some(self.ids.request),
                kind: SpanKind::Internal,
                name: "wait",
                from: self.decided(),
                to: self.forwarded(),
                status: Status::Unset,
            },
        )
    }

    /// Returns the failed attempts before the last attempt, in their order.
    pub(super) fn failed_attempts(&self) -> Vec<Attempt<'_>> {
        let (mut from, mut attempts) = (self.forwarded(), Vec::new());
        let failed = self.request.line.failed_attempts.iter().zip(&self.ids.failed_attempts);
        for (number, (failed, span)) in failed.enumerate() {
            let to = failed.failed_us.min(self.request.line.duration_us);
            attempts.push(Attempt { number, span: *span, failed, from, to });
            from = to;
        }
        attempts
    }

    pub(super) fn failed_attempt(&self, attempt: &Attempt<'_>, scope: InstrumentationScope) -> SpanData {
        let mut attributes = Attributes::default();
        attributes.add("http.request.method", self.method());
        attributes.add_server(&attempt.failed.endpoint);
        attributes.add_resend_count(attempt.number);
        if let Ok(status) = attempt.failed.error.parse::<i64>() {
            attributes.add("http.response.status_code", status);
        }
        let status = attributes.status(Some(attempt.failed.error.to_string()));
        self.span(
            attributes,
            scope,
            Outline {
                span: attempt.span,
                parent: Some(self.ids.request),
                kind: SpanKind::Client,
                name: self.name(),
                from: attempt.from,
                to: attempt.to,
                status,
            },
        )
    }

    pub(super) fn upstream(&self, upstream: &UpstreamCall<'_>, scope: InstrumentationScope) -> SpanData {
        let mut attributes = Attributes::default();
        attributes.add("http.request.method", self.method());
        attributes.add("server.address", upstream.host.to_string());
        if let Some(port) = upstream.port {
            attributes.add("server.port", i64::from(port));
        }
        attributes.add_resend_count(self.request.line.failed_attempts.len());
        if let Some(status) = upstream.status {
            attributes.add("http.response.status_code", i64::from(status));
        }
        // In the conventions, a 4xx status is an error for a client span, but not for a server span.
        let status = upstream.status.filter(|status| *status >= 400).map(|status| status.to_string());
        let error = upstream.error.map(|error| error.name().to_owned()).or(status);
        let status = attributes.status(error);
        self.span(
            attributes,
            scope,
            Outline {
                span: self.ids.upstream,
                parent: Some(self.ids.request),
                kind: SpanKind::Client,
                name: self.name(),
                from: self.failed_attempts().last().map_or_else(|| self.forwarded(), |failed| failed.to),
                to: self.request.line.duration_us,
                status,
            },
        )
    }

    fn add_reason(&self, attributes: &mut Attributes) {
        if let Some(reason) = &self.request.line.reason {
            attributes.add("tollgate.reason", reason.to_string());
        }
    }

    /// Adds the policy and the rule that decided about the request.
    fn add_limit(&self, attributes: &mut Attributes) {
        if let Some(policy) = &self.request.line.policy {
            attributes.add("tollgate.policy", policy.to_string());
        }
        if let Some(rule) = &self.request.line.rule {
            attributes.add("tollgate.rule", rule.to_string());
        }
    }

    /// Returns the time from the arrival of the head to the decision.
    fn decided(&self) -> Micros {
        self.request.line.decision_us.unwrap_or_default().min(self.request.line.duration_us)
    }

    /// Returns the time from the arrival of the head to the moment at which the request was forwarded to the upstream.
    fn forwarded(&self) -> Micros {
        let waited = self.request.line.waited_us.unwrap_or_default();
        self.decided().plus(waited).min(self.request.line.duration_us)
    }

    /// Returns the method, or `_OTHER` if it is not in the closed list, as the conventions require.
    fn method(&self) -> &'static str {
        match crate::gateway::telemetry::labels::method(&self.request.line.method) {
            "OTHER" => "_OTHER",
            known => known,
        }
    }

    fn name(&self) -> &'static str {
        match self.method() {
            "_OTHER" => "HTTP",
            known => known,
        }
    }

    fn span(&self, attributes: Attributes, scope: InstrumentationScope, outline: Outline) -> SpanData {
        let parent = outline.parent.map(|parent| SpanId::from_bytes(parent.to_be_bytes()));
        SpanData {
            span_context: context(SpanLink { trace: self.ids.trace, span: outline.span }),
            parent_span_id: parent.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: parent.is_some() && outline.kind == SpanKind::Server,
            span_kind: outline.kind,
            name: outline.name.into(),
            start_time: time(self.request.line.time, outline.from),
            end_time: time(self.request.line.time, outline.to),
            attributes: attributes.0,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: outline.status,
            instrumentation_scope: scope,
        }
    }
}

#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn add(&mut self, name: impl Into<Key>, value: impl Into<Value>) {
        self.0.push(KeyValue::new(name, value));
    }

    /// Adds the server address of an attempt: an IP address with its port, or the path of a Unix domain socket.
    fn add_server(&mut self, endpoint: &EndpointAddress) {
        match endpoint {
            EndpointAddress::Inet(address) => {
                self.add("server.address", address.ip().to_string());
                self.add("server.port", i64::from(address.port()));
            }
            EndpointAddress::Unix(path) => self.add("server.address", path.display().to_string()),
        }
    }

    /// Adds the number of earlier attempts.
    fn add_resend_count(&mut self, before: usize) {
        if before > 0 {
            self.add("http.request.resend_count", integer(before));
        }
    }

    /// Returns the status of the span. An error is also added as an attribute.
    fn status(&mut self, error: Option<String>) -> Status {
        match error {
            Some(error) => {
                self.add("error.type", error);
                Status::error("")
            }
            None => Status::Unset,
        }
    }
}

/// Formats a limit of the log line, for example `plan/free enforce allow`.
fn limit(logged: &LoggedLimit<'_>) -> StringValue {
    let verdict = match logged.verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
        Verdict::Held => "held",
        Verdict::Banned => "banned",
        Verdict::Never => "never",
        Verdict::Unasked => "unasked",
    };
    format!("{}/{} {} {verdict}", logged.policy, logged.rule, logged.mode.name()).into()
}

#[expect(clippy::cast_precision_loss, reason = "no precision is lost below 2^50 thousandths")]
fn tokens(cost: Cost) -> f64 {
    cost.thousandths() as f64 / 1000.0
}

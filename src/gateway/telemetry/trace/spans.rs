//! Makes the spans of a request of a line of the access log: what is not in the one is not in the others.
//!
//! Names are those of OpenTelemetry's conventions for HTTP where it has one, and begin with `tollgate.` otherwise. Its
//! `url.path`, `url.query`, `client.address` and `user_agent.original` are a client's words, and are left out.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanKind, Status};
use opentelemetry::{Array, InstrumentationScope, Key, KeyValue, SpanId, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::Onward;
use super::request_trace::Followed;
use super::store_span::identity;
use crate::access_log_line::{Asked, Kind, Line, Origin, Source};
use crate::base::time::{Micros, Timestamp};
use crate::limit::cost::Cost;
use crate::limit::outcome::Verdict;
use crate::store::span_links::SpanLink;

/// A request that has ended.
#[derive(Debug)]
pub struct Journey<'j> {
    pub followed: &'j Followed,
    pub line: &'j Line<'j>,
    /// Which of ours it came to.
    pub address: Option<SocketAddr>,
    /// On the wall's clock.
    pub began: Timestamp,
    /// None: it was not let through.
    pub onward: Option<Onward>,
}

/// What is different from span to span.
struct Part {
    span: u64,
    parent: Option<u64>,
    kind: SpanKind,
    name: &'static str,
    from: Micros,
    to: Micros,
    status: Status,
}

impl Journey<'_> {
    pub fn request(&self, scope: InstrumentationScope) -> SpanData {
        let line = self.line;
        let mut told = Told::default();
        told.add("http.request.method", self.method());
        told.add("url.scheme", "http");
        told.add("http.response.status_code", i64::from(line.code));
        if let Some(address) = self.address {
            told.add("server.address", address.ip().to_string());
            told.add("server.port", i64::from(address.port()));
        }
        told.add("tollgate.request_id", line.request_id.to_string());
        told.add(
            "tollgate.origin",
            match line.origin {
                Origin::Gateway => "gateway",
                Origin::Upstream => "upstream",
            },
        );
        self.add_reason(&mut told);
        self.add_limit(&mut told);
        let status = told.end((line.code >= 500).then(|| line.code.to_string()));
        self.span(
            told,
            scope,
            Part {
                span: self.followed.request,
                parent: self.followed.parent,
                kind: SpanKind::Server,
                name: self.name(),
                from: Micros(0),
                to: line.duration_us,
                status,
            },
        )
    }

    pub fn decision(&self, scope: InstrumentationScope) -> SpanData {
        let line = self.line;
        let mut told = Told::default();
        // What was let through may be refused later, for its body.
        let refused = line.kind == Kind::Refused && self.onward.is_none();
        told.add(
            "tollgate.outcome",
            match self.onward {
                Some(_) => "passed",
                None if refused => "refused",
                None => "gone",
            },
        );
        self.add_limit(&mut told);
        if refused {
            self.add_reason(&mut told);
            told.add("http.response.status_code", i64::from(line.code));
        }
        if let Some(source) = line.source {
            told.add(
                "tollgate.source",
                match source {
                    Source::Store => "store",
                    Source::Cached => "cached",
                    Source::Fallback => "fallback",
                },
            );
        }
        if let Some(cost) = line.cost {
            told.add("tollgate.cost", tokens(cost));
        }
        if let Some(remaining) = line.remaining {
            told.add("tollgate.remaining", tokens(remaining));
        }
        if let Some(bucket) = line.bucket {
            told.add("tollgate.bucket", bucket.to_string());
        }
        if let Some(retry_after) = line.retry_after {
            told.add("tollgate.retry_after", i64::try_from(retry_after).unwrap_or(i64::MAX));
        }
        if !line.limits.is_empty() {
            let limits = line.limits.iter().map(limit).collect();
            told.add("tollgate.limits", Value::Array(Array::String(limits)));
        }
        for (attribute, name) in &line.attributes {
            told.add(format!("tollgate.attribute.{attribute}"), name.to_string());
        }
        self.span(
            told,
            scope,
            Part {
                span: self.followed.decision,
                parent: Some(self.followed.request),
                kind: SpanKind::Internal,
                name: "decide",
                from: Micros(0),
                to: self.decided(),
                status: Status::Unset,
            },
        )
    }

    pub fn upstream(&self, onward: Onward, scope: InstrumentationScope) -> SpanData {
        let upstream = &self.followed.snapshot.config.upstream;
        let mut told = Told::default();
        told.add("http.request.method", self.method());
        told.add("server.address", upstream.host.clone());
        told.add("server.port", i64::from(upstream.port));
        if let Some(code) = onward.code {
            told.add("http.response.status_code", i64::from(code));
        }
        // To a caller also a 4xx is an error, unlike to who answers with one.
        let answer = onward.code.filter(|code| *code >= 400).map(|code| code.to_string());
        let error = onward.error.map(|error| error.name().to_owned()).or(answer);
        let status = told.end(error);
        self.span(
            told,
            scope,
            Part {
                span: self.followed.upstream,
                parent: Some(self.followed.request),
                kind: SpanKind::Client,
                name: self.name(),
                from: self.decided(),
                to: self.line.duration_us,
                status,
            },
        )
    }

    fn add_reason(&self, told: &mut Told) {
        if let Some(reason) = &self.line.reason {
            told.add("tollgate.reason", reason.to_string());
        }
    }

    /// The one that the client felt.
    fn add_limit(&self, told: &mut Told) {
        if let (Some(policy), Some(rule)) = (&self.line.policy, &self.line.rule) {
            told.add("tollgate.policy", policy.to_string());
            told.add("tollgate.rule", rule.to_string());
        }
    }

    fn decided(&self) -> Micros {
        self.line.decision_us.unwrap_or_default().min(self.line.duration_us)
    }

    /// One of those that are known, as the conventions have it.
    fn method(&self) -> &'static str {
        match crate::gateway::telemetry::labels::method(&self.line.method) {
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

    fn span(&self, told: Told, scope: InstrumentationScope, part: Part) -> SpanData {
        let known = part.parent.map(|parent| SpanId::from_bytes(parent.to_be_bytes()));
        SpanData {
            span_context: identity(SpanLink { trace: self.followed.trace, span: part.span }),
            parent_span_id: known.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: known.is_some() && part.kind == SpanKind::Server,
            span_kind: part.kind,
            name: part.name.into(),
            start_time: at(self.began, part.from),
            end_time: at(self.began, part.to),
            attributes: told.0,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: part.status,
            instrumentation_scope: scope,
        }
    }
}

#[derive(Default)]
struct Told(Vec<KeyValue>);

impl Told {
    fn add(&mut self, name: impl Into<Key>, value: impl Into<Value>) {
        self.0.push(KeyValue::new(name, value));
    }

    /// How the span ends, whose error is told with it.
    fn end(&mut self, error: Option<String>) -> Status {
        match error {
            Some(error) => {
                self.add("error.type", error);
                Status::error("")
            }
            None => Status::Unset,
        }
    }
}

/// `plan/free enforce allow`.
fn limit(asked: &Asked<'_>) -> StringValue {
    let verdict = match asked.verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
        Verdict::Never => "never",
        Verdict::Unasked => "unasked",
    };
    format!("{}/{} {} {verdict}", asked.policy, asked.rule, asked.mode.name()).into()
}

#[expect(clippy::cast_precision_loss, reason = "below 2^50 thousandths there is none")]
fn tokens(cost: Cost) -> f64 {
    cost.thousandths() as f64 / 1000.0
}

pub fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub fn at(moment: Timestamp, later: Micros) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from(Micros(moment.0)) + Duration::from(later)
}

//! Holds what Envoy's doors share: the settings of a call, its record, and the conversion of fields to messages.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue as FieldValue;

use super::messages::{HeaderValue, HeaderValueOption};
use crate::gateway::decision_api::DecisionApi;
use crate::gateway::decision_api::call::Call;
use crate::gateway::enforcement::{Arrival, Decision, Direction, Patience, RefusalResponse, RequestPurpose};
use crate::gateway::response::field_lines::FieldLines;
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::response::problem::{ProblemResponse, Recipient};
use crate::gateway::response::ratelimit_fields::RateLimitFields;
use crate::gateway::state::snapshot::Snapshot;
use config::{Decide, RefuseWith};
use decision::cors::CorsAnswer;
use decision::refusal::Refusal;
use request::door::Door;
use request::request::Request;

/// The values that are needed to answer a gRPC call, in addition to its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnvoyCall<'c> {
    pub api: &'c DecisionApi,
    pub snapshot: &'c Arc<Snapshot>,
    pub settings: &'c Decide,
}

impl EnvoyCall<'_> {
    /// Records that a call was refused because the request in it could not be read.
    pub(crate) fn refuse_unread(&self, call: &mut Call<'_>, door: Door, refusal: &Refusal) {
        call.record_at_least(self.snapshot, call.peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), door);
        if let Some(record) = &mut call.record {
            record.refuse(refusal, None);
        }
    }

    /// Counts and records a refusal. Returns the response that the gateway would send to the client of the request.
    pub(crate) fn refuse(
        &self,
        call: &mut Call<'_>,
        refused: &RefusalResponse,
        request: &Request<'_>,
        cors: Option<&CorsAnswer>,
    ) -> OwnResponse {
        let refusal = &refused.refusal;
        self.api.gateway.metrics.http.count_refusal(refusal.reason);
        if let Some(record) = &mut call.record {
            record.refuse(refusal, refused.denied_by);
        }
        let pages = self.snapshot.config.error_pages.as_deref().filter(|_| request.door == Door::ExtAuthz);
        let page = pages.and_then(|pages| pages.find(Some(request), refusal.status)).map(|(_, page)| page);
        let recipient = Recipient::Edge(RefuseWith::Decided);
        ProblemResponse { page, cors, recipient, ..refused.problem() }.response(request.head, &call.request_id)
    }

    /// Logs that a call could not be read, for the operator of the other proxy. `what` describes the fault.
    pub(crate) fn report_unusable(&self, call: &Call<'_>, what: &str) {
        let Some(calls) = self.api.shared.unusable_calls.admit(self.api.gateway.clock.now()) else { return };
        let request_id = call.request_id.to_str().unwrap_or_default();
        log::warn!(what, calls, request_id; "call of a door of Envoy answered with an error: it cannot be read");
    }

    /// Returns the values with which the rules decide about the call. Limits may not delay the request.
    pub(crate) fn arrival(&self, call: &Call<'_>, door: Door, purpose: RequestPurpose) -> Arrival {
        let caller = call.caller();
        let patience = Patience::AtOnce { answer_within: self.settings.answer_within_at(door) };
        let (worker, at, direction) = (self.api.worker, call.started, Direction::Right);
        Arrival { worker, at, caller, direction, purpose, patience, hold: None }
    }

    /// Returns whether the call is logged or traced.
    pub(crate) fn records(&self, call: &Call<'_>) -> bool {
        call.is_recorded(self.snapshot)
    }
}

/// Returns the fields that the other proxy should add to the response, if the request passes. The request's id is not
/// among them.
pub(crate) fn fields(passed: &Decision) -> FieldLines {
    let rate_limits: Option<&RateLimitFields> = match passed {
        Decision::Pass(fields) => fields.as_deref(),
        Decision::Delay(delayed) => Some(&delayed.fields),
        Decision::Refuse(_) | Decision::Preflight | Decision::Usage(_) | Decision::Gone => None,
    };
    let mut fields = FieldLines::default();
    if let Some(rate_limits) = rate_limits {
        rate_limits.unmerged().write(&mut fields);
    }
    fields
}

/// Converts the fields of a response to gRPC messages. `Content-Length` is left out, because the other proxy writes it.
pub(crate) fn values(fields: &FieldLines) -> Vec<HeaderValue> {
    let sent = fields.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(b"content-length"));
    sent.map(|(name, value)| {
        let key = String::from_utf8_lossy(name).to_ascii_lowercase();
        match FieldValue::from_bytes(value).as_ref().map(FieldValue::to_str) {
            Ok(Ok(text)) => HeaderValue { key, value: text.to_owned(), raw_value: Bytes::new() },
            _ => HeaderValue { key, value: String::new(), raw_value: Bytes::copy_from_slice(value) },
        }
    })
    .collect()
}

/// Converts the fields of a response to the options of a `CheckResponse`. `append` says whether Envoy adds a field to present
/// fields of the same name.
pub(crate) fn options(fields: &FieldLines, append: Option<bool>) -> Vec<HeaderValueOption> {
    values(fields).into_iter().map(|header| HeaderValueOption { header: Some(header), append }).collect()
}

/// Counts the items of an iterator, as a number for a metric.
pub(crate) fn count(items: impl Iterator) -> u64 {
    u64::try_from(items.count()).unwrap_or(u64::MAX)
}

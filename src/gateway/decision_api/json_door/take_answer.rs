//! Makes the answer to a call of `/take`: the response with its JSON body.

use bytes::Bytes;
use http::HeaderValue;
use serde::Serialize;

use crate::gateway::enforcement::{Decision, RefusalResponse};
use crate::gateway::response::allowed;
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::response::problem::{ProblemResponse, Recipient};
use crate::gateway::response::ratelimit_fields::RateLimitFields;
use config::RefuseWith;
use decision::payment::Payment;
use decision::refusal::Refusal;
use decision::take_report::TakeReport;
use rules::denier::DenierId;
use rules::rule_set::RuleSet;

/// The answer to a call, in the form in which it is remembered.
#[derive(Clone, Debug)]
pub(super) struct TakeAnswer {
    pub response: OwnResponse,
    /// The refusal and the rule or policy whose `deny` refused the call. `None` if the call takes what it asks for.
    pub refusal: Option<(Refusal, Option<DenierId>)>,
}

impl TakeAnswer {
    /// Makes the answer of a decision. `payment` is `None` if no limit was checked. Returns `None` if the caller has left
    /// before the decision.
    pub(super) fn new(
        decision: Decision,
        payment: Option<&Payment>,
        rules: &RuleSet,
        request_id: &HeaderValue,
        hold_id: Option<String>,
    ) -> Option<TakeAnswer> {
        let report = |allowed| TakeReport::new(allowed, payment, rules);
        let allowed = |fields: Option<&RateLimitFields>| {
            let mut response = allowed::response(fields, request_id);
            response.fields.add("Cache-Control", b"no-store");
            let report = TakeReport { hold_id: hold_id.clone(), ..report(true) };
            TakeAnswer { response: with_body(response, &report), refusal: None }
        };
        match decision {
            Decision::Pass(fields) => Some(allowed(fields.as_deref())),
            // At this door, limits do not delay requests, so this does not happen.
            Decision::Delay(delayed) => Some(allowed(Some(&delayed.fields))),
            Decision::Refuse(refused) => {
                let recipient = Recipient::Edge(RefuseWith::Decided);
                let response = ProblemResponse { recipient, ..refused.problem() }.response_to_unread(request_id);
                let RefusalResponse { refusal, denied_by, .. } = *refused;
                let response = with_body(response, &report(false));
                Some(TakeAnswer { response, refusal: Some((refusal, denied_by)) })
            }
            // At this door neither preflights nor questions are answered, so only `Gone` happens.
            Decision::Preflight | Decision::Usage(_) | Decision::Gone => None,
        }
    }

    /// Returns the memory that the texts of the answer need, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.response.fields.as_bytes().len() + self.response.body.len()
    }

    /// Returns the answer for a repeated call with its own request id.
    pub(super) fn repeated(&self, request_id: &HeaderValue) -> TakeAnswer {
        let mut answer = self.clone();
        answer.response.fields.set("X-Request-Id", request_id.as_bytes());
        // The rules may have changed since the first call.
        answer.refusal = answer.refusal.map(|(refusal, _)| (refusal, None));
        answer
    }
}

/// Replaces the body of a response by this value.
pub(super) fn with_body(mut response: OwnResponse, value: &impl Serialize) -> OwnResponse {
    // Such a value can always be written.
    response.body = Bytes::from(serde_json::to_vec(value).unwrap_or_default());
    response.fields.set("Content-Type", b"application/json");
    response.fields.set("Content-Length", itoa::Buffer::new().format(response.body.len()).as_bytes());
    response
}

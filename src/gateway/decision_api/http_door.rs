//! The door `http`: answers a call of `/decide` with 200, or with the refusal for the client of the request.

use std::net::IpAddr;
use std::sync::Arc;

use super::call::Call;
use super::original_request::{CallError, DECIDE, DescribedRequest, read};
use crate::gateway::enforcement::request_record::RequestRecord;
use crate::gateway::enforcement::{
    Arrival, Decision, DecisionFindings, Direction, Patience, PaymentRecord, RequestPurpose, decide_for_edge,
};
use crate::gateway::response::allowed;
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::response::problem::{ProblemResponse, Recipient};
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::state::snapshot::Snapshot;
use config::{Decide, RefuseWith};
use decision::cors::CorsAnswer;
use decision::refusal::Refusal;
use request::door::Door;
use request::request::Request;
use request::scheme::SchemeSource;

/// Returns whether this path is `/decide` or a path below it.
pub(super) fn is_path(path: &str) -> bool {
    path.strip_prefix(DECIDE).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers a call of `/decide` from `peer`. `settings` are the settings of the listener that has received the call.
///
/// # Errors
/// If the peer has disconnected.
pub(super) async fn answer(
    call: &mut Call<'_>,
    snapshot: &Arc<Snapshot>,
    (peer, settings): (IpAddr, &Decide),
) -> Result<OwnResponse, ClientFault> {
    let (api, config) = (call.api, &snapshot.config);
    let client = config.client_ip.client_of_trusted(peer, &call.head.headers);
    call.trace = api.gateway.tracer.begin(&call.head.headers, call.started);
    let recorded = call.is_recorded(snapshot);
    let DescribedRequest { head, scheme } = match read(&call.head, settings.original_request, config) {
        Ok(described) => described,
        Err(error) => {
            let scheme = SchemeSource::Connection(call.scheme());
            call.record = recorded.then(|| Box::new(call.new_record(snapshot, Door::Http, client, scheme)));
            return Ok(answer_unread(call, settings, error));
        }
    };
    let (head, scheme) = (Box::new(head), SchemeSource::Connection(scheme));
    let request = Request::new(&head, client).with_scheme(scheme).with_door(Door::Http);
    let request = request.with_listener(config.listener_name(call.connection.listener()));
    let cors = config.cors.as_ref().and_then(|cors| cors.answer(&request));
    let purpose = match &cors {
        Some(CorsAnswer { preflight: Some(_), .. }) => RequestPurpose::PreflightElsewhere,
        _ => RequestPurpose::Ordinary,
    };
    let caller = call.caller();
    let patience = Patience::AtOnce { answer_within: settings.answer_within_at(Door::Http) };
    // `Right`, because the client's TLS connection ends at the other proxy and cannot be compared with the host here.
    let (at, direction) = (call.started, Direction::Right);
    let arrival = Arrival { worker: api.worker, at, caller, direction, purpose, patience, hold: None };
    let keep = if recorded { PaymentRecord::Keep } else { PaymentRecord::Discard };
    let findings = decide_for_edge(&api.gateway, snapshot, &request, arrival, keep, &api.shared.http).await;
    let DecisionFindings { decision, identity, payment, .. } = findings;
    if recorded {
        let decided = api.gateway.clock.now().since(call.started);
        let record = call.new_record(snapshot, Door::Http, client, scheme);
        call.record = Some(Box::new(RequestRecord { identity, payment, decision: Some(decided), ..record }));
    }
    if let Decision::Refuse(response) = &decision {
        api.gateway.metrics.http.count_refusal(response.refusal.reason);
        if let Some(record) = &mut call.record {
            record.refuse(&response.refusal, response.denied_by);
        }
    }
    let id = &call.request_id;
    let response = match decision {
        Decision::Pass(fields) => allowed::response(fields.as_deref(), id),
        // At this door, limits do not delay requests, so this does not happen.
        Decision::Delay(delayed) => allowed::response(Some(&delayed.fields), id),
        Decision::Refuse(response) => {
            let pages = config.error_pages.as_deref();
            let page =
                pages.and_then(|pages| pages.find(Some(&request), response.refusal.status)).map(|(_, page)| page);
            let recipient = Recipient::Edge(settings.refuse_with);
            let problem = ProblemResponse { page, cors: cors.as_ref(), recipient, ..response.problem() };
            problem.response(&call.head, id)
        }
        // At this door neither preflights nor questions are answered, so only `Gone` happens.
        Decision::Preflight | Decision::Usage(_) | Decision::Gone => {
            call.described = Some(head);
            return Err(ClientFault::Gone);
        }
    };
    call.described = Some(head);
    call.answered = true;
    Ok(response)
}

/// Answers a call that does not describe a request.
fn answer_unread(call: &mut Call<'_>, settings: &Decide, error: CallError) -> OwnResponse {
    let (refusal, refuse_with) = match error {
        CallError::NotFound => {
            let problem =
                ProblemResponse { recipient: Recipient::Edge(RefuseWith::Decided), ..ProblemResponse::fault(404) };
            return problem.response(&call.head, &call.request_id);
        }
        CallError::PathMissing => {
            report_unusable(call, "the path after /decide");
            (Refusal::bad_request(400), RefuseWith::Decided)
        }
        // `refuse_with` is not applied here, because a refusal would hide that the other proxy is configured wrongly.
        CallError::Unusable(field) => {
            report_unusable(call, field.as_str());
            (Refusal::bad_request(400), RefuseWith::Decided)
        }
        CallError::Refused(refusal) => (refusal, settings.refuse_with),
    };
    call.api.gateway.metrics.http.count_refusal(refusal.reason);
    if let Some(record) = &mut call.record {
        record.refuse(&refusal, None);
    }
    let problem = ProblemResponse { recipient: Recipient::Edge(refuse_with), ..ProblemResponse::refusal(&refusal) };
    problem.response(&call.head, &call.request_id)
}

/// Logs which part of a call is missing, ambiguous or invalid. An operator of the other proxy has to correct this.
fn report_unusable(call: &Call<'_>, part: &str) {
    let Some(calls) = call.api.shared.unusable_calls.admit(call.api.gateway.clock.now()) else { return };
    let request_id = call.request_id.to_str().unwrap_or_default();
    log::warn!(part, calls, request_id; "call of /decide answered 400: a part is missing, repeated or unusable");
}

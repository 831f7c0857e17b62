//! The door `http`: answers a call of `/decide` with 200, or with the refusal that the client of the request would get.

use std::net::IpAddr;
use std::sync::Arc;

use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};

use super::DecisionApi;
use super::call::{Call, new_record};
use super::original_request::{CallError, DECIDE, DescribedRequest, read};
use crate::gateway::enforcement::request_record::RequestRecord;
use crate::gateway::enforcement::{
    Arrival, Decision, DecisionFindings, Direction, Patience, PaymentRecord, RequestPurpose, decide_for_edge,
};
use crate::gateway::response::allowed;
use crate::gateway::response::problem::{ProblemResponse, Recipient};
use crate::gateway::server::session;
use crate::gateway::state::snapshot::Snapshot;
use config::{Decide, RefuseWith};
use decision::cors::CorsAnswer;
use decision::refusal::Refusal;
use request::door::Door;
use request::request::Request;
use request::scheme::SchemeSource;

/// Whether the path is that of a call at this door.
pub fn is_path(path: &str) -> bool {
    path.strip_prefix(DECIDE).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers a call from this peer, to a listener with these settings.
///
/// # Errors
/// When the peer has disconnected.
pub async fn answer(
    api: &DecisionApi,
    session: &mut Session,
    call: &mut Call,
    snapshot: &Arc<Snapshot>,
    (peer, settings): (IpAddr, &Decide),
) -> Result<()> {
    let config = &snapshot.config;
    let client = config.client_ip.client_of_trusted(peer, &session.req_header().headers);
    call.trace = api.gateway.tracer.begin(&session.req_header().headers, call.started);
    let recorded = snapshot.access_log.is_some() || call.trace.is_sampled();
    let DescribedRequest { head, scheme } = match read(session.req_header(), settings.original_request, config) {
        Ok(described) => described,
        Err(error) => {
            let scheme = SchemeSource::Connection(call.scheme(session));
            call.record = recorded.then(|| Box::new(new_record(snapshot, call, Door::Http, client, scheme)));
            return answer_unread(api, session, call, settings, error).await;
        }
    };
    let (head, scheme) = (Box::new(head), SchemeSource::Connection(scheme));
    let request = Request::new(&head, client).with_scheme(scheme).with_door(Door::Http);
    let request = request.with_listener(config.listener_name(call.listener()));
    let cors = config.cors.as_ref().and_then(|cors| cors.answer(&request));
    let purpose = match &cors {
        Some(CorsAnswer { preflight: Some(_), .. }) => RequestPurpose::PreflightElsewhere,
        _ => RequestPurpose::Ordinary,
    };
    let caller = call.trace.link(session::caller(session, call.connection.as_ref()));
    let patience = Patience::AtOnce { answer_within: settings.answer_within };
    // Whose certificate the connection was made for says nothing about the host of the request.
    let (at, direction) = (call.started, Direction::Right);
    let arrival = Arrival { worker: api.worker, at, caller, direction, purpose, patience };
    let keep = if recorded { PaymentRecord::Keep } else { PaymentRecord::Discard };
    let findings = decide_for_edge(&api.gateway, snapshot, &request, arrival, keep, &api.shared.http).await;
    let DecisionFindings { decision, identity, payment, .. } = findings;
    if recorded {
        let decided = api.gateway.clock.now().since(call.started);
        let record = new_record(snapshot, call, Door::Http, client, scheme);
        call.record = Some(Box::new(RequestRecord { identity, payment, decision: Some(decided), ..record }));
    }
    if let Decision::Refuse(response) = &decision {
        api.gateway.metrics.http.count_refusal(response.refusal.reason);
        if let Some(record) = &mut call.record {
            record.refuse(&response.refusal, response.denied_by);
        }
    }
    let (id, pending) = (&call.request_id, call.pending_fields());
    let written = match decision {
        Decision::Pass(fields) => allowed::write(session, fields.as_deref(), id, pending, api.reuse()).await,
        // It would have been refused: no limit lets a request of this door wait.
        Decision::Delay(delayed) => allowed::write(session, Some(&delayed.fields), id, pending, api.reuse()).await,
        Decision::Refuse(response) => {
            let pages = config.error_pages.as_deref();
            let page =
                pages.and_then(|pages| pages.find(Some(&request), response.refusal.status)).map(|(_, page)| page);
            let recipient = Recipient::Edge(settings.refuse_with);
            let problem = ProblemResponse { page, cors: cors.as_ref(), recipient, ..response.problem() };
            problem.write(session, id, pending, api.reuse()).await
        }
        // No preflight is answered here.
        Decision::Preflight | Decision::Gone => Err(Error::new_down(ErrorType::ConnectionClosed)),
    };
    call.head = Some(head);
    call.answered = written.is_ok();
    written
}

/// Answers a call that does not describe a request.
async fn answer_unread(
    api: &DecisionApi,
    session: &mut Session,
    call: &mut Call,
    settings: &Decide,
    error: CallError,
) -> Result<()> {
    let (refusal, refuse_with) = match error {
        CallError::NotFound => {
            let problem =
                ProblemResponse { recipient: Recipient::Edge(RefuseWith::Decided), ..ProblemResponse::fault(404) };
            return problem.write(session, &call.request_id, call.pending_fields(), api.reuse()).await;
        }
        CallError::PathMissing => {
            api.report_unusable(call, "the path after /decide");
            (Refusal::bad_request(400), RefuseWith::Decided)
        }
        // As it is: that of a refusal would hide that the other proxy is wrong.
        CallError::Unusable(field) => {
            api.report_unusable(call, field.as_str());
            (Refusal::bad_request(400), RefuseWith::Decided)
        }
        CallError::Refused(refusal) => (refusal, settings.refuse_with),
    };
    api.gateway.metrics.http.count_refusal(refusal.reason);
    if let Some(record) = &mut call.record {
        record.refuse(&refusal, None);
    }
    let problem = ProblemResponse { recipient: Recipient::Edge(refuse_with), ..ProblemResponse::refusal(&refusal) };
    problem.write(session, &call.request_id, call.pending_fields(), api.reuse()).await
}

impl DecisionApi {
    /// Logs the part of a call that is missing, ambiguous or invalid, which an operator of the other proxy has to correct.
    fn report_unusable(&self, call: &Call, part: &str) {
        let Some(calls) = self.shared.unusable_calls.admit(self.gateway.clock.now()) else { return };
        let request_id = call.request_id.to_str().unwrap_or_default();
        log::warn!(part, calls, request_id; "call of /decide answered 400: a part is missing, repeated or unusable");
    }
}

//! Answers the calls of each service.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue as FieldValue;
use http::header::{CONTENT_LENGTH, DATE};
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use super::authorization::{self, AskedRequest, Unusable};
use super::frame::FrameError;
use super::messages::{
    CheckRequest, CheckResponse, Code, DeniedResponse, HeaderValue, HeaderValueOption, HealthCheckRequest,
    HealthCheckResponse, HttpStatus, OkResponse, RateLimitRequest, RateLimitResponse, RpcStatus, ServingStatus,
};
use super::{Reply, Status, frame, gone, rate_limit, read_body, respond};
use crate::gateway::decision_api::DecisionApi;
use crate::gateway::decision_api::call::Call;
use crate::gateway::decision_api::http_door::new_record;
use crate::gateway::decision_api::original_request::{DescribedRequest, describe};
use crate::gateway::enforcement::descriptors::{CallFindings, decide_descriptors};
use crate::gateway::enforcement::request_record::{RecordedTls, RequestRecord};
use crate::gateway::enforcement::{
    Arrival, Decision, DecisionFindings, Direction, Patience, PaymentRecord, RefusalResponse, RequestPurpose,
    decide_for_edge,
};
use crate::gateway::response::problem::{ProblemResponse, Recipient};
use crate::gateway::response::ratelimit_fields::RateLimitFields;
use crate::gateway::response::request_id;
use crate::gateway::response::response_fields::ResponseFields;
use crate::gateway::server::session;
use crate::gateway::state::snapshot::Snapshot;
use base::time::Micros;
use config::{Decide, RefuseWith};
use decision::cors::CorsAnswer;
use decision::reason::Reason;
use decision::refusal::Refusal;
use request::door::Door;
use request::request::{ClientAddress, Request};
use request::scheme::{Scheme, SchemeSource};
use request::sent_descriptor::SentDescriptor;

/// Envoy waits 20 ms for an answer, and then decides by itself.
const ANSWER_WITHIN: Micros = Micros(15_000);

/// More than any proxy sends.
const MOST_DESCRIPTORS: usize = 128;
const MOST_ENTRIES: usize = 64;

const RATE_LIMIT: &str = "envoy.service.ratelimit.v3.RateLimitService";
const AUTHORIZATION: &str = "envoy.service.auth.v3.Authorization";

/// The context of a call, besides its message.
struct CallContext<'c> {
    api: &'c DecisionApi,
    snapshot: &'c Arc<Snapshot>,
    settings: &'c Decide,
}

/// The door of a call of this method, whatever it asks for.
pub fn door(path: &str, settings: &Decide) -> Door {
    let service = path.strip_prefix('/').and_then(|path| path.split_once('/')).map_or("", |(service, _)| service);
    let named = match service {
        RATE_LIMIT => Some(Door::Rls),
        AUTHORIZATION => Some(Door::ExtAuthz),
        _ => None,
    };
    let has = |door: &Door| settings.doors.contains(door);
    named.filter(has).or_else(|| settings.doors.first().copied()).unwrap_or(Door::Http)
}

/// Answers a call to a listener with these settings.
///
/// # Errors
/// When the other proxy has disconnected.
pub async fn answer(
    api: &DecisionApi,
    session: &mut Session,
    call: &mut Call,
    snapshot: &Arc<Snapshot>,
    settings: &Decide,
) -> Result<()> {
    call.trace = api.gateway.tracer.begin(&session.req_header().headers, call.started);
    let context = CallContext { api, snapshot, settings };
    let has = |door| settings.doors.contains(&door);
    let within = snapshot.config.bounds.body_timeout;
    let path = session.req_header().uri.path().to_owned();
    let method = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    let reply = match method {
        Some((RATE_LIMIT, "ShouldRateLimit")) if has(Door::Rls) => {
            match read_body(session, within).await?.and_then(|body| frame::read(&body)) {
                Ok(message) => context.rate_limit(session, call, &message).await?,
                Err(FrameError::TooLong) => {
                    context.refuse_unread(session, call, Door::Rls, &Refusal::bad_request(413));
                    Reply::Message(frame::write(&RateLimitResponse {
                        overall_code: Code::OverLimit.into(),
                        ..RateLimitResponse::default()
                    }))
                }
                Err(error) => error.into(),
            }
        }
        Some((AUTHORIZATION, "Check")) if has(Door::ExtAuthz) => {
            match read_body(session, within).await?.and_then(|body| frame::read(&body)) {
                Ok(message) => context.check(session, call, &message).await?,
                // Its length is that of the client's head and body, so that an error would let the request pass.
                Err(FrameError::TooLong) => {
                    let refusal = Refusal::bad_request(413);
                    context.refuse_unread(session, call, Door::ExtAuthz, &refusal);
                    context.denied(call, &RefusalResponse::of(refusal), None)?
                }
                Err(error) => error.into(),
            }
        }
        Some(("grpc.health.v1.Health", "Check")) => {
            match read_body(session, within).await?.and_then(|body| frame::read(&body)) {
                Ok(message) => context.health(&message),
                Err(error) => error.into(),
            }
        }
        _ => Reply::Failure(Status::Unimplemented, "no door of this listener has this method"),
    };
    call.answered = matches!(reply, Reply::Message(_));
    respond(session, reply).await
}

impl CallContext<'_> {
    async fn rate_limit(&self, session: &Session, call: &mut Call, message: &RateLimitRequest) -> Result<Reply> {
        let metrics = &self.api.shared.rate_limit;
        let invalid = |what| Ok(Reply::Failure(Status::InvalidArgument, what));
        if message.descriptors.len() > MOST_DESCRIPTORS {
            return invalid("there are more than 128 descriptors");
        }
        if message.descriptors.iter().any(|one| one.entries.len() > MOST_ENTRIES) {
            return invalid("a descriptor has more than 64 entries");
        }
        let descriptors = rate_limit::descriptors(message);
        metrics.ignored_limits.increment(count(message.descriptors.iter().filter(|one| one.limit.is_some())));
        metrics.ignored_refunds.increment(count(message.descriptors.iter().filter(|one| one.is_negative_hits)));
        // No rule reads anything of them at this door.
        let nobody = ClientAddress::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 128);
        let (head, ()) = http::Request::new(()).into_parts();
        let listener = self.snapshot.config.listener_name(call.listener());
        let request = Request::new(&head, nobody).with_listener(listener).with_door(Door::Rls);
        let asked = descriptors.iter().map(|one| (request.with_descriptor(Some(&one.sent)), one.hits));
        let arrival = self.arrival(session, call, RequestPurpose::Ordinary);
        let found = decide_descriptors(&self.api.gateway, self.snapshot, asked, arrival, &metrics.decisions).await;
        let CallFindings { decision, parts, payment } = found;
        let unlimited = parts.iter().filter(|part| part.charges.is_empty() && part.denied_by.is_none());
        let unlimited = count(unlimited);
        metrics.unlimited.increment(unlimited);
        metrics.limited.increment(count(parts.iter()).saturating_sub(unlimited));
        let now = self.api.gateway.clock.date(call.started);
        let statuses = rate_limit::statuses(&self.snapshot.config.rules, payment.as_deref(), &parts, now);
        if self.records(call) {
            let record = new_record(self.snapshot, call, Door::Rls, nobody, SchemeSource::Connection(Scheme::Http));
            let decided = Some(self.api.gateway.clock.now().since(call.started));
            let descriptors = self.logged(descriptors.iter().map(|one| &one.sent));
            call.record = Some(Box::new(RequestRecord { payment, decision: decided, descriptors, ..record }));
        }
        let response = match decision {
            Decision::Gone => return Err(gone()),
            Decision::Refuse(refused) => {
                let (header, body) = self.refuse(call, &refused, &request, None)?;
                RateLimitResponse {
                    overall_code: Code::OverLimit.into(),
                    statuses,
                    response_headers_to_add: values(&header),
                    raw_body: Bytes::from(body),
                }
            }
            passed => RateLimitResponse {
                overall_code: Code::Ok.into(),
                statuses,
                response_headers_to_add: values(&fields(&passed, &call.request_id)?),
                raw_body: Bytes::new(),
            },
        };
        Ok(Reply::Message(frame::write(&response)))
    }

    async fn check(&self, session: &Session, call: &mut Call, message: &CheckRequest) -> Result<Reply> {
        let asked = match authorization::read(message) {
            Ok(asked) => asked,
            // The client has sent it.
            Err(Unusable::Field) => {
                let refusal = Refusal::bad_request(400);
                self.refuse_unread(session, call, Door::ExtAuthz, &refusal);
                return self.denied(call, &RefusalResponse::of(refusal), None);
            }
            Err(unusable) => {
                self.report_unusable(call, unusable.what());
                return Ok(Reply::Failure(Status::InvalidArgument, unusable.what()));
            }
        };
        let config = &self.snapshot.config;
        let AskedRequest { http, source, fields: headers, sent, tls } = asked;
        call.request_id = request_id::keep_or_make(headers.get(&request_id::NAME));
        let client = config.client_ip.client(source, &headers);
        let described =
            describe([&http.method, &http.host, &String::from_utf8_lossy(&http.path), &http.scheme], headers, config);
        let described =
            described.and_then(|described| authorization::check_size(http, &config.bounds).map(|()| described));
        let DescribedRequest { head, scheme } = match described {
            Ok(described) => described,
            Err(refusal) => {
                if self.records(call) {
                    let scheme = SchemeSource::Connection(Scheme::Http);
                    call.record = Some(Box::new(new_record(self.snapshot, call, Door::ExtAuthz, client, scheme)));
                }
                let response = RefusalResponse::of(refusal);
                return self.denied(call, &response, None);
            }
        };
        let (head, scheme) = (Box::new(head), SchemeSource::Connection(scheme));
        let request = Request::new(&head, client).with_scheme(scheme).with_door(Door::ExtAuthz);
        let request = request.with_listener(config.listener_name(call.listener())).with_descriptor(Some(&sent));
        let request = request.with_tls(tls.as_ref());
        let cors = config.cors.as_ref().and_then(|cors| cors.answer(&request));
        let purpose = match &cors {
            Some(CorsAnswer { preflight: Some(_), .. }) => RequestPurpose::PreflightElsewhere,
            _ => RequestPurpose::Ordinary,
        };
        let arrival = self.arrival(session, call, purpose);
        let keep = if self.records(call) { PaymentRecord::Keep } else { PaymentRecord::Discard };
        let decisions = &self.api.shared.ext_authz;
        let found = decide_for_edge(&self.api.gateway, self.snapshot, &request, arrival, keep, decisions).await;
        let DecisionFindings { decision, identity, payment, .. } = found;
        if self.records(call) {
            let record = new_record(self.snapshot, call, Door::ExtAuthz, client, scheme);
            let decided = Some(self.api.gateway.clock.now().since(call.started));
            let (descriptors, tls) = (self.logged([&sent]), tls.clone().map(|tls| RecordedTls::Edge(Box::new(tls))));
            let record = RequestRecord { descriptors, tls, ..record };
            call.record = Some(Box::new(RequestRecord { identity, payment, decision: decided, ..record }));
        }
        let reply = match decision {
            Decision::Gone => Err(gone()),
            Decision::Refuse(refused) => self.denied(call, &refused, Some((&request, cors.as_ref()))),
            passed => {
                let added = options(&fields(&passed, &call.request_id)?, Some(true));
                Ok(Reply::Message(frame::write(&CheckResponse {
                    status: Some(RpcStatus { code: 0 }),
                    denied_response: None,
                    ok_response: Some(OkResponse { response_headers_to_add: added }),
                })))
            }
        };
        call.head = Some(head);
        reply
    }

    /// The answer for the refusal of a request. An error for a store that gives no answer: the other proxy has a setting for
    /// that case.
    fn denied(
        &self,
        call: &mut Call,
        refused: &RefusalResponse,
        request: Option<(&Request<'_>, Option<&CorsAnswer>)>,
    ) -> Result<Reply> {
        let nobody = http::Request::new(()).into_parts().0;
        let unknown = Request::new(&nobody, ClientAddress::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 128));
        let (request, cors) = request.unwrap_or((&unknown, None));
        let (header, body) = self.refuse(call, refused, request, cors)?;
        if refused.refusal.reason == Reason::StoreUnavailable {
            return Ok(Reply::Failure(Status::Unavailable, "store_unavailable"));
        }
        Ok(Reply::Message(frame::write(&CheckResponse {
            // Whatever is not 0 refuses.
            status: Some(RpcStatus { code: Status::ResourceExhausted as i32 }),
            denied_response: Some(DeniedResponse {
                status: Some(HttpStatus { code: i32::from(header.status.as_u16()) }),
                headers: options(&header, None),
                body,
            }),
            ok_response: None,
        })))
    }

    /// Records the refusal of a call whose request could not be read.
    fn refuse_unread(&self, session: &Session, call: &mut Call, door: Door, refusal: &Refusal) {
        let peer = session.client_addr().and_then(|address| address.as_inet()).map(|address| address.ip());
        call.record_at_least(self.snapshot, peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), door);
        if let Some(record) = &mut call.record {
            record.refuse(refusal, None);
        }
    }

    /// Counts a refusal, and returns the response that a client would get.
    fn refuse(
        &self,
        call: &mut Call,
        refused: &RefusalResponse,
        request: &Request<'_>,
        cors: Option<&CorsAnswer>,
    ) -> Result<(ResponseHeader, String)> {
        let refusal = &refused.refusal;
        self.api.gateway.metrics.http.count_refusal(refusal.reason);
        if let Some(record) = &mut call.record {
            record.refuse(refusal, refused.denied_by);
        }
        let pages = self.snapshot.config.error_pages.as_deref().filter(|_| request.door == Door::ExtAuthz);
        let page = pages.and_then(|pages| pages.find(Some(request), refusal.status)).map(|(_, page)| page);
        let recipient = Recipient::Edge(RefuseWith::Decided);
        ProblemResponse { page, cors, recipient, ..refused.problem() }.to_header(request.head, &call.request_id)
    }

    fn health(&self, message: &HealthCheckRequest) -> Reply {
        let door = |service| match service {
            RATE_LIMIT => Some(Door::Rls),
            AUTHORIZATION => Some(Door::ExtAuthz),
            _ => None,
        };
        let is_known = match &*message.service {
            "" => true,
            service => door(service).is_some_and(|door| self.settings.doors.contains(&door)),
        };
        if !is_known {
            return Reply::Failure(Status::NotFound, "this listener has no such service");
        }
        let status = if self.api.gateway.is_draining() { ServingStatus::NotServing } else { ServingStatus::Serving };
        Reply::Message(frame::write(&HealthCheckResponse { status: status.into() }))
    }

    /// Logs the fault of a call, which an operator of the other proxy has to correct.
    fn report_unusable(&self, call: &Call, what: &str) {
        let Some(calls) = self.api.shared.unusable_calls.admit(self.api.gateway.clock.now()) else { return };
        let request_id = call.request_id.to_str().unwrap_or_default();
        log::warn!(what, calls, request_id; "call of a door of Envoy answered with an error: it cannot be read");
    }

    fn arrival(&self, session: &Session, call: &Call, purpose: RequestPurpose) -> Arrival {
        let caller = call.trace.link(session::caller(session, call.connection.as_ref()));
        let patience = Patience::AtOnce { answer_within: Some(self.settings.answer_within.unwrap_or(ANSWER_WITHIN)) };
        let (worker, at, direction) = (self.api.worker, call.started, Direction::Right);
        Arrival { worker, at, caller, direction, purpose, patience }
    }

    /// The descriptors of a call, as far as the access log may contain them.
    fn logged<'d, 'm: 'd>(
        &self,
        sent: impl IntoIterator<Item = &'d SentDescriptor<'m>>,
    ) -> Vec<SentDescriptor<'static>> {
        match &self.snapshot.config.access_log {
            Some(log) if log.has_descriptors() => sent.into_iter().map(SentDescriptor::to_static).collect(),
            _ => Vec::new(),
        }
    }

    fn records(&self, call: &Call) -> bool {
        call.is_recorded(self.snapshot)
    }
}

/// The fields for the response to a request that passes.
fn fields(passed: &Decision, id: &FieldValue) -> Result<ResponseHeader> {
    let rate_limits: Option<&RateLimitFields> = match passed {
        Decision::Pass(fields) => fields.as_deref(),
        Decision::Delay(delayed) => Some(&delayed.fields),
        Decision::Refuse(_) | Decision::Preflight | Decision::Gone => None,
    };
    let mut header = ResponseHeader::build(200, Some(6))?;
    let rate_limits = rate_limits.map(RateLimitFields::unmerged);
    ResponseFields { request_id: id, problem: None, rate_limits, cors: None }.add(&mut header, None)?;
    // The other proxy, which sends the response, has one of its own.
    header.remove_header(&request_id::NAME);
    Ok(header)
}

/// The fields of a response as messages, without those that the other proxy writes itself.
fn values(header: &ResponseHeader) -> Vec<HeaderValue> {
    let sent = header.headers.iter().filter(|(name, _)| ![CONTENT_LENGTH, DATE].contains(name));
    sent.map(|(name, value)| match value.to_str() {
        Ok(text) => HeaderValue { key: name.as_str().to_owned(), value: text.to_owned(), raw_value: Bytes::new() },
        Err(_) => HeaderValue {
            key: name.as_str().to_owned(),
            value: String::new(),
            raw_value: Bytes::copy_from_slice(value.as_bytes()),
        },
    })
    .collect()
}

fn options(header: &ResponseHeader, append: Option<bool>) -> Vec<HeaderValueOption> {
    values(header).into_iter().map(|header| HeaderValueOption { header: Some(header), append }).collect()
}

fn count(items: impl Iterator) -> u64 {
    u64::try_from(items.count()).unwrap_or(u64::MAX)
}

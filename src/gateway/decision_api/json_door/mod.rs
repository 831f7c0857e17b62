//! The door `json`: answers a service that is no proxy, and asks at `/take` whether it may do something. If it holds what it takes,
//! it says at `/settle` what it has cost.

pub mod take_call;

mod hold_id;
mod remembered_takes;
mod settle_call;
pub(super) mod settle_metrics;
pub(super) mod settling;
mod take_answer;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method};

use super::SharedParts;
use super::call::Call;
use crate::gateway::enforcement::descriptors::{CallFindings, decide_descriptors};
use crate::gateway::enforcement::request_record::RequestRecord;
use crate::gateway::enforcement::{Arrival, Direction, Patience, RequestPurpose};
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::response::problem::{ProblemResponse, Recipient};
use crate::gateway::server::http1::BodyError;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use config::{Decide, RefuseWith};
use decision::payment::Payment;
use decision::refusal::{AllowedMethods, Refusal};
use hold_id::HeldTake;
use ledger::charge::Charge;
use ledger::holds::{Owner, TimedHold};
pub(super) use remembered_takes::RememberedTakes;
use remembered_takes::{BegunTake, TakeId};
use request::client_address::ClientAddress;
use request::door::Door;
use request::request::Request;
use request::scheme::{Scheme, SchemeSource};
use take_answer::TakeAnswer;
use take_call::{HoldFor, InvalidCall, TakeCall};

/// The paths of this door.
pub(super) const TAKE: &str = "/take";
pub(super) const SETTLE: &str = "/settle";

/// The maximum length of the body of a call, in bytes.
pub(super) const LONGEST: usize = 64 << 10;

/// What a service reads that holds what it takes at a gateway without the key of ids.
const NEEDS_KEY: &str = "`hold_for` needs `hash_key` in gateway.yaml";

/// Checks the head of a call, before its body is read.
///
/// # Errors
/// If the call has another method, another type of content, or a body that is too long.
pub(super) fn check_head(head: &Parts) -> Result<(), Refusal> {
    if head.method != Method::POST {
        return Err(Refusal { allowed_methods: AllowedMethods::Post, ..Refusal::bad_request(405) });
    }
    // A browser sends this type to another origin only after a preflight. So no page can take on behalf of its visitor.
    let kind = head.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    let is_coded = head.headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity");
    if !kind.trim_ascii().eq_ignore_ascii_case(b"application/json") || is_coded {
        return Err(Refusal::bad_request(415));
    }
    let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let fits = length.is_none_or(|length| usize::try_from(length).is_ok_and(|length| length <= LONGEST));
    if fits { Ok(()) } else { Err(Refusal::bad_request(413)) }
}

/// Answers a call of `/take`. `body` is its body, or the reason why the body could not be read.
///
/// # Errors
/// If the service has disconnected.
pub(super) async fn answer(
    call: &mut Call<'_>,
    snapshot: &Arc<Snapshot>,
    settings: &Decide,
    body: Result<Bytes, BodyError>,
) -> Result<OwnResponse, ClientFault> {
    let body = check_head(&call.head).and_then(|()| body.map_err(|error| Refusal::bad_request(error.status())));
    let take = match body.map(|body| TakeCall::read(&body)) {
        Ok(Ok(take)) => take,
        Ok(Err(InvalidCall(fault))) => return Ok(invalid(call, snapshot, &Refusal::bad_request(400), Some(&fault))),
        Err(refusal) => return Ok(invalid(call, snapshot, &refusal, None)),
    };
    if take.hold_for.is_some() && snapshot.hold_key.is_none() {
        return Ok(invalid(call, snapshot, &Refusal::bad_request(400), Some(NEEDS_KEY)));
    }
    let listener = snapshot.config.listener_name(call.connection.listener());
    let first = match &take.id {
        None => None,
        Some(id) => {
            let id = TakeId { listener: listener.to_owned(), domain: take.domain.clone(), id: id.0.clone() };
            let takes = &call.api.shared.takes;
            let question = take.question(&takes.hasher);
            loop {
                match takes.begin(id.clone(), question, call.api.gateway.clock.now()) {
                    BegunTake::First(first) => break Some(first),
                    BegunTake::Repeated(mut answer) => {
                        // If the first call ends without a decision, this call is the first.
                        let Ok(answer) = answer.wait_for(Option::is_some).await.map(|answer| answer.clone()) else {
                            continue;
                        };
                        let answer = answer.map(|answer| answer.repeated(&call.request_id));
                        return answer.map(|answer| respond(call, snapshot, answer)).ok_or(ClientFault::Gone);
                    }
                    BegunTake::OtherQuestion => {
                        let fault = "`id` must be new: a call in the last 60 s had it and asked for something else";
                        return Ok(invalid(call, snapshot, &Refusal::bad_request(400), Some(fault)));
                    }
                }
            }
        }
    };
    let descriptors = if call.is_recorded(snapshot) { call.logged(snapshot, [&take.descriptor()]) } else { Vec::new() };
    // What a call with an id has taken must be known for a repeated call, so its decision does not end with its caller.
    let caller = if first.is_none() { call.caller() } else { call.trace.link(None) };
    let pending = PendingTake {
        gateway: Arc::clone(&call.api.gateway),
        shared: Arc::clone(&call.api.shared),
        snapshot: Arc::clone(snapshot),
        listener: call.connection.listener(),
        request_id: call.request_id.clone(),
        arrival: Arrival {
            worker: call.api.worker,
            at: call.started,
            caller,
            direction: Direction::Right,
            purpose: RequestPurpose::Ordinary,
            patience: Patience::AtOnce { answer_within: settings.answer_within_at(Door::Json) },
            hold: take.hold_for.map(|HoldFor(life)| TimedHold { owner: Owner::of_timed_hold(fastrand::u64(..)), life }),
        },
        take,
    };
    let decided = match first {
        None => pending.decide().await,
        Some(first) => {
            let deciding = tokio::spawn(async move {
                let gateway = Arc::clone(&pending.gateway);
                let decided = pending.decide().await?;
                first.finish(Arc::clone(&decided.answer), gateway.clock.now());
                Some(decided)
            });
            deciding.await.ok().flatten()
        }
    };
    let DecidedTake { answer, payment } = decided.ok_or(ClientFault::Gone)?;
    if call.is_recorded(snapshot) {
        let record = new_record(call, snapshot);
        let decision = Some(call.api.gateway.clock.now().since(call.started));
        call.record = Some(Box::new(RequestRecord { payment, decision, descriptors, ..record }));
    }
    Ok(respond(call, snapshot, Arc::unwrap_or_clone(answer)))
}

/// A call that is to be decided. It owns all its values, so that it can be decided without its caller.
struct PendingTake {
    gateway: Arc<GatewayState>,
    shared: Arc<SharedParts>,
    snapshot: Arc<Snapshot>,
    /// The index, in the configuration, of the listener on which the call arrived.
    listener: usize,
    request_id: HeaderValue,
    arrival: Arrival,
    take: TakeCall,
}

/// The answer to a call, with what the access log reports about its decision.
struct DecidedTake {
    answer: Arc<TakeAnswer>,
    payment: Option<Box<Payment>>,
}

impl PendingTake {
    /// Decides the call. `None` if its caller has left, and nothing was charged.
    async fn decide(self) -> Option<DecidedTake> {
        let PendingTake { gateway, shared, snapshot, listener, request_id, arrival, take } = self;
        let (hold, worker) = (arrival.hold, arrival.worker);
        let config = &snapshot.config;
        // At this door, no rule reads the head or the client's address.
        let (head, ()) = http::Request::new(()).into_parts();
        let sent = take.descriptor();
        let request = Request::new(&head, nobody()).with_listener(config.listener_name(listener));
        let request = request.with_door(Door::Json).with_descriptor(Some(&sent)).with_hold(hold.is_some());
        let asked = [(request, take.hits())];
        let found = decide_descriptors(&gateway, &snapshot, asked, arrival, &shared.json).await;
        let CallFindings { decision, payment, held, .. } = found;
        // A call that was tried several times has the owner of the last try.
        let owner = held.timed_owner().or(hold.map(|hold| hold.owner));
        shared.running_holds.begin(&gateway, worker, held);
        let hold_id = owner.zip(snapshot.hold_key.as_ref()).and_then(|(owner, key)| {
            let subject = snapshot.records.as_ref().map(|records| records.held_subject(&records.subject(&request)));
            let subject = subject.unwrap_or_default();
            let tag = |charge: &Charge| config.rules.limit(charge.limit).map(|limit| limit.tag(0));
            let held = match payment.as_deref() {
                Some(Payment::Settled { plan, settlement, .. }) => {
                    HeldTake::of(owner, subject, (plan, settlement), tag)
                }
                _ => HeldTake { owner, subject, buckets: Vec::new() },
            };
            held.id(key)
        });
        let answer = TakeAnswer::new(decision, payment.as_deref(), &config.rules, &request_id, hold_id)?;
        if let Some((refusal, _)) = &answer.refusal {
            gateway.metrics.http.count_refusal(refusal.reason);
        }
        Some(DecidedTake { answer: Arc::new(answer), payment })
    }
}

/// Records the answer to a call, and returns its response.
fn respond(call: &mut Call<'_>, snapshot: &Arc<Snapshot>, answer: TakeAnswer) -> OwnResponse {
    if call.record.is_none() && call.is_recorded(snapshot) {
        call.record = Some(Box::new(new_record(call, snapshot)));
    }
    if let (Some(record), Some((refusal, denied_by))) = (&mut call.record, &answer.refusal) {
        record.refuse(refusal, *denied_by);
    }
    call.answered = true;
    answer.response
}

/// Answers a call that is no valid question. `fault` says what is wrong with its body.
fn invalid(call: &mut Call<'_>, snapshot: &Arc<Snapshot>, refusal: &Refusal, fault: Option<&str>) -> OwnResponse {
    call.api.gateway.metrics.http.count_refusal(refusal.reason);
    if call.is_recorded(snapshot) {
        let mut record = new_record(call, snapshot);
        record.refuse(refusal, None);
        call.record = Some(Box::new(record));
    }
    let recipient = Recipient::Edge(RefuseWith::Decided);
    let problem = ProblemResponse { recipient, detail: fault, ..ProblemResponse::refusal(refusal) };
    problem.response_to_unread(&call.request_id)
}

fn new_record(call: &Call<'_>, snapshot: &Arc<Snapshot>) -> RequestRecord {
    call.new_record(snapshot, Door::Json, nobody(), SchemeSource::Connection(Scheme::Http))
}

/// Returns the client of every call: the service does not say for whom it asks, but in its entries.
fn nobody() -> ClientAddress {
    ClientAddress::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_is_read_and_only_by_post() {
        let status = |method: &str, fields: &[(&str, &str)]| {
            let head = fields
                .iter()
                .fold(http::Request::builder().method(method), |head, (name, value)| head.header(*name, *value));
            check_head(&head.body(()).unwrap().into_parts().0).err().map(|refusal| refusal.status)
        };
        let json = ("content-type", "application/json");
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/json ;a=b"] {
            assert_eq!(status("POST", &[("content-type", kind)]), None, "{kind}");
        }
        for kind in ["text/plain", "application/jsonx", "", "application/x-www-form-urlencoded"] {
            assert_eq!(status("POST", &[("content-type", kind)]), Some(415), "{kind}");
        }
        assert_eq!((status("POST", &[]), status("GET", &[json])), (Some(415), Some(405)));
        assert_eq!(status("POST", &[json, ("content-encoding", "gzip")]), Some(415));
        assert_eq!(status("POST", &[json, ("content-length", "65536")]), None);
        for length in ["65537", "18446744073709551615"] {
            assert_eq!(status("POST", &[json, ("content-length", length)]), Some(413));
        }
    }
}

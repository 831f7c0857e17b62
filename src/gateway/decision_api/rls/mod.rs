//! The door `rls`: answers Envoy's rate limit filter, which sends descriptors in place of a request.

pub mod descriptors;

use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;

use super::call::Call;
use super::grpc::envoy_call::{EnvoyCall, count, fields, values};
use super::grpc::frame;
use super::grpc::messages::{Code, RateLimitRequest, RateLimitResponse};
use super::grpc::{Reply, Status};
use crate::gateway::enforcement::descriptors::{CallFindings, decide_descriptors};
use crate::gateway::enforcement::request_record::RequestRecord;
use crate::gateway::enforcement::{Decision, RequestPurpose};
use crate::gateway::server::http1::exchange_io::ClientFault;
use decision::refusal::Refusal;
use ledger::charge::Charge;
use request::client_address::ClientAddress;
use request::door::Door;
use request::request::Request;
use request::scheme::{Scheme, SchemeSource};
use rules::descriptors_plan::DescriptorPart;

/// The maximum number of descriptors of a call, and the maximum number of entries of a descriptor.
const MOST_DESCRIPTORS: usize = 128;
const MOST_ENTRIES: usize = 64;

/// Refuses a call whose message is too long.
pub(crate) fn refuse_too_long(envoy: EnvoyCall<'_>, call: &mut Call<'_>) -> Reply {
    envoy.refuse_unread(call, Door::Rls, &Refusal::bad_request(413));
    let response = RateLimitResponse { overall_code: Code::OverLimit.into(), ..RateLimitResponse::default() };
    Reply::Message(frame::write(&response))
}

/// Answers a call of `ShouldRateLimit`, with which Envoy asks whether a request with certain descriptors may pass.
///
/// # Errors
/// If the other proxy has disconnected.
pub(crate) async fn answer(
    envoy: EnvoyCall<'_>,
    call: &mut Call<'_>,
    message: &RateLimitRequest,
) -> Result<Reply, ClientFault> {
    let metrics = &envoy.api.shared.rate_limit;
    let invalid = |what| Ok(Reply::Failure(Status::InvalidArgument, what));
    if message.descriptors.len() > MOST_DESCRIPTORS {
        return invalid("there are more than 128 descriptors");
    }
    if message.descriptors.iter().any(|one| one.entries.len() > MOST_ENTRIES) {
        return invalid("a descriptor has more than 64 entries");
    }
    let descriptors = descriptors::descriptors(message);
    metrics.ignored_limits.increment(count(message.descriptors.iter().filter(|one| one.limit.is_some())));
    metrics.ignored_refunds.increment(count(message.descriptors.iter().filter(|one| one.is_negative_hits)));
    // At this door, no rule reads the head or the client's address, so both are placeholders.
    let nobody = ClientAddress::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 128);
    let (head, ()) = http::Request::new(()).into_parts();
    let listener = envoy.snapshot.config.listener_name(call.connection.listener());
    let request = Request::new(&head, nobody).with_listener(listener).with_door(Door::Rls);
    let asked = descriptors.iter().map(|one| (request.with_descriptor(Some(&one.sent)), one.hits));
    let arrival = envoy.arrival(call, Door::Rls, RequestPurpose::Ordinary);
    let found = decide_descriptors(&envoy.api.gateway, envoy.snapshot, asked, arrival, &metrics.decisions).await;
    let CallFindings { decision, parts, payment, .. } = found;
    let charges = |part: &DescriptorPart| payment.as_ref()?.plan().enforced.get(part.charges.clone());
    let is_unlimited = |part: &&DescriptorPart| {
        let only_asks_for_bans = || charges(part).is_some_and(|own| own.iter().all(Charge::only_asks_for_ban));
        part.denied_by.is_none() && (part.charges.is_empty() || only_asks_for_bans())
    };
    let unlimited = count(parts.iter().filter(is_unlimited));
    metrics.unlimited.increment(unlimited);
    metrics.limited.increment(count(parts.iter()).saturating_sub(unlimited));
    let now = envoy.api.gateway.clock.date(call.started);
    let statuses = descriptors::statuses(&envoy.snapshot.config.rules, payment.as_deref(), &parts, now);
    if envoy.records(call) {
        let record = call.new_record(envoy.snapshot, Door::Rls, nobody, SchemeSource::Connection(Scheme::Http));
        let decided = Some(envoy.api.gateway.clock.now().since(call.started));
        let descriptors = call.logged(envoy.snapshot, descriptors.iter().map(|one| &one.sent));
        call.record = Some(Box::new(RequestRecord { payment, decision: decided, descriptors, ..record }));
    }
    let response = match decision {
        Decision::Gone => return Err(ClientFault::Gone),
        Decision::Refuse(refused) => {
            let refusal = envoy.refuse(call, &refused, &request, None);
            RateLimitResponse {
                overall_code: Code::OverLimit.into(),
                statuses,
                response_headers_to_add: values(&refusal.fields),
                raw_body: refusal.body,
            }
        }
        passed => RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses,
            response_headers_to_add: values(&fields(&passed)),
            raw_body: Bytes::new(),
        },
    };
    Ok(Reply::Message(frame::write(&response)))
}

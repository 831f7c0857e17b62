//! The door `ext_authz`: answers Envoy's external authorization filter, which describes a client's request.

pub mod checked_request;

use std::net::{IpAddr, Ipv4Addr};

use super::call::Call;
use super::grpc::envoy_call::{EnvoyCall, fields, options};
use super::grpc::frame;
use super::grpc::messages::{CheckRequest, CheckResponse, DeniedResponse, HttpStatus, OkResponse, RpcStatus};
use super::grpc::{Reply, Status};
use super::original_request::{DescribedRequest, describe};
use crate::gateway::enforcement::request_record::{RecordedTls, RequestRecord};
use crate::gateway::enforcement::{
    Decision, DecisionFindings, PaymentRecord, RefusalResponse, RequestPurpose, decide_for_edge,
};
use crate::gateway::response::request_id;
use crate::gateway::server::http1::exchange_io::ClientFault;
use checked_request::{AskedRequest, Unusable};
use config::Config;
use decision::cors::CorsAnswer;
use decision::reason::Reason;
use decision::refusal::Refusal;
use request::attribute::Attribute;
use request::client_address::ClientAddress;
use request::door::Door;
use request::request::Request;
use request::scheme::{Scheme, SchemeSource};

/// Refuses a call whose message is too long. After an error, the other proxy may let the request pass, so the answer
/// must be a refusal.
pub(crate) fn refuse_too_long(envoy: EnvoyCall<'_>, call: &mut Call<'_>) -> Reply {
    let refusal = Refusal::bad_request(413);
    envoy.refuse_unread(call, Door::ExtAuthz, &refusal);
    denied(envoy, call, &RefusalResponse::of(refusal), None)
}

/// Answers a call of `Check`, with which Envoy asks whether a request may pass.
///
/// # Errors
/// If the other proxy has disconnected.
pub(crate) async fn answer(
    envoy: EnvoyCall<'_>,
    call: &mut Call<'_>,
    message: &CheckRequest,
) -> Result<Reply, ClientFault> {
    let asked = match checked_request::read(message) {
        Ok(asked) => asked,
        // The invalid field comes from the client, so its request is refused.
        Err(Unusable::Field) => {
            let refusal = Refusal::bad_request(400);
            envoy.refuse_unread(call, Door::ExtAuthz, &refusal);
            return Ok(denied(envoy, call, &RefusalResponse::of(refusal), None));
        }
        Err(unusable) => {
            envoy.report_unusable(call, unusable.what());
            return Ok(Reply::Failure(Status::InvalidArgument, unusable.what()));
        }
    };
    let config = &envoy.snapshot.config;
    let AskedRequest { http, source, fields: headers, sent, tls } = asked;
    call.request_id = request_id::keep_or_make(headers.get(&request_id::NAME));
    let client = config.client_ip.client(source, &headers);
    let described =
        describe([&http.method, &http.host, &String::from_utf8_lossy(&http.path), &http.scheme], headers, config);
    let described =
        described.and_then(|described| checked_request::check_size(http, &config.bounds).map(|()| described));
    let DescribedRequest { head, scheme } = match described {
        Ok(described) => described,
        Err(refusal) => {
            if envoy.records(call) {
                let scheme = SchemeSource::Connection(Scheme::Http);
                call.record = Some(Box::new(call.new_record(envoy.snapshot, Door::ExtAuthz, client, scheme)));
            }
            let response = RefusalResponse::of(refusal);
            return Ok(denied(envoy, call, &response, None));
        }
    };
    let (head, scheme) = (Box::new(head), SchemeSource::Connection(scheme));
    let request = Request::new(&head, client).with_scheme(scheme).with_door(Door::ExtAuthz);
    let request = request.with_listener(config.listener_name(call.connection.listener())).with_descriptor(Some(&sent));
    let request = request.with_tls(tls.as_ref());
    let cors = config.cors.as_ref().and_then(|cors| cors.answer(&request));
    let purpose = match &cors {
        Some(CorsAnswer { preflight: Some(_), .. }) => RequestPurpose::PreflightElsewhere,
        _ => RequestPurpose::Ordinary,
    };
    let arrival = envoy.arrival(call, Door::ExtAuthz, purpose);
    let keep = if envoy.records(call) { PaymentRecord::Keep } else { PaymentRecord::Discard };
    let decisions = &envoy.api.shared.ext_authz;
    let found = decide_for_edge(&envoy.api.gateway, envoy.snapshot, &request, arrival, keep, decisions).await;
    let DecisionFindings { decision, identity, payment, .. } = found;
    if envoy.records(call) {
        let record = call.new_record(envoy.snapshot, Door::ExtAuthz, client, scheme);
        let decided = Some(envoy.api.gateway.clock.now().since(call.started));
        let (descriptors, tls) =
            (call.logged(envoy.snapshot, [&sent]), tls.clone().map(|tls| RecordedTls::Edge(Box::new(tls))));
        let record = RequestRecord { descriptors, tls, ..record };
        call.record = Some(Box::new(RequestRecord { identity, payment, decision: decided, ..record }));
    }
    let reply = match decision {
        Decision::Gone => Err(ClientFault::Gone),
        Decision::Refuse(refused) => Ok(denied(envoy, call, &refused, Some((&request, cors.as_ref())))),
        passed => {
            let added = options(&fields(&passed), Some(true));
            let (headers, parameters) = withheld_keys(config, &request);
            Ok(Reply::Message(frame::write(&CheckResponse {
                status: Some(RpcStatus { code: 0 }),
                denied_response: None,
                ok_response: Some(OkResponse {
                    headers_to_remove: headers,
                    response_headers_to_add: added,
                    query_parameters_to_remove: parameters,
                }),
            })))
        }
    };
    call.described = Some(head);
    reply
}

/// Returns the header fields and query parameters with an API key that the upstream does not get. Envoy cannot remove a
/// single cookie.
fn withheld_keys(config: &Config, request: &Request<'_>) -> (Vec<String>, Vec<String>) {
    let (mut headers, mut parameters) = (Vec::new(), Vec::new());
    let places = config.api_keys.as_ref().and_then(|keys| keys.withheld());
    for (place, _) in places.iter().flat_map(|places| places.keys(request)) {
        match place.attribute().into_owned() {
            Attribute::Header(name) => headers.push(name.as_str().to_owned()),
            Attribute::Query(name) => parameters.push(name),
            _ => {}
        }
    }
    (headers, parameters)
}

/// Makes the answer that refuses a request. If the store did not answer, this is a gRPC error. Envoy's setting
/// `failure_mode_allow` then says whether the request passes.
fn denied(
    envoy: EnvoyCall<'_>,
    call: &mut Call<'_>,
    refused: &RefusalResponse,
    request: Option<(&Request<'_>, Option<&CorsAnswer>)>,
) -> Reply {
    let nobody = http::Request::new(()).into_parts().0;
    let unknown = Request::new(&nobody, ClientAddress::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 128));
    let (request, cors) = request.unwrap_or((&unknown, None));
    let refusal = envoy.refuse(call, refused, request, cors);
    let reason = refused.refusal.reason;
    if matches!(reason, Reason::StoreUnavailable | Reason::HomeUnavailable) {
        return Reply::Failure(Status::Unavailable, reason.name());
    }
    Reply::Message(frame::write(&CheckResponse {
        // Any status code other than 0 refuses the request.
        status: Some(RpcStatus { code: Status::ResourceExhausted as i32 }),
        denied_response: Some(DeniedResponse {
            status: Some(HttpStatus { code: i32::from(refusal.status) }),
            headers: options(&refusal.fields, None),
            body: String::from_utf8_lossy(&refusal.body).into_owned(),
        }),
        ok_response: None,
    }))
}

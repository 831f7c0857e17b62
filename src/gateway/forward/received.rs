//! Handles a request whose head has been read: decides about it, and answers it or forwards it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::exchange::{Exchange, Report};
use super::fault::Fault;
use super::forwarder::Forwarder;
use super::forwarding::{Bounds, forward, forward_http2};
use super::http2_heads;
use super::own_response;
use super::own_response_settings::OwnResponses;
use super::queue_wait::delay;
use super::request_head::ReceivedHead;
use super::response_head::Reuse;
use crate::gateway::enforcement::request_record::{RecordedTls, RequestRecord};
use crate::gateway::enforcement::{
    Arrival, Decision, DecisionFindings, Direction, Patience, PaymentRecord, RequestPurpose, decide,
};
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::response::problem::ProblemResponse;
use crate::gateway::response::request_id;
use crate::gateway::runtime::supervise;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::http1::application::ReceivedRequest;
use crate::gateway::server::http1::client::{Client, ClientRequest};
use crate::gateway::server::http1::downstream_stream::DownstreamStream;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::http1::head_parts::{InvalidHead, target};
use crate::gateway::server::http1::request_head::Body;
use crate::gateway::server::http2::application::Http2Request;
use crate::gateway::server::http2::client::Http2Client;
use crate::gateway::server::request_client::{RequestClient, Rest};
use crate::gateway::state::destinations::Destination;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::labels::Origin;
use crate::gateway::telemetry::trace::RequestTrace;
use crate::gateway::upstream::BalanceKey;
use arc_swap::Guard;
use base::tls::server::Session as TlsSession;
use http::Version;
use http::request::Parts;
use request::door::Door;
use request::identity::Identity;
use request::request::Request;
use stores::Caller;

/// The result of the decision about a request.
enum Decided {
    Forward,
    Answer(Box<OwnResponse>),
    Fault(Fault),
}

/// Serves one HTTP/1.x request. `snapshot` is the configuration that was in force when the request arrived. Returns the
/// connection if another request may follow on it.
pub(super) async fn serve(
    forwarder: &Forwarder,
    stream: Box<DownstreamStream>,
    request: ReceivedRequest,
    snapshot: Guard<Arc<Snapshot>>,
) -> Option<Box<DownstreamStream>> {
    let ClientRequest { mut client, bytes, head: parts } = Client::begin(stream, request, &forwarder.gateway.lifecycle);
    let connection = client.stream.handle();
    let (parts, invalid) = match parts {
        Ok(parts) => (parts, None),
        Err(InvalidHead) => (http::Request::new(()).into_parts().0, Some(Fault::Own(400, "head cannot be read"))),
    };
    let mut exchange = begin(forwarder, parts, connection);
    let received = ReceivedHead { bytes: &bytes, body: request.head.body };
    let mut bounds = Bounds { body: None, header_bytes: snapshot.config.bounds.header_bytes };
    let decided = match invalid {
        Some(fault) => Decided::Fault(fault),
        None => decide_about(&mut client, &mut exchange, received, snapshot).await,
    };
    let ended = match decided {
        Decided::Forward => {
            bounds.body = let_pass(&mut exchange);
            forward(&mut client, &mut exchange, received, bounds).await
        }
        Decided::Answer(response) => {
            Ok(own_response::write(&mut client, &mut exchange, *response, Rest::Drained).await)
        }
        Decided::Fault(fault) => Err(fault),
    };
    let reuse = match ended {
        Ok(reuse) => reuse,
        Err(fault) => {
            // Failures are rare. Their future is on the heap, so that it does not enlarge the task of every request.
            Box::pin(fail(&mut client, &mut exchange, fault)).await;
            Reuse::Closed
        }
    };
    drop(exchange);
    client.end(reuse)
}

/// Serves one HTTP/2 request: decides about the request, and then answers or forwards it.
pub(super) async fn serve_http2(forwarder: &Forwarder, request: Http2Request) {
    let Http2Request { mut head, length, stream, handle } = request;
    let snapshot = forwarder.gateway.snapshot.load();
    if forwarder.gateway.is_draining() {
        handle.close_when_done();
    }
    let body = match (&stream.body, length) {
        (None, _) => Body::Nothing,
        (Some(_), Some(length)) => Body::Length(length),
        (Some(_), None) => Body::Chunked,
    };
    head.version = Version::HTTP_2;
    let bytes = http2_heads::request_bytes(&head);
    let received = ReceivedHead { bytes: &bytes, body };
    let mut client = Http2Client::new(stream, &forwarder.gateway.lifecycle);
    let mut exchange = begin(forwarder, head, handle);
    let mut bounds = Bounds { body: None, header_bytes: snapshot.config.bounds.header_bytes };
    let decided = match (body, length) {
        (Body::Nothing, Some(1..)) => Decided::Fault(Fault::LENGTH_MISMATCH),
        _ => decide_about(&mut client, &mut exchange, received, snapshot).await,
    };
    let ended = match decided {
        Decided::Forward => {
            bounds.body = let_pass(&mut exchange);
            Box::pin(forward_http2(&mut client, &mut exchange, received, bounds)).await
        }
        Decided::Answer(response) => {
            Ok(own_response::write(&mut client, &mut exchange, *response, Rest::Drained).await)
        }
        Decided::Fault(fault) => Err(fault),
    };
    if let Err(fault) = ended {
        Box::pin(fail(&mut client, &mut exchange, fault)).await;
    }
}

/// Notes that the request goes to its upstream. Returns the largest allowed length of its body, if the route limits it.
fn let_pass(exchange: &mut Exchange<'_>) -> Option<u64> {
    exchange.report.passed = true;
    exchange.overrides().and_then(|overrides| overrides.body_bytes)
}

fn begin(forwarder: &Forwarder, head: Parts, connection: ConnectionHandle) -> Exchange<'_> {
    let peer = connection.socket().and_then(|socket| socket.peer()).map(|peer| peer.to_canonical());
    let mut request_id = request_id::keep_or_make(head.headers.get(request_id::NAME));
    let started = connection.accepted().unwrap_or_else(|| forwarder.gateway.clock.now());
    if connection.keeps_request_id(started) {
        request_id.set_sensitive(false);
    }
    Exchange {
        forwarder,
        request_id,
        head,
        started,
        peer: peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        trusted_peer: false,
        connection,
        destination: None,
        rate_limits: None,
        own_responses: None,
        field_changes: None,
        balance_key: None,
        upstream_connection: None,
        record: None,
        trace: RequestTrace::NONE,
        report: Report::default(),
    }
}

/// Decides about a request.
async fn decide_about<C: RequestClient>(
    client: &mut C,
    exchange: &mut Exchange<'_>,
    received: ReceivedHead<'_>,
    snapshot: Guard<Arc<Snapshot>>,
) -> Decided {
    let forwarder = exchange.forwarder;
    let gateway = &forwarder.gateway;
    supervise::fault_point(exchange.head.uri.path());
    exchange.trusted_peer = snapshot.config.client_ip.trusts(exchange.peer);
    if !exchange.trusted_peer
        && exchange.head.headers.contains_key("x-forwarded-for")
        && forwarder.logs.untrusted_forwarded_for.should_log(exchange.peer)
    {
        let hint = "if this is a proxy of yours, name it in client_ip.trusted_proxies";
        log::info!(peer:% = exchange.peer, hint; "X-Forwarded-For of an untrusted peer is ignored");
    }
    let address = snapshot.config.client_ip.client(exchange.peer, &exchange.head.headers);
    let scheme = exchange.scheme_source();
    let tls = exchange.connection.tls().cloned();
    let listener = exchange.connection.listener();
    exchange.trace = gateway.tracer.begin(&exchange.head.headers, exchange.started);
    let request = Request::new(&exchange.head, address).with_scheme(scheme);
    let request = request.with_tls(tls.as_deref().map(TlsSession::identity));
    let request = request.with_listener(snapshot.config.listener_name(listener));
    exchange.own_responses = OwnResponses::of(&snapshot.config, &request);
    let caller = exchange.connection.socket().cloned().map(|socket| socket as Arc<dyn Caller>);
    let serves = tls.as_ref().is_none_or(|tls| tls.serves(request.host()));
    let purpose = exchange.purpose();
    let arrival = Arrival {
        worker: forwarder.worker,
        at: exchange.started,
        caller: exchange.trace.link(caller),
        direction: if serves { Direction::Right } else { Direction::Misdirected },
        purpose,
        patience: Patience::Unbounded,
    };
    let recorded = snapshot.access_log.is_some() || exchange.trace.is_sampled();
    let payment = if recorded { PaymentRecord::Keep } else { PaymentRecord::Discard };
    let findings = client.until_cut(decide(gateway, &snapshot, &request, arrival, payment)).await;
    let DecisionFindings { decision, identity, destination, payment } = match findings {
        Ok(findings) => findings,
        Err(cut) => return Decided::Fault(cut.into()),
    };
    if let Some(forwarding) = &destination.forwarding {
        let request = request.with_identity(&identity);
        let request = request.with_destination(destination.route.route(), destination.upstream_name());
        exchange.field_changes = forwarding.field_changes(&request);
    }
    exchange.balance_key = balance_key(&destination, &request, &identity);
    if recorded {
        let decided = purpose == RequestPurpose::Ordinary;
        exchange.record = Some(Box::new(RequestRecord {
            snapshot: Arc::clone(&snapshot),
            destination: Arc::clone(&destination),
            client: address,
            scheme,
            listener,
            door: Door::Proxy,
            tls: tls.map(RecordedTls::Own),
            descriptors: Vec::new(),
            identity,
            payment,
            decision: decided.then(|| gateway.clock.now().since(exchange.started)),
            waited: None,
            refusal: None,
            invalid_token: None,
            denied_by: None,
        }));
    }
    exchange.destination = Some(destination);
    // The request keeps the parts of its configuration that it needs. The whole of an old configuration can be freed.
    drop(snapshot);
    match decision {
        Decision::Pass(fields) => {
            exchange.rate_limits = fields;
            let_through(exchange, received)
        }
        // Delays are rare. Their future is on the heap, so that it does not enlarge the task of every request.
        Decision::Delay(delayed) => match Box::pin(delay(client, exchange, *delayed)).await {
            Ok(()) => let_through(exchange, received),
            Err(fault) => Decided::Fault(fault),
        },
        Decision::Preflight => {
            exchange.report.answered = true;
            match own_response::preflight(exchange) {
                Some(response) => Decided::Answer(Box::new(response)),
                None => Decided::Fault(Fault::Own(500, "response not made")),
            }
        }
        Decision::Refuse(response) => {
            let refusal = &response.refusal;
            gateway.metrics.http.count_refusal(refusal.reason);
            if let Some(record) = &mut exchange.record {
                record.refuse(refusal, response.denied_by);
            }
            let page = exchange.page(refusal.status);
            let problem = ProblemResponse { page, cors: exchange.cors(), ..response.problem() };
            Decided::Answer(Box::new(own_response::problem(&problem, exchange)))
        }
        Decision::Gone => Decided::Fault(ClientFault::Gone.into()),
    }
}

/// Forwards the request, unless its route has no upstream but a fixed answer.
fn let_through(exchange: &mut Exchange<'_>, received: ReceivedHead<'_>) -> Decided {
    let Some(destination) = exchange.destination.clone() else { return Decided::Forward };
    let Some(answer) = destination.answer.as_ref().filter(|_| destination.upstream.is_none()) else {
        return Decided::Forward;
    };
    match own_response::of_route(answer, exchange, target(received.bytes), exchange.scheme_source()) {
        Ok(response) => {
            exchange.report.answered = true;
            Decided::Answer(Box::new(response))
        }
        Err(fault) => Decided::Fault(fault),
    }
}

/// Returns the key by which the endpoint of a request is chosen; `None` if the upstream does not choose by a key.
fn balance_key(destination: &Destination, request: &Request<'_>, identity: &Identity) -> Option<BalanceKey> {
    let upstream = &destination.upstream.as_ref()?.upstream;
    let attribute = upstream.balance_attribute()?;
    let request = request.with_destination(destination.route.route(), upstream.name());
    let value = attribute.resolve_for_match(&request.with_identity(identity));
    value.single().map(BalanceKey::new)
}

/// Answers a request that failed before its response began.
async fn fail<C: RequestClient>(client: &mut C, exchange: &mut Exchange<'_>, fault: Fault) {
    let status = fault.status().filter(|_| exchange.report.code.is_none());
    if let Some(status) = status {
        // If the upstream has seen the beginning of the request, the response counts as the upstream's, whatever the client
        // did.
        let begun = exchange.report.forwarded.is_some() && matches!(status, 400 | 408 | 413);
        exchange.report.origin = if begun { Origin::Upstream } else { Origin::Gateway };
        let refusal = fault.refusal();
        let response = match &refusal {
            Some(refusal) => {
                exchange.forwarder.gateway.metrics.http.count_refusal(refusal.reason);
                if let Some(record) = &mut exchange.record {
                    record.refuse(refusal, None);
                }
                ProblemResponse::refusal(refusal)
            }
            None => ProblemResponse::fault(status),
        };
        // The charge is kept, so the response reports it.
        let page = exchange.page(response.status());
        let fields = exchange.rate_limits.as_deref();
        let response = ProblemResponse { fields, page, cors: exchange.cors(), ..response };
        let response = own_response::problem(&response, exchange);
        own_response::write(client, exchange, response, Rest::Unread).await;
    }
    exchange.report.fault = Some(fault);
}

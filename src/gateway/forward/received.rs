//! A request whose head has been read: decides about it, and answers it or lets it go on.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::client::Client;
use super::delay::delay;
use super::exchange::{Exchange, Report};
use super::fault::Fault;
use super::forwarder::Forwarder;
use super::forwarding::{Bounds, forward, forward_http2};
use super::head_edit::HeadEdit;
use super::http2_client::Http2Client;
use super::http2_heads;
use super::own_response::{OwnResponse, Rest};
use super::own_response_settings::OwnResponses;
use super::request_client::RequestClient;
use super::request_head::{ReceivedHead, target};
use super::response_head::Reuse;
use crate::gateway::enforcement::request_record::{RecordedTls, RequestRecord};
use crate::gateway::enforcement::{
    Arrival, Decision, DecisionFindings, Direction, Patience, PaymentRecord, RequestPurpose, decide,
};
use crate::gateway::response::problem::ProblemResponse;
use crate::gateway::response::request_id;
use crate::gateway::runtime::supervise;
use crate::gateway::server::client_socket::ClientSocket;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::http1::application::ReceivedRequest;
use crate::gateway::server::http1::downstream_stream::DownstreamStream;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::http1::request_body::BodyFraming;
use crate::gateway::server::http1::request_head::Body;
use crate::gateway::server::http2::application::Http2Request;
use crate::gateway::state::destinations::Destination;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::labels::Origin;
use crate::gateway::telemetry::trace::RequestTrace;
use crate::gateway::upstream::BalanceKey;
use arc_swap::Guard;
use base::tls::server::Session as TlsSession;
use bytes::Bytes;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Uri, Version};
use request::door::Door;
use request::identity::Identity;
use request::request::Request;
use stores::Caller;

/// What has been decided about a request.
enum Decided {
    Forward,
    Answer(Box<OwnResponse>),
    Fault(Fault),
}

/// Serves one request under the configuration that it came in. Returns its connection if another may follow on it.
pub async fn serve(
    forwarder: &Forwarder,
    mut stream: Box<DownstreamStream>,
    ReceivedRequest { head, framing, client_timeout }: ReceivedRequest,
    snapshot: Guard<Arc<Snapshot>>,
) -> Option<Box<DownstreamStream>> {
    let bytes = stream.begin_exchange(head.length, framing, client_timeout).freeze();
    let parts = parts(&bytes);
    let connection = stream.handle();
    if let Some(cut) = connection.connection_cut() {
        cut.begin(|| forwarder.gateway.lifecycle.tunnel());
    }
    let draining = forwarder.gateway.is_draining();
    let kept = parts.as_ref().is_ok_and(wants_connection_kept) && !draining;
    let reuse = if kept { Reuse::Kept } else { Reuse::Closed };
    let mut client = Client { stream, reuse, is_tunnel: framing == BodyFraming::Tunnel };
    let (parts, invalid) = match parts {
        Ok(parts) => (parts, None),
        Err(fault) => (http::Request::new(()).into_parts().0, Some(fault)),
    };
    let made = || client.stream.socket_digest().map(|socket| Arc::new(ClientSocket(socket)));
    let socket = connection.client_socket(made);
    let mut exchange = begin(forwarder, parts, socket, connection);
    let received = ReceivedHead { bytes: &bytes, body: head.body };
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
        Decided::Answer(response) => Ok(client.write_own(&mut exchange, *response, Rest::Drained).await),
        Decided::Fault(fault) => Err(fault),
    };
    let reuse = match ended {
        Ok(reuse) => reuse,
        Err(fault) => {
            // What is rare is on the heap, so that it does not enlarge every request's task.
            Box::pin(fail(&mut client, &mut exchange, fault)).await;
            Reuse::Closed
        }
    };
    drop(exchange);
    let Client { stream, .. } = client;
    (reuse == Reuse::Kept && stream.is_between_requests()).then_some(stream)
}

/// Serves one request of HTTP/2.
pub async fn serve_http2(forwarder: &Forwarder, request: Http2Request) {
    let Http2Request { mut head, length, stream, handle, digest } = request;
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
    let made = || digest.socket_digest.clone().map(|socket| Arc::new(ClientSocket(socket)));
    let socket = handle.client_socket(made);
    let mut exchange = begin(forwarder, head, socket, handle);
    let mut bounds = Bounds { body: None, header_bytes: snapshot.config.bounds.header_bytes };
    let ended = match decide_about(&mut client, &mut exchange, received, snapshot).await {
        Decided::Forward => {
            bounds.body = let_pass(&mut exchange);
            Box::pin(forward_http2(&mut client, &mut exchange, received, bounds)).await
        }
        Decided::Answer(response) => Ok(client.write_own(&mut exchange, *response, Rest::Drained).await),
        Decided::Fault(fault) => Err(fault),
    };
    if let Err(fault) = ended {
        Box::pin(fail(&mut client, &mut exchange, fault)).await;
    }
}

/// The request goes to its upstream. Returns how long its body may be, if its route bounds that.
fn let_pass(exchange: &mut Exchange<'_>) -> Option<u64> {
    exchange.report.passed = true;
    exchange.overrides().and_then(|overrides| overrides.body_bytes)
}

/// Parses a head, which is valid, for those who read it.
fn parts(head: &Bytes) -> Result<Parts, Fault> {
    let invalid = |_| Fault::Own(400, "head cannot be read");
    let (mut parts, ()) = http::Request::new(()).into_parts();
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let method = line.split(|byte| *byte == b' ').next().unwrap_or_default();
    parts.method = Method::from_bytes(method).map_err(|_| invalid(()))?;
    let target = target(head);
    let uri = if target.is_ascii() { Uri::from_maybe_shared(head.slice_ref(target)) } else { Uri::try_from(target) };
    parts.uri = uri.map_err(|_| invalid(()))?;
    parts.version = if line.ends_with(b"HTTP/1.0") { Version::HTTP_10 } else { Version::HTTP_11 };
    for (name, value) in HeadEdit::new(head).fields() {
        let name = HeaderName::from_bytes(name).map_err(|_| invalid(()))?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(value)).map_err(|_| invalid(()))?;
        parts.headers.try_append(name, value).map_err(|_| invalid(()))?;
    }
    Ok(parts)
}

/// HTTP/1.1 keeps a connection unless its client says otherwise, HTTP/1.0 only if it asks for that.
fn wants_connection_kept(head: &Parts) -> bool {
    let has = |wanted: &[u8]| {
        let values = head.headers.get_all(CONNECTION).iter();
        let mut options = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        options.any(|option| option.trim_ascii().eq_ignore_ascii_case(wanted))
    };
    if head.version == Version::HTTP_11 { !has(b"close") } else { has(b"keep-alive") && !has(b"close") }
}

fn begin(
    forwarder: &Forwarder,
    head: Parts,
    socket: Option<Arc<ClientSocket>>,
    connection: ConnectionHandle,
) -> Exchange<'_> {
    let peer = socket.as_ref().and_then(|socket| Some(socket.0.peer_addr()?.as_inet()?.ip().to_canonical()));
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
        socket,
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
    let caller = exchange.socket.clone().map(|socket| socket as Arc<dyn Caller>);
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
    // A request of an old configuration keeps what it needs of it, and not the whole.
    drop(snapshot);
    match decision {
        Decision::Pass(fields) => {
            exchange.rate_limits = fields;
            let_through(exchange, received)
        }
        // What is rare is on the heap, so that it does not enlarge every request's task.
        Decision::Delay(delayed) => match Box::pin(delay(client, exchange, *delayed)).await {
            Ok(()) => let_through(exchange, received),
            Err(fault) => Decided::Fault(fault),
        },
        Decision::Preflight => {
            exchange.report.answered = true;
            match OwnResponse::preflight(exchange) {
                Some(Ok(response)) => Decided::Answer(Box::new(response)),
                Some(Err(_)) | None => Decided::Fault(Fault::Own(500, "response not made")),
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
            match OwnResponse::problem(&problem, exchange) {
                Ok(response) => Decided::Answer(Box::new(response)),
                Err(_) => Decided::Fault(Fault::Own(500, "response not made")),
            }
        }
        Decision::Gone => Decided::Fault(ClientFault::Gone.into()),
    }
}

/// The request goes to its upstream, or its route has an answer in the place of one.
fn let_through(exchange: &mut Exchange<'_>, received: ReceivedHead<'_>) -> Decided {
    let Some(destination) = exchange.destination.clone() else { return Decided::Forward };
    let Some(answer) = destination.answer.as_ref().filter(|_| destination.upstream.is_none()) else {
        return Decided::Forward;
    };
    match OwnResponse::of_route(answer, exchange, target(received.bytes), exchange.scheme_source()) {
        Ok(response) => {
            exchange.report.answered = true;
            Decided::Answer(Box::new(response))
        }
        Err(fault) => Decided::Fault(fault),
    }
}

/// What the endpoint of a request is chosen by, if its upstream does so.
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
        // A request of which the upstream has seen the beginning counts as the upstream's, whatever the client did then.
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
        // What was charged stays charged, and is reported.
        let page = exchange.page(response.status());
        let fields = exchange.rate_limits.as_deref();
        let response = ProblemResponse { fields, page, cors: exchange.cors(), ..response };
        if let Ok(response) = OwnResponse::problem(&response, exchange) {
            client.write_own(exchange, response, Rest::Unread).await;
        }
    }
    exchange.report.fault = Some(fault);
}

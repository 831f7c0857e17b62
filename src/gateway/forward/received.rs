//! Handles a request whose head has been read: decides about it, and answers it or forwards it.

use std::pin::pin;
use std::sync::Arc;

use super::body_decision::{decide_with_body, has_body};
use super::cost_observer::CostObserver;
use super::exchange::{DecidedExchange, DecidedStage, Exchange, ForwardedRequest, ReceivedExchange};
use super::fault::Fault;
use super::forwarder::Forwarder;
use super::forwarding::{ForwardingClient, forward};
use super::http2_heads;
use super::own_response;
use super::queue_wait::delay;
use super::request_head::ReceivedHead;
use super::response_record;
use super::response_report::ResponseSource;
use crate::gateway::enforcement::usage::UsageDecision;
use crate::gateway::enforcement::{
    Arrival, Decision, DecisionFindings, Direction, Patience, PaymentRecord, RequestPurpose, decide,
};
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::response::problem::ProblemResponse;
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
use crate::gateway::server::request_client::{RequestClient, Rest, Reuse, WaitEnd};
use crate::gateway::state::destinations::Destination;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::upstream::BalanceKey;
use arc_swap::Guard;
use base::tls::server::Session as TlsSession;
use http::Version;
use http::request::Parts;
use request::body_values::BodyValues;
use request::identity::Identity;
use request::request::Request;
use stores::Caller;

/// A request whose head has been read. The head is here in two forms: in parts, and as bytes.
struct RequestToServe<'h> {
    head: Parts,
    bytes: ReceivedHead<'h>,
    connection: ConnectionHandle,
    /// The fault for which the request gets no decision. `None` for a valid request.
    fault: Option<Fault>,
}

/// The result of the decision about a request.
enum Decided<'e, 'f> {
    Forward(ForwardedRequest<'e, 'f>),
    Answer(DecidedStage<'e, 'f>, ResponseSource, Box<OwnResponse>),
}

/// Serves one HTTP/1.x request. `snapshot` is the configuration that was in force when the request arrived. Returns the
/// connection if another request may follow on it.
pub(super) async fn serve(
    forwarder: &Forwarder,
    stream: Box<DownstreamStream>,
    request: ReceivedRequest,
    snapshot: Guard<Arc<Snapshot>>,
) -> Option<Box<DownstreamStream>> {
    let ClientRequest { mut client, bytes, head } = Client::begin(stream, request, &forwarder.gateway.lifecycle);
    let connection = client.stream.handle();
    let (head, fault) = match head {
        Ok(head) => (head, None),
        Err(InvalidHead) => (http::Request::new(()).into_parts().0, Some(Fault::Own(400, "head cannot be read"))),
    };
    let bytes = ReceivedHead { bytes: &bytes, body: request.head.body };
    let request = RequestToServe { head, bytes, connection, fault };
    let reuse = serve_client(forwarder, &mut client, request, snapshot).await;
    client.end(reuse)
}

/// Serves one HTTP/2 request.
pub(super) async fn serve_http2(forwarder: &Forwarder, request: Http2Request) {
    let Http2Request { mut head, length, stream, handle: connection } = request;
    let snapshot = forwarder.gateway.snapshot.load();
    if forwarder.gateway.is_draining() {
        connection.close_when_done();
    }
    let (body, fault) = match (&stream.body, length) {
        (None, Some(1..)) => (Body::Nothing, Some(Fault::LENGTH_MISMATCH)),
        (None, _) => (Body::Nothing, None),
        (Some(_), Some(length)) => (Body::Length(length), None),
        (Some(_), None) => (Body::Chunked, None),
    };
    head.version = Version::HTTP_2;
    let bytes = http2_heads::request_bytes(&head);
    let bytes = ReceivedHead { bytes: &bytes, body };
    let mut client = Http2Client::new(stream, &forwarder.gateway.lifecycle);
    serve_client(forwarder, &mut client, RequestToServe { head, bytes, connection, fault }, snapshot).await;
}

/// Serves one request of any protocol, from its head to the end of its exchange. Returns whether another request may follow on
/// its connection.
async fn serve_client<C: ForwardingClient>(
    forwarder: &Forwarder,
    client: &mut C,
    RequestToServe { head, bytes, connection, fault }: RequestToServe<'_>,
    snapshot: Guard<Arc<Snapshot>>,
) -> Reuse {
    let mut exchange = Exchange::begin(forwarder, head, connection, &snapshot);
    let header_bytes = snapshot.config.bounds.header_bytes;
    let decided = match fault {
        Some(fault) => Err(fault),
        None => decide_about(client, &mut exchange, bytes, snapshot).await,
    };
    let result = match decided {
        Ok(Decided::Forward(request)) => {
            let bytes = ReceivedHead { body: body_to_send(bytes.body, &request), ..bytes };
            forward(client, request, bytes, header_bytes).await
        }
        Ok(Decided::Answer(DecidedStage { received, decided, response: report, .. }, source, response)) => {
            drop(decided.body.take());
            let reuse = own_response::write(client, received, report, source, *response, Rest::Drained).await;
            // A slow client must not keep its slot while the rest of its request is read.
            drop(std::mem::take(&mut decided.held));
            Ok(if reuse == Reuse::Kept { client.read_rest().await } else { reuse })
        }
        Err(fault) => Err(fault),
    };
    match result {
        Ok(reuse) => reuse,
        Err(fault) => {
            // Failures are rare. Their future is on the heap, so that it does not enlarge the task of every request.
            Box::pin(fail(client, &mut exchange, fault)).await;
            Reuse::Closed
        }
    }
}

/// Decides about a request.
///
/// # Errors
/// If the client leaves before the request is forwarded or answered, or the process exits, or the request has no answer.
async fn decide_about<'e, 'f, C: ForwardingClient>(
    client: &mut C,
    exchange: &'e mut Exchange<'f>,
    head: ReceivedHead<'_>,
    snapshot: Guard<Arc<Snapshot>>,
) -> Result<Decided<'e, 'f>, Fault> {
    let received = &exchange.received;
    let gateway = &received.forwarder.gateway;
    supervise::fault_point(received.head.uri.path());
    note_untrusted_forwarded_for(received);
    let request = received.request(&snapshot);
    let caller = received.connection.socket().cloned().map(|socket| socket as Arc<dyn Caller>);
    let serves = received.connection.tls().is_none_or(|tls: &Arc<TlsSession>| tls.serves(request.host()));
    let purpose = received.purpose();
    let arrival = Arrival {
        worker: received.forwarder.worker,
        at: received.started,
        caller: received.trace.link(caller),
        direction: if serves { Direction::Right } else { Direction::Misdirected },
        purpose,
        patience: Patience::Unbounded,
        hold: None,
    };
    let payment = if received.record.is_some() { PaymentRecord::Keep } else { PaymentRecord::Discard };
    let unread = if has_body(head) { BodyValues::default() } else { BodyValues::absent() };
    let with_body = request.with_body(Some(&unread));
    let decided =
        client.until(WaitEnd::RequestEnds, pin!(decide(gateway, &snapshot, &with_body, arrival, payment))).await?;
    let (findings, body) = match decided {
        Ok(findings) => (findings, None),
        // Few requests are decided by their bodies. This future is on the heap, so that it does not enlarge the task of
        // every request.
        Err(open) => Box::pin(decide_with_body(client, received, head, &snapshot, &request, open)).await?,
    };
    let DecisionFindings { decision, identity, destination, payment, held } = findings;
    let field_changes = destination.forwarding.as_ref().and_then(|forwarding| {
        let request = request.with_identity(&identity);
        forwarding.field_changes(&request.with_destination(destination.route.route(), destination.upstream_name()))
    });
    let balance_key = balance_key(&destination, &request, &identity);
    let decided = DecidedExchange { destination, rate_limits: None, field_changes, balance_key, held, body };
    // The request keeps the parts of its configuration that it needs. So the rest of an old configuration can be freed.
    drop(snapshot);
    let mut stage = exchange.decide(decided);
    stage.response.observer = match stage.decided.held.costs() {
        Some(costs) => Some(Box::new(CostObserver::new(Arc::clone(costs), &stage.received.head))),
        None => response_record::observer(&stage.received.request_id),
    };
    supervise::fault_point_in("decided", stage.received.head.uri.path());
    if let Some(record) = &mut stage.received.record {
        record.destination = Arc::clone(&stage.decided.destination);
        record.identity = identity;
        record.payment = payment;
        record.costs = stage.decided.held.costs().map(Arc::clone);
        let ordinary = purpose == RequestPurpose::Ordinary && !matches!(decision, Decision::Usage(_));
        record.decision = ordinary.then(|| gateway.clock.now().since(stage.received.started));
    }
    match decision {
        Decision::Pass(fields) => {
            stage.decided.rate_limits = fields;
            let_through(stage, head)
        }
        Decision::Delay(delayed) => {
            // Delays are rare. Their future is on the heap, so that it does not enlarge the task of every request.
            Box::pin(delay(client, &mut stage, *delayed)).await?;
            let_through(stage, head)
        }
        Decision::Preflight => {
            let response = own_response::preflight(stage.received).ok_or(Fault::Own(500, "response not made"))?;
            Ok(Decided::Answer(stage, ResponseSource::Configuration, Box::new(response)))
        }
        Decision::Usage(UsageDecision::Answer(answer)) => {
            stage.decided.rate_limits = answer.fields;
            let response = own_response::usage(answer.body, &stage);
            Ok(Decided::Answer(stage, ResponseSource::Configuration, Box::new(response)))
        }
        Decision::Refuse(response) | Decision::Usage(UsageDecision::Refuse(response)) => {
            let refusal = &response.refusal;
            gateway.metrics.http.count_refusal(refusal.reason);
            if let Some(record) = &mut stage.received.record {
                record.refuse(refusal, response.denied_by);
            }
            let page = stage.page(refusal.status);
            let format = stage.received.error_format();
            let problem = ProblemResponse { page, format, cors: stage.received.cors(), ..response.problem() };
            let response = own_response::problem(&problem, stage.received);
            Ok(Decided::Answer(stage, ResponseSource::Gateway, Box::new(response)))
        }
        Decision::Gone => Err(ClientFault::Gone.into()),
    }
}

/// Returns the kind of body that is sent to the upstream. A body that the gateway has changed has another length.
fn body_to_send(body: Body, request: &ForwardedRequest<'_, '_>) -> Body {
    match (body, &request.attempts.body) {
        (Body::Length(_), Some(changed)) if changed.is_changed() => Body::Length(changed.len() as u64),
        _ => body,
    }
}

fn note_untrusted_forwarded_for(received: &ReceivedExchange<'_>) {
    if !received.trusted_peer
        && received.head.headers.contains_key("x-forwarded-for")
        && received.forwarder.logs.untrusted_forwarded_for.should_log(received.peer)
    {
        let hint = "if this is a proxy of yours, name it in client_ip.trusted_proxies";
        log::info!(peer:% = received.peer, hint; "X-Forwarded-For of an untrusted peer is ignored");
    }
}

/// Forwards the request, unless its route has no upstream but a fixed answer.
fn let_through<'e, 'f>(stage: DecidedStage<'e, 'f>, head: ReceivedHead<'_>) -> Result<Decided<'e, 'f>, Fault> {
    let destination = &stage.decided.destination;
    match destination.answer.as_ref().filter(|_| destination.upstream.is_none()) {
        None => Ok(Decided::Forward(stage.forward()?)),
        Some(answer) => {
            let response = own_response::of_route(answer, &stage, target(head.bytes))?;
            Ok(Decided::Answer(stage, ResponseSource::Configuration, Box::new(response)))
        }
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

/// Answers a request that failed, unless its response has begun.
async fn fail<C: RequestClient>(client: &mut C, exchange: &mut Exchange<'_>, fault: Fault) {
    let status = fault.status().filter(|_| exchange.response.begun.is_none());
    if let Some(status) = status {
        let refusal = fault.refusal();
        let response = match &refusal {
            Some(refusal) => {
                exchange.received.forwarder.gateway.metrics.http.count_refusal(refusal.reason);
                if let Some(record) = &mut exchange.received.record {
                    record.refuse(refusal, None);
                }
                ProblemResponse::refusal(refusal)
            }
            None => ProblemResponse::fault(status),
        };
        // The request stays charged, so the response also has its rate-limit fields.
        let page = exchange.page(response.status());
        let cors = exchange.received.cors();
        let format = exchange.received.error_format();
        let response = ProblemResponse { fields: exchange.rate_limits(), page, format, cors, ..response };
        let response = own_response::problem(&response, &exchange.received);
        // If the upstream has got the beginning of the request, the response counts as the upstream's, even if the
        // client caused the failure.
        let counts_as_upstream = exchange.was_sent() && matches!(status, 400 | 408 | 413);
        let source = if counts_as_upstream { ResponseSource::Upstream } else { ResponseSource::Gateway };
        let Exchange { received, response: report, .. } = exchange;
        own_response::write(client, received, report, source, response, Rest::Unread).await;
    }
    exchange.response.fault = Some(fault);
}

//! Forwards an admitted request: sends it to its upstream, and the response to its client.

use std::future::poll_fn;

use http::header::TE;
use http::{HeaderValue, Method};

use super::attempts::{Attempts, Repeatable, UpstreamAttempt, UpstreamConnection, answered};
use super::chunked::Coding;
use super::download::{Download, ResponseFraming};
use super::exchange::Exchange;
use super::fault::{Fault, Stage, UpstreamFault};
use super::http1_client::Http1Client;
use super::http1_response_head::{Persistence, ResponseBody, ResponseHead};
use super::own_response::is_http11;
use super::relayed_exchange::{RelayedRequest, over_http1, over_http2};
use super::request_head::{self, ReceivedHead};
use super::response_head::{self, ClientFraming, FinalHead, Reuse};
use super::trailers::changed_fields;
use super::transfer::{Timeouts, Transfer};
use super::upload::Upload;
use crate::gateway::server::http1::client::Client;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::http1::request_body::Chunks;
use crate::gateway::server::http1::request_head::{Body, Size};
use crate::gateway::server::http2::client::Http2Client;
use crate::gateway::server::request_client::RequestClient;
use crate::gateway::server::websocket;
use crate::gateway::telemetry::labels::{Origin, UpstreamError};
use base::time::Micros;
use request::grpc_timeout::is_grpc;

/// The most interim responses (1xx) to one request. An honest upstream sends one or two.
const MOST_INTERIM: u8 = 32;

/// The most fields of a response head. An upstream may set many cookies.
const MOST_FIELDS: usize = 256;

/// The result of an exchange: whether the client's connection is kept, or the fault that ended the exchange.
pub(super) type ExchangeResult = Result<Reuse, Fault>;

/// The bounds on a request and its response, from the configuration under which the request arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The longest allowed body of the request, in bytes. `None` if the route does not bound the body.
    pub body: Option<u64>,
    /// The largest allowed head of the response, in bytes.
    pub header_bytes: usize,
}

/// A response whose head has been passed on to the client.
#[derive(Clone, Copy, Debug)]
struct PassedHead {
    /// Whether the client's connection is kept after the response.
    reuse: Reuse,
    client: ClientFraming,
    /// Whether the upstream's connection can be kept after the response.
    persistence: Persistence,
}

/// Sends the request to the upstream, and the response to the client. If this fails, the response may have begun. `exchange`
/// then has the status code of the response.
pub(super) async fn forward(
    client: &mut Client,
    exchange: &mut Exchange<'_>,
    head: ReceivedHead<'_>,
    bounds: Bounds,
) -> ExchangeResult {
    let mut attempts = Attempts::default();
    let size = Size { bytes: bounds.header_bytes, fields: MOST_FIELDS, target: 0 };
    let expects_continue = exchange.head.headers.contains_key(http::header::EXPECT);
    let coding = if head.body == Body::Chunked { Coding::Chunked } else { Coding::Plain };
    let has_body = matches!(head.body, Body::Chunked | Body::Length(_));
    if expects_continue {
        client.stream.expect_body_later();
    }
    let relayed = RelayedRequest { head, size, body_left: bounds.body, expects_continue };
    loop {
        let connected = client.until_given_up(attempts.connect(exchange)).await??;
        if let Some(deadline) = attempts.deadline {
            client.stream.set_deadline(deadline);
        }
        client.stream.restart_upstream_wait();
        let UpstreamAttempt { connection, reuse, key, since, idle_timeout, read_timeout, write_timeout } = connected;
        let stream = match connection {
            UpstreamConnection::Http1(stream) => stream,
            UpstreamConnection::Http2(stream) => {
                if std::mem::replace(&mut client.is_tunnel, false) && !client.stream.refuse_tunnel() {
                    client.reuse = Reuse::Closed;
                }
                let kept = client.reuse;
                let mut client = Http1Client::new(client, is_http11(exchange));
                let connected = UpstreamAttempt {
                    connection: stream,
                    reuse,
                    key,
                    since,
                    idle_timeout,
                    read_timeout,
                    write_timeout,
                };
                // HTTP/2 upstreams are rarer. Their future is on the heap, so that it does not enlarge the task of every
                // request.
                match Box::pin(over_http2(&mut client, connected, relayed, exchange, &mut attempts, kept)).await {
                    Some(ended) => return ended,
                    None => continue,
                }
            }
        };
        let mut out = Vec::new();
        request_head::write(head, exchange, &mut out)?;
        let of_route = if coding == Coding::Chunked { changed_fields(exchange) } else { Vec::new() };
        let mut transfer = Transfer {
            client: &mut *client,
            upstream: stream,
            upload: Upload::new(out, coding, has_body, bounds.body, of_route),
            download: Download::default(),
            timeouts: Timeouts { read: read_timeout, write: write_timeout },
            size,
            stage: Stage::Sent,
            expects_continue,
        };
        let response = final_head(&mut transfer, exchange).await;
        exchange.report.request_bytes = transfer.upload.bytes;
        if transfer.upload.has_begun {
            exchange.report.forwarded = Some(since);
        }
        let response = match response {
            Ok(response) => response,
            Err(Fault::Upstream(fault)) => {
                if attempts.fail_before_response(exchange, &fault, (reuse, key), transfer.upload.repeatable()) {
                    continue;
                }
                return Err(fault.into());
            }
            Err(fault) => return Err(fault),
        };
        let begun = match begin_response(&mut transfer, exchange, response) {
            Ok(begun) => begun,
            Err(fault) => {
                if let Fault::Upstream(fault) = &fault {
                    attempts.fail_before_response(exchange, fault, (reuse, key), Repeatable::No);
                }
                return Err(fault);
            }
        };
        let ended = poll_fn(|cx| transfer.poll_body(cx)).await;
        exchange.report.request_bytes = transfer.upload.bytes;
        exchange.report.response_bytes = transfer.download.bytes;
        let Transfer { upstream, upload, download, .. } = transfer;
        return match ended {
            Ok(()) => {
                if begun.persistence == Persistence::Kept && upload.is_sent() && download.is_clean() {
                    let now = exchange.forwarder.gateway.clock.now();
                    exchange.forwarder.pool.put(key, upstream, idle_timeout, now);
                }
                Ok(begun.reuse)
            }
            Err(fault) => {
                if begun.client == ClientFraming::UntilClose {
                    client.stream.reset_at_close();
                }
                if let Fault::Upstream(fault) = &fault {
                    attempts.fail_while_answering(exchange, fault);
                }
                Err(fault)
            }
        };
    }
}

/// Forwards the request of an HTTP/2 client, as [`forward`] does for HTTP/1.
pub(super) async fn forward_http2(
    client: &mut Http2Client,
    exchange: &mut Exchange<'_>,
    head: ReceivedHead<'_>,
    bounds: Bounds,
) -> ExchangeResult {
    let mut attempts = Attempts::default();
    let size = Size { bytes: bounds.header_bytes, fields: MOST_FIELDS, target: 0 };
    let expects_continue = exchange.head.headers.contains_key(http::header::EXPECT);
    if expects_continue {
        client.expect_body_later();
    }
    let relayed = RelayedRequest { head, size, body_left: bounds.body, expects_continue };
    loop {
        let connected = client.until_given_up(attempts.connect(exchange)).await??;
        if let Some(deadline) = attempts.deadline {
            client.set_deadline(deadline);
        }
        client.restart_upstream_wait();
        let UpstreamAttempt { connection, reuse, key, since, idle_timeout, read_timeout, write_timeout } = connected;
        let attempts = &mut attempts;
        let ended = match connection {
            UpstreamConnection::Http1(connection) => {
                let connected =
                    UpstreamAttempt { connection, reuse, key, since, idle_timeout, read_timeout, write_timeout };
                over_http1(client, connected, relayed, exchange, attempts, Reuse::Kept).await
            }
            UpstreamConnection::Http2(connection) => {
                let (mut read_timeout, mut write_timeout) = (read_timeout, write_timeout);
                if let Some(idle) = pause_of_grpc(exchange) {
                    (read_timeout, write_timeout) = (idle, idle);
                    client.set_client_timeout(idle.into());
                }
                let connected =
                    UpstreamAttempt { connection, reuse, key, since, idle_timeout, read_timeout, write_timeout };
                over_http2(client, connected, relayed, exchange, attempts, Reuse::Kept).await
            }
        };
        if let Some(ended) = ended {
            return ended;
        }
    }
}

/// How long both sides of a gRPC stream may pause; `None` for other requests. A request with the content type of gRPC is not
/// enough: it must also have the method and `TE` that every gRPC client sends.
fn pause_of_grpc(exchange: &Exchange<'_>) -> Option<Micros> {
    let head = &exchange.head;
    let accepts_trailers = |te: &HeaderValue| te.as_bytes().eq_ignore_ascii_case(b"trailers");
    let is_stream = is_grpc(head) && head.method == Method::POST && head.headers.get(TE).is_some_and(accepts_trailers);
    exchange.upstream().filter(|_| is_stream).map(|one| one.stream_idle_timeout)
}

/// Passes interim responses on, and returns the final head.
async fn final_head(transfer: &mut Transfer<'_>, exchange: &Exchange<'_>) -> Result<ResponseHead, Fault> {
    let mut interim = 0;
    loop {
        let head = poll_fn(|cx| transfer.poll_head(cx)).await?;
        if !(100..200).contains(&head.status) || head.status == 101 {
            return Ok(head);
        }
        interim += 1;
        if interim > MOST_INTERIM {
            return Err(invalid("too many interim responses").into());
        }
        let bytes = transfer.download.input.split_to(head.length);
        transfer.download.expect_head();
        if is_http11(exchange) {
            let reason = bytes.get(head.reason.0..head.reason.1).unwrap_or_default();
            response_head::write_interim(&bytes, head.status, reason, &mut transfer.download.out);
            poll_fn(|cx| transfer.poll_out(cx)).await.map_err(|fault| match fault {
                // After a part of a head, no other response can be written.
                Fault::Client(ClientFault::Expired) => ClientFault::Stalled.into(),
                other => other,
            })?;
        }
        if head.status == 100 {
            transfer.client.stream.expect_body();
        }
        transfer.client.stream.restart_upstream_wait();
    }
}

/// Prepares the response for the client. The head is written together with the first part of the body.
fn begin_response(
    transfer: &mut Transfer<'_>,
    exchange: &mut Exchange<'_>,
    head: ResponseHead,
) -> Result<PassedHead, Fault> {
    let bytes = transfer.download.input.split_to(head.length);
    let forwarder = exchange.forwarder;
    let is_upgrade = head.status == 101;
    if is_upgrade && !(transfer.client.is_tunnel && websocket::accepts(&exchange.head.headers, &bytes)) {
        // Such a response would make a tunnel of a connection on which the client sends requests.
        return Err(invalid("an upgrade that nobody asked for").into());
    }
    if !is_upgrade
        && std::mem::replace(&mut transfer.client.is_tunnel, false)
        && !transfer.client.stream.refuse_tunnel()
    {
        transfer.client.reuse = Reuse::Closed;
    }
    let is_http11 = is_http11(exchange);
    let has_body = exchange.head.method != Method::HEAD && !matches!(head.status, 204 | 304);
    let (framing, body, coding) = match head.body {
        _ if is_upgrade => (ClientFraming::Tunnel, ResponseFraming::UntilClose, Coding::Plain),
        ResponseBody::Length(_) if head.status == 204 => {
            (ClientFraming::Nothing, ResponseFraming::Nothing, Coding::Plain)
        }
        ResponseBody::Chunked if exchange.head.method == Method::HEAD && is_http11 && head.status != 204 => {
            (ClientFraming::Chunked, ResponseFraming::Nothing, Coding::Plain)
        }
        ResponseBody::Chunked if !has_body => (ClientFraming::Nothing, ResponseFraming::Nothing, Coding::Plain),
        _ if !has_body => (ClientFraming::AsReceived, ResponseFraming::Nothing, Coding::Plain),
        ResponseBody::Length(length) => (ClientFraming::AsReceived, ResponseFraming::length(length), Coding::Plain),
        ResponseBody::Chunked | ResponseBody::UntilClose => {
            let body = match head.body {
                ResponseBody::Chunked => ResponseFraming::Chunked(Chunks::of_response()),
                _ => ResponseFraming::UntilClose,
            };
            match is_http11 {
                true => (ClientFraming::Chunked, body, Coding::Chunked),
                false => (ClientFraming::UntilClose, body, Coding::Plain),
            }
        }
    };
    let is_read = transfer.client.stream.is_complete();
    let closes = !is_read || framing == ClientFraming::UntilClose || forwarder.gateway.is_draining();
    let reuse = if is_upgrade || closes { Reuse::Closed } else { transfer.client.reuse };
    exchange.report.origin = Origin::Upstream;
    exchange.report.code = Some(head.status);
    answered(exchange, head.status);
    let reason = bytes.get(head.reason.0..head.reason.1).unwrap_or_default();
    let written = FinalHead { bytes: &bytes, status: head.status, reason, framing, reuse };
    response_head::write(written, exchange, &mut transfer.download.out);
    transfer.download.expect_body(body, coding);
    if is_upgrade {
        open_tunnel(transfer, exchange);
    } else {
        transfer.client.stream.expect_no_body();
        transfer.upload.note_answered();
    }
    // The response ends with its head, whatever length the head states.
    let persistence = if body == ResponseFraming::UntilClose { Persistence::Closed } else { head.persistence };
    Ok(PassedHead { reuse, client: framing, persistence })
}

/// Opens a tunnel, because the upstream has accepted an upgrade. From now on the request ends when it is idle for too long.
fn open_tunnel(transfer: &mut Transfer<'_>, exchange: &Exchange<'_>) {
    transfer.upload.open_tunnel();
    transfer.client.stream.clear_deadline();
    if let Some(one) = exchange.upstream() {
        transfer.timeouts = Timeouts { read: one.stream_idle_timeout, write: one.stream_idle_timeout };
        transfer.client.stream.set_client_timeout(one.stream_idle_timeout.into());
    }
}

fn invalid(detail: &str) -> UpstreamFault {
    let detail = format!("InvalidHTTPHeader: {detail}");
    UpstreamFault::new(UpstreamError::InvalidAnswer, detail, Stage::Answering)
}

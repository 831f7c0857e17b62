//! One attempt to send a request if at least one side speaks HTTP/2: passes interim responses on, and then the response.

use std::future::poll_fn;

use bytes::BytesMut;
use http::uri::Scheme;
use http::{Method, Version};

use super::attempts::{Attempts, ConnectionUse, Repeatable, UpstreamAttempt, answered};
use super::chunked::Coding;
use super::exchange::Exchange;
use super::fault::{Fault, Stage, UpstreamFault};
use super::forwarding::ExchangeResult;
use super::http1_response_head::{Persistence, ResponseBody, ResponseHead};
use super::http1_upstream::Http1Upstream;
use super::http2_heads;
use super::http2_pool::Http2Stream;
use super::http2_upstream::Http2Upstream;
use super::relay::{Progress, Relay, Uploading};
use super::relay_sides::{ClientSide, HasBody, InterimHead, UpstreamSide};
use super::request_head::{self, ReceivedHead};
use super::response_head::{ClientFraming, FinalHead, Reuse};
use super::transfer::Timeouts;
use super::upstream_pool::UpstreamStream;
use crate::gateway::server::body_part::StatedLength;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::http1::request_head::{Body, Size};
use crate::gateway::telemetry::labels::{Origin, UpstreamError};

/// The most interim responses (1xx) to one request. An honest upstream sends one or two.
const MOST_INTERIM: u8 = 32;

/// A request that is to be sent, with its bounds. All attempts send the request in the same form.
#[derive(Clone, Copy, Debug)]
pub(super) struct RelayedRequest<'h> {
    pub head: ReceivedHead<'h>,
    /// The largest allowed head of the response.
    pub size: Size,
    /// The longest allowed body of the request, in bytes. `None` if the route does not bound the body.
    pub body_left: Option<u64>,
    pub expects_continue: bool,
}

/// Makes one attempt to send the request to an HTTP/2 upstream. `kept` says whether the client's connection may be kept.
/// Returns `None` if another attempt follows.
pub(super) async fn over_http2<C: ClientSide>(
    client: &mut C,
    connected: UpstreamAttempt<Http2Stream>,
    request: RelayedRequest<'_>,
    exchange: &mut Exchange<'_>,
    attempts: &mut Attempts,
    kept: Reuse,
) -> Option<ExchangeResult> {
    let UpstreamAttempt { connection, reuse, key, since, read_timeout, write_timeout, .. } = connected;
    let timeouts = Timeouts { read: read_timeout, write: write_timeout };
    let scheme = match exchange.report.attempt.as_ref().map(|attempt| attempt.endpoint.scheme) {
        Some(config::Scheme::Https) => Scheme::HTTPS,
        _ => Scheme::HTTP,
    };
    let head = match http2_heads::request(request.head, exchange, scheme) {
        Ok(head) => head,
        Err(fault) => return Some(Err(fault)),
    };
    let upstream = match Http2Upstream::begin(connection, head, request.has_body(), request.size) {
        Ok(upstream) => upstream,
        Err(fault) if attempts.fail_before_response(exchange, &fault, (reuse, key), Repeatable::Yes) => return None,
        Err(fault) => return Some(Err(fault.into())),
    };
    exchange.report.forwarded = Some(since);
    let mut relay = Relay::new(client, upstream, request.upload(), timeouts);
    relay.expects_continue = request.expects_continue;
    let AttemptEnd { ended, .. } = relay_once(&mut relay, exchange, kept).await;
    let repeatable = relay.repeatable();
    match ended {
        Ok(reuse) => Some(Ok(reuse)),
        Err(Fault::Upstream(fault)) => fail(exchange, attempts, fault, (reuse, key), repeatable),
        Err(fault) => Some(Err(fault)),
    }
}

/// Makes one attempt to send the request to an HTTP/1.1 upstream. `kept` says whether the client's connection may be kept.
/// Returns `None` if another attempt follows.
pub(super) async fn over_http1<C: ClientSide>(
    client: &mut C,
    connected: UpstreamAttempt<UpstreamStream>,
    request: RelayedRequest<'_>,
    exchange: &mut Exchange<'_>,
    attempts: &mut Attempts,
    kept: Reuse,
) -> Option<ExchangeResult> {
    let UpstreamAttempt { connection, reuse, key, since, idle_timeout, read_timeout, write_timeout } = connected;
    let mut out = Vec::new();
    if let Err(fault) = request_head::write(request.head, exchange, &mut out) {
        return Some(Err(fault));
    }
    let coding = if request.head.body == Body::Chunked { Coding::Chunked } else { Coding::Plain };
    let upstream = Http1Upstream::new(connection, out, coding, request.size);
    let timeouts = Timeouts { read: read_timeout, write: write_timeout };
    let mut relay = Relay::new(client, upstream, request.upload(), timeouts);
    relay.expects_continue = request.expects_continue;
    let AttemptEnd { ended, persistence } = relay_once(&mut relay, exchange, kept).await;
    if relay.upstream.has_begun {
        exchange.report.forwarded = Some(since);
    }
    let repeatable = relay.repeatable();
    match ended {
        Ok(client) => {
            let Relay { upstream, upload, .. } = relay;
            if persistence == Persistence::Kept && upload.is_sent() && upstream.is_clean() {
                let forwarder = exchange.forwarder;
                forwarder.pool.put(key, upstream.stream, idle_timeout, forwarder.gateway.clock.now());
            }
            Some(Ok(client))
        }
        Err(Fault::Upstream(fault)) => fail(exchange, attempts, fault, (reuse, key), repeatable),
        Err(fault) => Some(Err(fault)),
    }
}

/// Handles a failure of the upstream. `None` if another attempt follows.
fn fail(
    exchange: &mut Exchange<'_>,
    attempts: &mut Attempts,
    fault: UpstreamFault,
    connection: (ConnectionUse, u64),
    repeatable: Repeatable,
) -> Option<ExchangeResult> {
    if exchange.report.code.is_some() {
        attempts.fail_while_answering(exchange, &fault);
    } else if attempts.fail_before_response(exchange, &fault, connection, repeatable) {
        return None;
    }
    Some(Err(fault.into()))
}

impl RelayedRequest<'_> {
    fn has_body(&self) -> HasBody {
        if matches!(self.head.body, Body::Chunked | Body::Length(_)) { HasBody::Yes } else { HasBody::No }
    }

    fn upload(&self) -> Uploading {
        let length = if let Body::Length(length) = self.head.body { Some(length) } else { None };
        Uploading::new(self.has_body(), self.body_left, StatedLength(length))
    }
}

/// How an attempt ended.
#[derive(Debug)]
struct AttemptEnd {
    /// Whether the client's connection is kept, or the fault that ended the exchange.
    ended: ExchangeResult,
    /// Whether the response allows another request on the upstream's connection.
    persistence: Persistence,
}

/// Sends the request, whose head the upstream's side already has, and its response. After an error, the response may have
/// begun; `exchange` then has its status code.
async fn relay_once<C: ClientSide, U: UpstreamSide>(
    relay: &mut Relay<'_, C, U>,
    exchange: &mut Exchange<'_>,
    kept: Reuse,
) -> AttemptEnd {
    let mut persistence = Persistence::Closed;
    let ended = async {
        let (head, bytes) = final_head(relay, exchange).await?;
        let ends_with_connection = head.body == ResponseBody::UntilClose && has_body(exchange, &head) == HasBody::Yes;
        persistence = if ends_with_connection { Persistence::Closed } else { head.persistence };
        let reuse = begin_response(relay, exchange, &head, &bytes, kept)?;
        let body = poll_fn(|cx| relay.poll_body(exchange, cx)).await;
        if body.is_err() {
            relay.client.cut_short();
        }
        body.map(|()| reuse)
    };
    let ended: ExchangeResult = ended.await;
    exchange.report.request_bytes = relay.upload.bytes;
    exchange.report.response_bytes = relay.response_bytes;
    AttemptEnd { ended, persistence }
}

/// Passes interim responses on, and returns the final head.
async fn final_head<C: ClientSide, U: UpstreamSide>(
    relay: &mut Relay<'_, C, U>,
    exchange: &Exchange<'_>,
) -> Result<(ResponseHead, BytesMut), Fault> {
    let mut interim = 0;
    loop {
        let (head, bytes) = poll_fn(|cx| relay.poll_head(exchange, cx)).await?;
        if head.status == 101 {
            // Requests here never ask for an upgrade.
            return Err(invalid("an upgrade that nobody asked for").into());
        }
        if !(100..200).contains(&head.status) {
            return Ok((head, bytes));
        }
        relay.progress = Progress::Interim;
        interim += 1;
        if interim > MOST_INTERIM {
            return Err(invalid("too many interim responses").into());
        }
        let written = InterimHead { bytes: &bytes, status: head.status, reason: reason(&head, &bytes) };
        relay.client.write_interim(written, exchange)?;
        poll_fn(|cx| relay.client.poll_flush(cx)).await.map_err(|fault| match fault {
            // After a part of a head, no other response can be written.
            ClientFault::Expired => ClientFault::Stalled,
            other => other,
        })?;
        if head.status == 100 {
            relay.client.expect_body();
        }
        relay.client.restart_upstream_wait();
    }
}

fn reason<'b>(head: &ResponseHead, bytes: &'b [u8]) -> &'b [u8] {
    bytes.get(head.reason.0..head.reason.1).unwrap_or_default()
}

fn has_body(exchange: &Exchange<'_>, head: &ResponseHead) -> HasBody {
    let has_none = exchange.head.method == Method::HEAD || matches!(head.status, 204 | 304);
    if has_none { HasBody::No } else { HasBody::Yes }
}

/// Prepares the response for the client. The head is written together with the first part of the body.
fn begin_response<C: ClientSide, U: UpstreamSide>(
    relay: &mut Relay<'_, C, U>,
    exchange: &mut Exchange<'_>,
    head: &ResponseHead,
    bytes: &[u8],
    kept: Reuse,
) -> Result<Reuse, Fault> {
    // This matters for gRPC clients, which read the fields of a response without a body as trailers.
    let body = match exchange.head.version == Version::HTTP_2 && relay.upstream.ends_with_head(head) {
        true => HasBody::No,
        false => has_body(exchange, head),
    };
    let in_parts = match exchange.head.version {
        Version::HTTP_2 => ClientFraming::Frames,
        Version::HTTP_11 => ClientFraming::Chunked,
        _ => ClientFraming::UntilClose,
    };
    let framing = match head.body {
        ResponseBody::Length(_) if head.status == 204 => ClientFraming::Nothing,
        ResponseBody::Chunked if body == HasBody::No => match in_parts {
            ClientFraming::Chunked if head.status != 204 && exchange.head.method == Method::HEAD => in_parts,
            _ => ClientFraming::Nothing,
        },
        _ if body == HasBody::No => ClientFraming::AsReceived,
        ResponseBody::Length(_) => ClientFraming::AsReceived,
        ResponseBody::Chunked | ResponseBody::UntilClose => in_parts,
    };
    let is_draining = exchange.forwarder.gateway.is_draining();
    let closes = !relay.client.is_complete() || framing == ClientFraming::UntilClose || is_draining;
    let reuse = if closes { Reuse::Closed } else { kept };
    let written = FinalHead { bytes, status: head.status, reason: reason(head, bytes), framing, reuse };
    relay.client.write_head(written, exchange, body)?;
    exchange.report.origin = Origin::Upstream;
    exchange.report.code = Some(head.status);
    answered(exchange, head.status);
    if let (ResponseBody::Length(length), HasBody::Yes) = (head.body, body) {
        relay.response_length = StatedLength(Some(length));
    }
    relay.upstream.expect_body(head, body);
    relay.client.expect_no_body();
    relay.note_answered();
    if body == HasBody::No {
        relay.end_with_head();
    }
    Ok(reuse)
}

fn invalid(detail: &str) -> UpstreamFault {
    UpstreamFault::new(UpstreamError::InvalidAnswer, format!("InvalidHTTPHeader: {detail}"), Stage::Answering)
}

//! One attempt to send a request if at least one side speaks HTTP/2: passes interim responses on, and then the response.

use std::future::poll_fn;

use bytes::BytesMut;
use http::Version;

use super::attempts::{AttemptEnd, UpstreamAttempt};
use super::exchange::ForwardedRequest;
use super::fault::{Fault, UpstreamFault};
use super::forwarding::{Interim, MOST_INTERIM};
use super::head_edit::HeadEdit;
use super::http1_response_head::{Content, Persistence, ResponseBody, ResponseHead};
use super::outgoing_request::OutgoingRequest;
use super::relay::{Progress, Relay};
use super::relay_sides::{ClientSide, InterimHead, UpstreamSide};
use super::repeatable::Repeatable;
use super::response_head::{ClientFraming, FinalHead, has_body};
use crate::gateway::server::body_part::{HasBody, StatedLength};
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::request_client::Reuse;

/// Makes one attempt to send the request to the upstream. `kept` says whether the client's connection may be kept.
///
/// # Errors
/// If the client or the upstream fails, and no other attempt follows.
pub(super) async fn relay<C: ClientSide, U: UpstreamSide>(
    client: &mut C,
    connection: U::Connection,
    attempt: UpstreamAttempt,
    outgoing: OutgoingRequest<'_>,
    request: &mut ForwardedRequest<'_, '_>,
    kept: Reuse,
) -> Result<AttemptEnd, Fault> {
    let upstream = match U::begin(connection, &attempt, outgoing, request) {
        Ok(upstream) => upstream,
        Err(fault) => return request.fail_attempt(fault, &attempt, Repeatable::Yes),
    };
    if upstream.has_begun() {
        request.attempts.sent = Some(attempt.since);
    }
    let body = request.attempts.body.as_deref().cloned();
    let mut relay = Relay::new(client, upstream, &outgoing, attempt.timeouts, request.decided, body);
    let RelayEnd { result, persistence } = relay_once(&mut relay, request, kept).await;
    if relay.upstream.has_begun() {
        request.attempts.sent = Some(attempt.since);
    }
    let repeatable = relay.repeatable();
    match result {
        Ok(AttemptEnd::Retry) => Ok(AttemptEnd::Retry),
        Ok(responded) => {
            if persistence == Persistence::Kept && relay.upload.is_sent() {
                relay.upstream.release(&attempt, request.received.forwarder);
            }
            Ok(responded)
        }
        Err(fault) => request.fail_attempt(fault, &attempt, repeatable),
    }
}

/// How a relay ended.
#[derive(Debug)]
struct RelayEnd {
    /// What follows, or the fault that ended the attempt.
    result: Result<AttemptEnd, Fault>,
    /// Whether the response allows another request on the upstream's connection.
    persistence: Persistence,
}

/// Sends the rest of the request to the upstream, which already has the head. Sends the response to the client. After
/// an error, the response may have begun. `request` then has the status code of the response.
async fn relay_once<C: ClientSide, U: UpstreamSide>(
    relay: &mut Relay<'_, C, U>,
    request: &mut ForwardedRequest<'_, '_>,
    kept: Reuse,
) -> RelayEnd {
    let mut persistence = Persistence::Closed;
    let relayed = async {
        let (head, bytes, interim) = final_head(relay, request).await?;
        if interim == Interim::None && request.retry_after_status(head.status, relay.repeatable()) {
            return Ok(AttemptEnd::Retry);
        }
        let ends_with_connection =
            head.body == ResponseBody::UntilClose && has_body(&head, request.received) == HasBody::Yes;
        persistence = if ends_with_connection { Persistence::Closed } else { head.persistence };
        let reuse = begin_response(relay, request, &head, &bytes, kept)?;
        let body = poll_fn(|cx| relay.poll_body(request.response, cx)).await;
        if body.is_err() {
            relay.client.cut_short();
        }
        body.map(|()| AttemptEnd::Responded(reuse))
    };
    let result: Result<AttemptEnd, Fault> = relayed.await;
    request.attempts.request_bytes = relay.upload.bytes;
    RelayEnd { result, persistence }
}

/// Passes interim responses on, and returns the final head.
async fn final_head<C: ClientSide, U: UpstreamSide>(
    relay: &mut Relay<'_, C, U>,
    request: &ForwardedRequest<'_, '_>,
) -> Result<(ResponseHead, BytesMut, Interim), Fault> {
    let mut interim = 0;
    loop {
        let (head, bytes) = poll_fn(|cx| relay.poll_head(cx)).await?;
        if head.status == 101 {
            // A request in a relay never asks for an upgrade.
            return Err(UpstreamFault::invalid_head("an upgrade that nobody asked for").into());
        }
        if !(100..200).contains(&head.status) {
            return Ok((head, bytes, Interim::before(interim)));
        }
        relay.progress = Progress::Interim;
        interim += 1;
        if interim > MOST_INTERIM {
            return Err(UpstreamFault::invalid_head("too many interim responses").into());
        }
        let written = InterimHead { bytes: &bytes, status: head.status, reason: reason(&head, &bytes) };
        relay.client.write_interim(written, request)?;
        poll_fn(|cx| relay.client.poll_flush(cx)).await.map_err(|fault| match fault {
            // A part of the interim head may have been written, so no other response can follow.
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

/// Prepares the response for the client. The head is written together with the first part of the body.
fn begin_response<C: ClientSide, U: UpstreamSide>(
    relay: &mut Relay<'_, C, U>,
    request: &mut ForwardedRequest<'_, '_>,
    head: &ResponseHead,
    bytes: &[u8],
    kept: Reuse,
) -> Result<Reuse, Fault> {
    // An HTTP/2 response without a body ends with its head. This matters for gRPC clients, which read the fields of a
    // response without a body as trailers.
    let body = match request.received.head.version == Version::HTTP_2 && relay.upstream.ends_with_head(head) {
        true => HasBody::No,
        false => has_body(head, request.received),
    };
    let takes_usage_out = request.takes_usage_out()
        && head.content == Content::EventStream
        && body == HasBody::Yes
        && HeadEdit::new(bytes).values("content-encoding").all(|coding| coding.eq_ignore_ascii_case(b"identity"));
    let framing = match head.body {
        // The response gets shorter, so the length in its head is no longer true.
        ResponseBody::Length(_) if takes_usage_out => {
            ClientFraming::of(&ResponseHead { body: ResponseBody::Chunked, ..*head }, body, request.received)
        }
        _ => ClientFraming::of(head, body, request.received),
    };
    relay.usage_filter = takes_usage_out.then(Box::default);
    let is_draining = request.received.forwarder.gateway.is_draining();
    let closes = !relay.client.is_complete() || framing == ClientFraming::UntilClose || is_draining;
    let reuse = if closes { Reuse::Closed } else { kept };
    let written = FinalHead { bytes, status: head.status, reason: reason(head, bytes), framing, reuse };
    relay.client.write_head(written, request, body)?;
    request.begin_response(head.status, bytes);
    if let (ResponseBody::Length(length), HasBody::Yes) = (head.body, body) {
        relay.response_length = StatedLength(Some(length));
    }
    if head.content == Content::EventStream {
        relay.timeouts.read = request.upstream.stream_idle_timeout;
    }
    relay.upstream.expect_body(head, body);
    relay.client.expect_no_body();
    relay.note_answered();
    if body == HasBody::No {
        relay.end_with_head();
        request.response.note_end(&[]);
    }
    Ok(reuse)
}

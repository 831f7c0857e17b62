//! Makes the attempts for an HTTP/1.x client. If the upstream speaks HTTP/1.x too, passes interim responses on, and
//! then the final response.

use std::future::poll_fn;

use super::attempts::{AttemptEnd, UpstreamAttempt, UpstreamConnection};
use super::chunked::Coding;
use super::download::{Download, ResponseFraming};
use super::exchange::ForwardedRequest;
use super::fault::{Fault, Stage, UpstreamFault};
use super::forwarding::{ForwardingClient, Interim, MOST_INTERIM};
use super::http1_client::Http1Client;
use super::http1_response_head::{Content, Persistence, ResponseHead};
use super::http1_upstream::Http1Upstream;
use super::http2_upstream::Http2Upstream;
use super::outgoing_request::OutgoingRequest;
use super::read_body::{BodyReader, ReadBody};
use super::relay_sides::read_whole_body;
use super::relayed_exchange::relay;
use super::repeatable::Repeatable;
use super::request_head;
use super::response_head::{self, ClientFraming, FinalHead, has_body};
use super::trailers::changed_fields;
use super::transfer::{NextBytes, Timeouts, Transfer};
use super::upload::Upload;
use crate::gateway::server::body_part::HasBody;
use crate::gateway::server::http1::client::Client;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::http1::request_head::Body;
use crate::gateway::server::request_client::Reuse;
use crate::gateway::server::websocket;
use base::time::Timestamp;

/// A response whose head has been passed on to the client.
#[derive(Clone, Copy, Debug)]
struct PassedHead {
    /// Whether the client's connection is kept after the response.
    reuse: Reuse,
    client: ClientFraming,
    /// Whether the upstream's connection can be kept after the response.
    persistence: Persistence,
}

impl ForwardingClient for Client {
    fn expect_body_later(&mut self) {
        self.stream.expect_body_later();
    }

    fn set_deadline(&mut self, deadline: Timestamp) {
        self.stream.set_deadline(deadline);
    }

    fn restart_upstream_wait(&mut self) {
        self.stream.restart_upstream_wait();
    }

    async fn read_request_body(&mut self, reader: BodyReader) -> Result<ReadBody, Fault> {
        read_whole_body(&mut Http1Client::new(self, true), reader).await
    }

    async fn attempt(
        &mut self,
        connection: UpstreamConnection,
        attempt: UpstreamAttempt,
        outgoing: OutgoingRequest<'_>,
        request: &mut ForwardedRequest<'_, '_>,
    ) -> Result<AttemptEnd, Fault> {
        let stream = match connection {
            // Only a relay can take an event out of the response.
            UpstreamConnection::Http1(stream) if request.takes_usage_out() => {
                refuse_tunnel(self);
                let kept = self.reuse;
                let mut client = Http1Client::new(self, request.received.is_http11());
                return Box::pin(relay::<_, Http1Upstream>(&mut client, stream, attempt, outgoing, request, kept))
                    .await;
            }
            UpstreamConnection::Http1(stream) => stream,
            UpstreamConnection::Http2(stream) => {
                refuse_tunnel(self);
                let kept = self.reuse;
                let mut client = Http1Client::new(self, request.received.is_http11());
                // HTTP/2 upstreams are rarer. Their future is on the heap, so that it does not enlarge the task of every
                // request.
                return Box::pin(relay::<_, Http2Upstream>(&mut client, stream, attempt, outgoing, request, kept))
                    .await;
            }
        };
        let mut out = Vec::new();
        request_head::write(outgoing.head, request, &mut out)?;
        let coding = if outgoing.head.body == Body::Chunked { Coding::Chunked } else { Coding::Plain };
        let of_route = if coding == Coding::Chunked {
            changed_fields(request.decided.field_changes.as_deref())
        } else {
            Vec::new()
        };
        let mut transfer = Transfer {
            client: &mut *self,
            upstream: stream,
            upload: Upload::new(out, coding, outgoing.has_body(), outgoing.body_left, of_route)
                .with_body(request.attempts.body.as_deref()),
            download: Download::default(),
            timeouts: attempt.timeouts,
            awaited: NextBytes::First,
            size: outgoing.size,
            stage: Stage::Sent,
            expects_continue: outgoing.expects_continue,
        };
        let head = final_head(&mut transfer, request).await;
        request.attempts.request_bytes = transfer.upload.bytes;
        if transfer.upload.has_begun {
            request.attempts.sent = Some(attempt.since);
        }
        if let Ok((head, Interim::None)) = &head
            && request.retry_after_status(head.status, transfer.upload.repeatable())
        {
            return Ok(AttemptEnd::Retry);
        }
        let begun = head.and_then(|(head, _)| begin_response(&mut transfer, request, head));
        let begun = match begun {
            Ok(begun) => begun,
            Err(fault) => return request.fail_attempt(fault, &attempt, transfer.upload.repeatable()),
        };
        let ended = poll_fn(|cx| transfer.poll_body(request.response, cx)).await;
        request.attempts.request_bytes = transfer.upload.bytes;
        let Transfer { upstream, upload, download, .. } = transfer;
        match ended {
            Ok(()) => {
                if begun.persistence == Persistence::Kept && upload.is_sent() && download.is_clean() {
                    let forwarder = request.received.forwarder;
                    forwarder.pool.put(attempt.key, upstream, attempt.idle_timeout, forwarder.gateway.clock.now());
                }
                Ok(AttemptEnd::Responded(begun.reuse))
            }
            Err(fault) => {
                if begun.client == ClientFraming::UntilClose {
                    self.stream.reset_at_close();
                }
                request.fail_attempt(fault, &attempt, Repeatable::No)
            }
        }
    }
}

/// Refuses the tunnel for which a client has asked.
fn refuse_tunnel(client: &mut Client) {
    if std::mem::replace(&mut client.is_tunnel, false) && !client.stream.refuse_tunnel() {
        client.reuse = Reuse::Closed;
    }
}

/// Passes interim responses on, and returns the final head.
async fn final_head(
    transfer: &mut Transfer<'_>,
    request: &ForwardedRequest<'_, '_>,
) -> Result<(ResponseHead, Interim), Fault> {
    let mut interim = 0;
    loop {
        let head = poll_fn(|cx| transfer.poll_head(cx)).await?;
        if !(100..200).contains(&head.status) || head.status == 101 {
            return Ok((head, Interim::before(interim)));
        }
        interim += 1;
        if interim > MOST_INTERIM {
            return Err(UpstreamFault::invalid_head("too many interim responses").into());
        }
        let bytes = transfer.download.input.split_to(head.length);
        transfer.download.expect_head();
        if request.received.is_http11() {
            let reason = bytes.get(head.reason.0..head.reason.1).unwrap_or_default();
            response_head::write_interim(&bytes, head.status, reason, &mut transfer.download.out);
            poll_fn(|cx| transfer.poll_out(cx)).await.map_err(|fault| match fault {
                // A part of the interim head may have been written, so no other response can follow.
                Fault::Client(ClientFault::Expired) => ClientFault::Stalled.into(),
                other => other,
            })?;
        }
        if head.status == 100 {
            transfer.client.stream.expect_body();
        }
        transfer.awaited = if transfer.download.input.is_empty() { NextBytes::First } else { NextBytes::More };
        transfer.client.stream.restart_upstream_wait();
    }
}

/// Prepares the response for the client. The head is written together with the first part of the body.
fn begin_response(
    transfer: &mut Transfer<'_>,
    request: &mut ForwardedRequest<'_, '_>,
    head: ResponseHead,
) -> Result<PassedHead, Fault> {
    let bytes = transfer.download.input.split_to(head.length);
    let forwarder = request.received.forwarder;
    let is_upgrade = head.status == 101;
    if is_upgrade && !(transfer.client.is_tunnel && websocket::accepts(&request.received.head.headers, &bytes)) {
        // This response would make a tunnel of a connection on which the client sends ordinary requests.
        return Err(UpstreamFault::invalid_head("an upgrade that nobody asked for").into());
    }
    if !is_upgrade {
        refuse_tunnel(transfer.client);
    }
    let has_body = has_body(&head, request.received);
    let (framing, body) = match is_upgrade {
        true => (ClientFraming::Tunnel, ResponseFraming::UntilClose),
        false => (ClientFraming::of(&head, has_body, request.received), ResponseFraming::of(&head, has_body)),
    };
    let is_chunked = framing == ClientFraming::Chunked && has_body == HasBody::Yes;
    let coding = if is_chunked { Coding::Chunked } else { Coding::Plain };
    let is_read = transfer.client.stream.is_complete();
    let closes = !is_read || framing == ClientFraming::UntilClose || forwarder.gateway.is_draining();
    let reuse = if is_upgrade || closes { Reuse::Closed } else { transfer.client.reuse };
    request.begin_response(head.status, &bytes);
    let reason = bytes.get(head.reason.0..head.reason.1).unwrap_or_default();
    let written = FinalHead { bytes: &bytes, status: head.status, reason, framing, reuse };
    response_head::write(written, request, &mut transfer.download.out);
    transfer.download.expect_body(body, coding);
    if head.content == Content::EventStream {
        transfer.timeouts.read = request.upstream.stream_idle_timeout;
    }
    if is_upgrade || body == ResponseFraming::Nothing {
        request.response.note_end(&[]);
    }
    if is_upgrade {
        open_tunnel(transfer, request);
    } else {
        transfer.client.stream.expect_no_body();
        transfer.upload.note_answered();
    }
    // No other response can follow a body that lasts until the connection closes.
    let persistence = if body == ResponseFraming::UntilClose { Persistence::Closed } else { head.persistence };
    Ok(PassedHead { reuse, client: framing, persistence })
}

/// Opens a tunnel, because the upstream has accepted an upgrade. From now on the request ends when it is idle for too long.
fn open_tunnel(transfer: &mut Transfer<'_>, request: &ForwardedRequest<'_, '_>) {
    transfer.upload.open_tunnel();
    transfer.client.stream.clear_deadline();
    let timeout = request.upstream.stream_idle_timeout;
    transfer.timeouts = Timeouts { read: timeout, write: timeout, ..transfer.timeouts };
    transfer.client.stream.set_client_timeout(timeout.into());
}

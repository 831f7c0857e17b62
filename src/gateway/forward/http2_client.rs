//! The client's side of an exchange over HTTP/2.

use std::task::{Context, Poll};
use std::time::Duration;

use super::exchange::ForwardedRequest;
use super::fault::Fault;
use super::http2_heads;
use super::relay_sides::{ClientSide, InterimHead};
use super::request_head::Wire;
use super::response_head::{self, FinalHead};
use crate::gateway::server::body_part::{BodyPart, HasBody};
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::http2::client::Http2Client;
use crate::gateway::server::request_client::RequestClient;

impl ClientSide for Http2Client {
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, ClientFault>> {
        Http2Client::poll_body(self, cx)
    }

    fn is_complete(&self) -> bool {
        Http2Client::is_complete(self)
    }

    /// The h2 crate delivers trailers as a whole, so they are never held.
    fn holds_trailers(&self) -> bool {
        false
    }

    fn poll_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        self.poll_request_ends(cx)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        self.poll_reset(cx)
    }

    fn poll_upstream_wait(&mut self, timeout: Duration, cx: &mut Context<'_>) -> Poll<()> {
        Http2Client::poll_upstream_wait(self, timeout, cx)
    }

    fn restart_upstream_wait(&mut self) {
        Http2Client::restart_upstream_wait(self);
    }

    fn expect_body(&mut self) {
        Http2Client::expect_body(self);
    }

    fn expect_no_body(&mut self) {
        Http2Client::expect_no_body(self);
    }

    /// Does nothing, because the rest of the body is discarded after the response.
    fn give_up_body(&mut self) {}

    fn cut_short(&mut self) {
        self.reset();
    }

    fn write_interim(&mut self, head: InterimHead<'_>, request: &ForwardedRequest<'_, '_>) -> Result<(), ClientFault> {
        let edit = response_head::edited_interim(head.bytes);
        match http2_heads::response(&edit, head.status, request.received) {
            Some(head) => Http2Client::write_interim(self, head),
            None => Ok(()),
        }
    }

    fn write_head(
        &mut self,
        head: FinalHead<'_>,
        request: &ForwardedRequest<'_, '_>,
        body: HasBody,
    ) -> Result<(), Fault> {
        if request.received.forwarder.gateway.is_draining() {
            request.received.connection.close_when_done();
        }
        let status = head.status;
        let edit = response_head::edited(head, request, Wire::Http2);
        let head = http2_heads::response(&edit, status, request.received);
        let head = head.ok_or(Fault::Own(502, "response has no form in HTTP/2"))?;
        Ok(Http2Client::write_head(self, head, body)?)
    }

    fn poll_send(&mut self, part: &mut BodyPart, held: usize, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>> {
        Http2Client::poll_send(self, part, held, cx)
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ClientFault>> {
        Poll::Ready(Ok(()))
    }
}

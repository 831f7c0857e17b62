//! The client's side of an exchange with an HTTP/1.x client and an HTTP/2 upstream.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;

use super::chunked::{Coding, write_part};
use super::exchange::ForwardedRequest;
use super::fault::Fault;
use super::relay_sides::{ClientSide, InterimHead};
use super::response_head::{self, ClientFraming, FinalHead};
use crate::gateway::server::body_part::{BodyPart, HasBody, TrailerLines};
use crate::gateway::server::http1::client::{BUFFER, Client};
use crate::gateway::server::http1::exchange_io::{BodyRead, ClientFault};

/// A client of HTTP/1.x, with the bytes to be written to it. Used when the upstream speaks HTTP/2.
#[derive(Debug)]
pub(super) struct Http1Client<'c> {
    client: &'c mut Client,
    /// Whether the client speaks HTTP/1.1, so that it can read chunks and interim responses.
    is_http11: bool,
    data: Vec<u8>,
    trailers: TrailerLines,
    out: Vec<u8>,
    written: usize,
    flushed: bool,
    coding: Coding,
    /// How the end of the response is marked; `None` before the response has begun.
    framing: Option<ClientFraming>,
}

impl Http1Client<'_> {
    pub(super) fn new(client: &mut Client, is_http11: bool) -> Http1Client<'_> {
        Http1Client {
            client,
            is_http11,
            data: Vec::new(),
            trailers: TrailerLines::new(),
            out: Vec::new(),
            written: 0,
            flushed: true,
            coding: Coding::Plain,
            framing: None,
        }
    }

    fn poll_write(&mut self, held: usize, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>> {
        let held = held + self.out.capacity();
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            self.written += ready!(self.client.stream.poll_write_response(rest, held, cx))?;
            self.flushed = false;
        }
        self.out.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl ClientSide for Http1Client<'_> {
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, ClientFault>> {
        let stream = &mut self.client.stream;
        let read = ready!(stream.poll_body_part(&mut self.data, BUFFER, &mut self.trailers, cx))?;
        let data = Bytes::from(std::mem::take(&mut self.data));
        let is_last = read == BodyRead::End || stream.is_complete();
        Poll::Ready(Ok(BodyPart { data, end: is_last.then(|| std::mem::take(&mut self.trailers)) }))
    }

    fn is_complete(&self) -> bool {
        self.client.stream.is_complete()
    }

    fn holds_trailers(&self) -> bool {
        !self.trailers.is_empty()
    }

    fn poll_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        self.client.stream.poll_ends(cx)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        // Unread bytes of the body would hide the end of the connection, so the body must be complete.
        if self.client.stream.is_complete() { self.client.stream.poll_client_gone(cx) } else { Poll::Pending }
    }

    fn poll_upstream_wait(&mut self, timeout: Duration, cx: &mut Context<'_>) -> Poll<()> {
        self.client.stream.poll_upstream_wait(timeout.into(), cx)
    }

    fn restart_upstream_wait(&mut self) {
        self.client.stream.restart_upstream_wait();
    }

    fn expect_body(&mut self) {
        self.client.stream.expect_body();
    }

    fn expect_no_body(&mut self) {
        self.client.stream.expect_no_body();
    }

    fn give_up_body(&mut self) {
        self.client.stream.give_up_body();
    }

    fn cut_short(&mut self) {
        // A body in this framing ends with the connection, so only a reset shows the client that the response is
        // incomplete.
        if self.framing == Some(ClientFraming::UntilClose) {
            self.client.stream.reset_at_close();
        }
    }

    fn write_interim(&mut self, head: InterimHead<'_>, _: &ForwardedRequest<'_, '_>) -> Result<(), ClientFault> {
        if self.is_http11 {
            response_head::write_interim(head.bytes, head.status, head.reason, &mut self.out);
        }
        Ok(())
    }

    fn write_head(&mut self, head: FinalHead<'_>, request: &ForwardedRequest<'_, '_>, _: HasBody) -> Result<(), Fault> {
        self.coding = if head.framing == ClientFraming::Chunked { Coding::Chunked } else { Coding::Plain };
        self.framing = Some(head.framing);
        response_head::write(head, request, &mut self.out);
        Ok(())
    }

    fn poll_send(&mut self, part: &mut BodyPart, held: usize, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>> {
        write_part(part, self.coding, &mut self.out);
        self.poll_write(held, cx)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>> {
        ready!(self.poll_write(0, cx))?;
        if !self.flushed {
            ready!(self.client.stream.poll_flush_response(cx))?;
            self.flushed = true;
        }
        Poll::Ready(Ok(()))
    }
}

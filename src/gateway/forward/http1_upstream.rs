//! The upstream's side of a relay to an HTTP/1.1 upstream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWrite;

use super::attempts::UpstreamAttempt;
use super::chunked::{Coding, write_part};
use super::download::{Download, ResponseFraming};
use super::exchange::ForwardedRequest;
use super::fault::{Fault, Stage, UpstreamFault};
use super::forwarder::Forwarder;
use super::http1_response_head::{ResponseBody, ResponseHead};
use super::outgoing_request::OutgoingRequest;
use super::relay_sides::UpstreamSide;
use super::request_head;
use super::transfer::{FIRST_READ, poll_fill};
use super::upstream_pool::UpstreamStream;
use crate::gateway::server::body_part::{BodyPart, HasBody};
use crate::gateway::server::http1::client::BUFFER;
use crate::gateway::server::http1::request_head::{Body, Size};

/// One request to an HTTP/1.1 upstream, and its response. Used when the client speaks HTTP/2, and when the gateway
/// takes the usage event out of the response.
#[derive(Debug)]
pub(super) struct Http1Upstream {
    stream: UpstreamStream,
    out: Vec<u8>,
    written: usize,
    flushed: bool,
    coding: Coding,
    /// Whether any byte of the request has been sent to the upstream.
    has_begun: bool,
    download: Download,
    read: usize,
    size: Size,
}

impl Http1Upstream {
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut *self.stream).poll_write(cx, rest)) {
                Ok(count @ 1..) => self.written += count,
                Ok(0) => return Poll::Ready(Err("no more is taken".to_owned())),
                Err(error) => return Poll::Ready(Err(error.to_string())),
            }
            self.has_begun = true;
            self.flushed = false;
        }
        self.out.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        // The first buffer is small. If the response has filled it, the next buffer is larger.
        let most = if self.read > FIRST_READ { BUFFER } else { FIRST_READ };
        let read = ready!(poll_fill(&mut self.stream, &mut self.download.input, most, cx))?;
        self.read += read;
        Poll::Ready(Ok(read))
    }

    /// Returns the part of the body that has arrived; `None` if nothing has arrived.
    fn next_part(&mut self) -> Result<Option<BodyPart>, UpstreamFault> {
        let download = &mut self.download;
        let data = match download.body {
            ResponseFraming::Length(left) => {
                let length = usize::try_from(left).map_or(download.input.len(), |left| left.min(download.input.len()));
                download.body = ResponseFraming::length(left - length as u64);
                download.input.split_to(length).freeze()
            }
            ResponseFraming::UntilClose => download.input.split().freeze(),
            ResponseFraming::Chunked(_) | ResponseFraming::Nothing => {
                // Nothing is shown here, because the relay shows each part to the observer.
                download.decode(|_| {})?;
                Bytes::from(std::mem::take(&mut download.out))
            }
        };
        let end = (download.body == ResponseFraming::Nothing).then(|| download.take_trailers());
        Ok((!data.is_empty() || end.is_some()).then_some(BodyPart { data, end }))
    }
}

impl UpstreamSide for Http1Upstream {
    type Connection = UpstreamStream;

    fn begin(
        stream: UpstreamStream,
        _: &UpstreamAttempt,
        outgoing: OutgoingRequest<'_>,
        request: &ForwardedRequest<'_, '_>,
    ) -> Result<Http1Upstream, Fault> {
        let mut out = Vec::new();
        request_head::write(outgoing.head, request, &mut out)?;
        Ok(Http1Upstream {
            stream,
            out,
            written: 0,
            flushed: true,
            coding: if outgoing.head.body == Body::Chunked { Coding::Chunked } else { Coding::Plain },
            has_begun: false,
            download: Download::default(),
            read: 0,
            size: outgoing.size,
        })
    }

    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn release(self, attempt: &UpstreamAttempt, forwarder: &Forwarder) {
        if self.download.is_clean() {
            forwarder.pool.put(attempt.key, self.stream, attempt.idle_timeout, forwarder.gateway.clock.now());
        }
    }

    fn poll_send(&mut self, part: &mut BodyPart, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        write_part(part, self.coding, &mut self.out);
        self.poll_write(cx)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        ready!(self.poll_write(cx))?;
        if !self.flushed {
            ready!(Pin::new(&mut *self.stream).poll_flush(cx)).map_err(|error| error.to_string())?;
            self.flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(ResponseHead, BytesMut), UpstreamFault>> {
        loop {
            let download = &mut self.download;
            if let Some(head) = download.parser.parse(&download.input, &self.size)? {
                let bytes = download.input.split_to(head.length);
                download.expect_head();
                return Poll::Ready(Ok((head, bytes)));
            }
            let stage = if download.input.is_empty() { Stage::Sent } else { Stage::Answering };
            match ready!(self.poll_read(cx)) {
                Ok(1..) => {}
                Ok(0) => return Poll::Ready(Err(UpstreamFault::closed(None, stage))),
                Err(error) => return Poll::Ready(Err(UpstreamFault::closed(Some(&error), stage))),
            }
        }
    }

    fn has_head_begun(&self) -> bool {
        !self.download.input.is_empty()
    }

    fn ends_with_head(&self, head: &ResponseHead) -> bool {
        head.body == ResponseBody::Length(0)
    }

    fn expect_body(&mut self, head: &ResponseHead, body: HasBody) {
        self.download.expect_body(ResponseFraming::of(head, body), Coding::Plain);
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, UpstreamFault>> {
        loop {
            if let Some(part) = self.next_part()? {
                return Poll::Ready(Ok(part));
            }
            match ready!(self.poll_read(cx)) {
                Ok(1..) => {}
                Ok(0) if self.download.body == ResponseFraming::UntilClose => {
                    self.download.body = ResponseFraming::Nothing;
                }
                Ok(0) => return Poll::Ready(Err(UpstreamFault::closed(None, Stage::Answering))),
                Err(error) => return Poll::Ready(Err(UpstreamFault::closed(Some(&error), Stage::Answering))),
            }
        }
    }

    /// Holds nothing while the client is slow, because bytes that are not read stay in the kernel.
    fn poll_hold(&mut self, _: &mut Context<'_>) {}

    fn held(&self) -> usize {
        self.download.input.capacity() + self.download.out.capacity()
    }
}

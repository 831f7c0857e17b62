//! Moves one request to its upstream and the response to its client, both at the same time, over HTTP/1.x.
//!
//! Memory is bounded: each direction has at most two buffers of [`BUFFER`] bytes, one for received bytes and one for
//! bytes to be written. Heads and trailers have limits of their own. While a side does not read, nothing is read from
//! the other side. All waits are limited: see [`Transfer::poll_waits`].

use std::task::{Context, Poll, ready};

use bytes::{BufMut, BytesMut};
use pingora::protocols::Stream;

use super::download::{Download, ResponseFraming};
use super::fault::{Fault, Stage, UpstreamFault};
use super::http1_response_head::ResponseHead;
use super::response_report::ResponseReport;
use super::upload::{Upload, UploadPhase, UploadState, WaitsFor};
use super::upstream_pool::UpstreamStream;
use crate::gateway::server::http1::client::{BUFFER, Client};
use crate::gateway::server::http1::exchange_io::{ClientFault, poll_read_some};
use crate::gateway::server::http1::request_head::Size;
use crate::gateway::telemetry::labels::UpstreamError;
use base::time::Micros;

/// The size of the first read of a response, in bytes. It is small, because most responses are shorter.
pub(super) const FIRST_READ: usize = 8 << 10;

/// The timeouts of one attempt at an upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// The longest wait for the first byte of a response. `None`: `read` applies.
    pub first_byte: Option<Micros>,
    /// The longest wait for bytes from the upstream.
    pub read: Micros,
    /// The longest wait until the upstream accepts bytes.
    pub write: Micros,
}

/// What the upstream sends next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextBytes {
    /// The first byte of the response, or of the next head after an interim response.
    First,
    More,
}

impl Timeouts {
    /// Returns the longest wait for what the upstream sends next, and the fault when this time has passed.
    pub(super) fn of(&self, awaited: NextBytes) -> (Micros, UpstreamError, &'static str) {
        match (awaited, self.first_byte) {
            (NextBytes::First, Some(first_byte)) => (first_byte, UpstreamError::FirstByteTimeout, "FirstByteTimedout"),
            (NextBytes::First, None) | (NextBytes::More, _) => (self.read, UpstreamError::ReadTimeout, "ReadTimedout"),
        }
    }
}

/// Moves one request to an HTTP/1.1 upstream and its response to an HTTP/1.x client, both at the same time.
#[derive(Debug)]
pub(super) struct Transfer<'t> {
    pub client: &'t mut Client,
    pub upstream: UpstreamStream,
    pub upload: Upload,
    pub download: Download,
    pub timeouts: Timeouts,
    pub awaited: NextBytes,
    pub size: Size,
    /// The stage that the attempt has reached.
    pub stage: Stage,
    /// Whether the client may be waiting for `100 Continue`.
    pub expects_continue: bool,
}

impl Transfer<'_> {
    /// Reads the next head of the response. The bytes of the head stay at the beginning of the received bytes.
    ///
    /// # Errors
    /// If the client or the upstream fails, or the head is invalid.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, Fault>> {
        let head = ready!(self.poll_next_head(cx));
        Poll::Ready(head.map_err(|fault| self.at_stage(fault)))
    }

    /// Moves the rest of the response to the client, and the rest of the request to the upstream. Notes in `report`
    /// each part of the response that passes.
    ///
    /// # Errors
    /// If the client or the upstream fails.
    pub(super) fn poll_body(&mut self, report: &mut ResponseReport, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let end = ready!(self.poll_rest(report, cx));
        Poll::Ready(end.map_err(|fault| self.at_stage(fault)))
    }

    fn poll_next_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, Fault>> {
        self.poll_upload(cx)?;
        loop {
            match self.download.parser.parse(&self.download.input, &self.size) {
                Ok(Some(head)) => return Poll::Ready(Ok(head)),
                Ok(None) => {}
                Err(invalid) => return Poll::Ready(Err(UpstreamFault::from(invalid).into())),
            }
            match poll_fill(&mut self.upstream, &mut self.download.input, FIRST_READ, cx) {
                Poll::Ready(Ok(1..)) => {
                    self.stage = Stage::Answering;
                    if self.awaited == NextBytes::First {
                        self.awaited = NextBytes::More;
                        self.client.stream.restart_upstream_wait();
                    }
                }
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(UpstreamFault::closed(None, self.stage).into())),
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(UpstreamFault::closed(Some(&error), self.stage).into()));
                }
                Poll::Pending => break,
            }
        }
        self.poll_waits(cx).map(Err)
    }

    fn poll_rest(&mut self, report: &mut ResponseReport, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        loop {
            self.poll_upload(cx)?;
            self.download.decode(|data| report.note_data(data))?;
            if self.download.body == ResponseFraming::Nothing {
                report.note_end(self.download.trailers());
            }
            match self.poll_write(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault.into())),
                Poll::Pending => {
                    // The gateway waits only for the client, so no timeout of the upstream applies.
                    return self.client.stream.poll_ends(cx).map(|fault| Err(fault.into()));
                }
            }
            let is_idle_tunnel = self.client.is_tunnel && self.upload.state == UploadState::Idle;
            if self.download.body == ResponseFraming::Nothing || is_idle_tunnel {
                ready!(self.poll_flush(cx))?;
                return Poll::Ready(Ok(()));
            }
            if !self.download.input.is_empty() {
                continue;
            }
            match self.poll_read(report, cx) {
                Poll::Ready(Ok(())) => self.client.stream.restart_upstream_wait(),
                Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault.into())),
                Poll::Pending => {
                    if let Poll::Ready(flushed) = self.poll_flush(cx) {
                        flushed?;
                    }
                    return self.poll_waits(cx).map(Err);
                }
            }
        }
    }

    /// Writes and flushes the bytes of the response that are ready for the client.
    ///
    /// # Errors
    /// If the client has gone or does not read.
    pub(super) fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        ready!(self.poll_write(cx))?;
        ready!(self.poll_flush(cx))?;
        Poll::Ready(Ok(()))
    }

    /// Reads more of the body of a response. A body with a length is read directly into the output buffer.
    fn poll_read(&mut self, report: &mut ResponseReport, cx: &mut Context<'_>) -> Poll<Result<(), UpstreamFault>> {
        let Download { body, input, out, .. } = &mut self.download;
        // The first buffer is small. If the response has filled it, the next buffer is larger.
        let buffer = if report.bytes > FIRST_READ { BUFFER } else { FIRST_READ };
        let read = match body {
            ResponseFraming::Length(left) => {
                let most = usize::try_from(*left).map_or(BUFFER, |left| left.min(BUFFER));
                out.reserve_exact(most.min(buffer));
                let before = out.len();
                let spare = out.capacity().min(most);
                let read = ready!(poll_read_some(&mut *self.upstream, &mut (&mut *out).limit(spare), cx));
                if let Ok(read) = read {
                    report.note_data(out.get(before..).unwrap_or_default());
                    *body = if read == 0 { *body } else { ResponseFraming::length(*left - read as u64) };
                }
                read
            }
            _ => ready!(poll_fill(&mut self.upstream, input, buffer, cx)),
        };
        match read {
            Ok(1..) => Poll::Ready(Ok(())),
            Ok(0) if self.download.body == ResponseFraming::UntilClose => {
                self.download.body = ResponseFraming::Nothing;
                self.download.end_if_done();
                Poll::Ready(Ok(()))
            }
            // Any end of the connection is a normal end of a tunnel, even an error.
            Err(_) if self.client.is_tunnel => {
                self.download.body = ResponseFraming::Nothing;
                Poll::Ready(Ok(()))
            }
            Ok(0) => Poll::Ready(Err(UpstreamFault::closed(None, Stage::Answering))),
            Err(error) => Poll::Ready(Err(UpstreamFault::closed(Some(&error), Stage::Answering))),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>> {
        let Download { input, out, written, flushed, .. } = &mut self.download;
        let held = input.capacity() + out.capacity();
        while let Some(rest) = out.get(*written..).filter(|rest| !rest.is_empty()) {
            *written += ready!(self.client.stream.poll_write_response(rest, held, cx))?;
            *flushed = false;
        }
        out.clear();
        *written = 0;
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>> {
        if !self.download.flushed {
            ready!(self.client.stream.poll_flush_response(cx))?;
            self.download.flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        self.upload.poll(self.client, &mut self.upstream, self.timeouts.write, cx)
    }

    /// Becomes ready when the upstream has taken too long, or the client has left in the meantime.
    fn poll_waits(&mut self, cx: &mut Context<'_>) -> Poll<Fault> {
        if let Poll::Ready(fault) = self.client.stream.poll_ends(cx) {
            return Poll::Ready(fault.into());
        }
        // Before a tunnel is open, the client's connection is read only to notice its end.
        let is_closed_tunnel = self.client.is_tunnel && self.upload.state == UploadState::Idle;
        // The rest of a broken upload is not needed, so here too the connection is read only to notice its end. After
        // the head of the response, a client may close its sending side, so an end is then ignored.
        let is_broken = self.upload.state == UploadState::Broken && self.upload.phase == UploadPhase::Asking;
        if (self.client.stream.is_complete() || is_closed_tunnel || is_broken)
            && let Poll::Ready(fault) = self.client.stream.poll_client_gone(cx)
        {
            return Poll::Ready(fault.into());
        }
        if self.upload.waits_for == WaitsFor::Upstream && self.upload.phase == UploadPhase::Asking {
            return Poll::Pending;
        }
        let is_waiting_for_client = self.is_waiting_for_client();
        // While the request is incomplete, the first byte of the response is not due, even if the client waits for
        // `100 Continue`.
        let is_incomplete = self.upload.waits_for == WaitsFor::Client && !self.client.is_tunnel;
        let (timeout, error, detail) = self.timeouts.of(if is_incomplete { NextBytes::More } else { self.awaited });
        ready!(self.client.stream.poll_upstream_wait(timeout, cx));
        Poll::Ready(match is_waiting_for_client {
            // The gateway and the upstream waited for the rest of the body, so the client caused the fault.
            true => Fault::UPLOAD_STALLED,
            false => UpstreamFault::new(error, detail, self.stage).into(),
        })
    }

    /// Whether the request is incomplete, and the client is not waiting for the gateway.
    fn is_waiting_for_client(&self) -> bool {
        let may_wait = self.expects_continue && self.upload.bytes == 0;
        self.upload.waits_for == WaitsFor::Client && !may_wait && !self.client.is_tunnel
    }

    /// Adds the stage of the attempt to a fault. If the request took too long, names the side for which the gateway waited.
    fn at_stage(&self, fault: Fault) -> Fault {
        match fault {
            Fault::Client(ClientFault::Expired) if self.is_waiting_for_client() => Fault::UPLOAD_STALLED,
            Fault::Client(ClientFault::Expired) => {
                UpstreamFault::new(UpstreamError::TotalTimeout, "TotalTimedout", self.stage).into()
            }
            Fault::Upstream(fault) => UpstreamFault { stage: self.stage, ..fault }.into(),
            other => other,
        }
    }
}

/// Reads once from the upstream into `input`, at most `most` bytes. Returns the number of bytes.
///
/// # Errors
/// If the connection is broken.
pub(super) fn poll_fill(
    upstream: &mut Stream,
    input: &mut BytesMut,
    most: usize,
    cx: &mut Context<'_>,
) -> Poll<std::io::Result<usize>> {
    input.reserve(most);
    poll_read_some(upstream, &mut input.limit(most), cx)
}

//! Moves one request to its upstream and the response to its client, both at the same time, for any two protocols.
//!
//! Each side reads and writes parts of bodies: a [`ClientSide`] and an [`UpstreamSide`], each for HTTP/1.x and for
//! HTTP/2. Memory is bounded: one part of each body is held here, and each writer and reader has one buffer. While a
//! side does not read, nothing is read from the other side.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::time::Sleep;

use super::exchange::DecidedExchange;
use super::fault::{Fault, Stage, UpstreamFault};
use super::http1_response_head::ResponseHead;
use super::outgoing_request::OutgoingRequest;
use super::read_body::ReadBody;
use super::relay_sides::{ClientSide, UpstreamSide};
use super::repeatable::Repeatable;
use super::response_report::ResponseReport;
use super::trailers;
use super::transfer::{NextBytes, Timeouts};
use super::upload::WaitsFor;
use crate::gateway::server::body_part::{BodyPart, HasBody, StatedLength};
use crate::gateway::server::http1::client::BUFFER;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::http1::request_head::Body;
use crate::gateway::telemetry::labels::UpstreamError;
use llm::usage_event::UsageEventFilter;

/// Moves one request to the upstream's side and its response to the client's side, both at the same time.
#[derive(Debug)]
pub(super) struct Relay<'r, C, U> {
    pub client: &'r mut C,
    pub upstream: U,
    decided: &'r DecidedExchange,
    pub upload: Uploading,
    pub timeouts: Timeouts,
    /// Whether the client may be waiting for `100 Continue`.
    pub expects_continue: bool,
    pub response_length: StatedLength,
    pub progress: Progress,
    awaited: NextBytes,
    /// The part of the response that is being written.
    part: Option<BodyPart>,
    /// Takes the usage event, for which the gateway has asked, out of the response. `None` for almost all responses.
    pub usage_filter: Option<Box<UsageEventFilter>>,
}

/// Takes the usage event out of a part of a response. If the part ends with a possible beginning of the event, the
/// filter keeps these bytes until the next part.
fn take_usage_out(filter: &mut UsageEventFilter, part: &mut BodyPart) {
    let mut passed = Vec::with_capacity(part.data.len());
    filter.push(&part.data, &mut passed);
    if part.end.is_some() {
        filter.finish(&mut passed);
    }
    part.data = passed.into();
}

/// The stage that the response has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing of the response has arrived.
    Waiting,
    /// An interim response has arrived.
    Interim,
    /// The final head has been passed on to the client.
    Body,
    /// The end of the response has been written.
    Ended,
}

/// The body of the request, on its way to the upstream.
#[derive(Debug)]
pub(super) struct Uploading {
    state: State,
    part: Option<BodyPart>,
    waits_for: WaitsFor,
    deadline: Option<Pin<Box<Sleep>>>,
    /// The number of bytes of the body that may still arrive; `None` if the route does not limit the body.
    left: Option<u64>,
    length: StatedLength,
    pub bytes: usize,
    /// Whether the request can be sent again: nothing of its body or trailers has been read, or the body is in memory.
    repeatable: Repeatable,
    /// The rest of a body that is in memory. `None` if the body comes from the client.
    stored: Option<ReadBody>,
    is_stored: bool,
}

/// The part of the request that is sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Body,
    /// The end of the request has been written, but is perhaps not flushed yet.
    Ended,
    Sent,
    /// No more of the request is sent.
    Broken,
}

impl Uploading {
    fn new(body: HasBody, left: Option<u64>, length: StatedLength, body_in_memory: Option<ReadBody>) -> Uploading {
        let state = if body == HasBody::Yes { State::Body } else { State::Ended };
        Uploading {
            state,
            part: None,
            waits_for: WaitsFor::Nothing,
            deadline: None,
            left,
            length,
            bytes: 0,
            repeatable: Repeatable::Yes,
            is_stored: body_in_memory.is_some(),
            stored: body_in_memory,
        }
    }

    /// Whether the whole request has been sent.
    pub(super) fn is_sent(&self) -> bool {
        self.state == State::Sent
    }

    fn count(&mut self, part: &BodyPart) -> Result<(), Fault> {
        let length = part.data.len();
        self.bytes += length;
        self.length.count(part).map_err(|_| Fault::LENGTH_MISMATCH)?;
        if let Some(left) = &mut self.left {
            let rest = left.checked_sub(u64::try_from(length).unwrap_or(u64::MAX));
            *left = rest.ok_or(Fault::TOO_LONG)?;
        }
        Ok(())
    }

    /// Ends the upload, because the upstream accepts no more of the request. This is not a fault, because the upstream
    /// may already have answered.
    fn break_off(&mut self, error: &str) {
        log::debug!(error; "no more of the request is sent");
        self.state = State::Broken;
        self.stored = None;
        self.waits_for = WaitsFor::Nothing;
        self.part = None;
    }
}

impl<'r, C: ClientSide, U: UpstreamSide> Relay<'r, C, U> {
    /// Makes the relay of a request whose head the upstream's side already has.
    pub(super) fn new(
        client: &'r mut C,
        upstream: U,
        outgoing: &OutgoingRequest<'_>,
        timeouts: Timeouts,
        decided: &'r DecidedExchange,
        body: Option<ReadBody>,
    ) -> Relay<'r, C, U> {
        let length = if let Body::Length(length) = outgoing.head.body { Some(length) } else { None };
        Relay {
            client,
            upstream,
            decided,
            upload: Uploading::new(outgoing.has_body(), outgoing.body_left, StatedLength(length), body),
            timeouts,
            expects_continue: outgoing.expects_continue,
            response_length: StatedLength(None),
            progress: Progress::Waiting,
            awaited: NextBytes::First,
            part: None,
            usage_filter: None,
        }
    }

    /// Reads the next head of the response. Sends the request at the same time.
    ///
    /// # Errors
    /// If the client or the upstream fails, or the head is invalid.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(ResponseHead, BytesMut), Fault>> {
        if let Err(fault) = self.poll_upload(cx) {
            return Poll::Ready(Err(self.expired(fault)));
        }
        match self.upstream.poll_head(cx) {
            Poll::Ready(Ok(head)) => return Poll::Ready(Ok(head)),
            Poll::Ready(Err(mut fault)) => {
                // An interim response shows that the upstream has begun to process the request.
                if self.progress != Progress::Waiting {
                    fault.stage = Stage::Answering;
                }
                return Poll::Ready(Err(fault.into()));
            }
            Poll::Pending => {}
        }
        let awaited = if self.upstream.has_head_begun() { NextBytes::More } else { NextBytes::First };
        if std::mem::replace(&mut self.awaited, awaited) == NextBytes::First && awaited == NextBytes::More {
            self.client.restart_upstream_wait();
        }
        if let Poll::Ready(Err(fault)) = self.client.poll_flush(cx) {
            return Poll::Ready(Err(fault.into()));
        }
        self.poll_waits(cx).map(|fault| Err(self.expired(fault)))
    }

    /// Moves the rest of the response to the client, and the rest of the request to the upstream. Notes in `report`
    /// each part of the response that passes.
    ///
    /// # Errors
    /// If the client or the upstream fails.
    pub(super) fn poll_body(&mut self, report: &mut ResponseReport, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let end = ready!(self.poll_rest(report, cx));
        Poll::Ready(end.map_err(|fault| self.expired(fault)))
    }

    fn poll_rest(&mut self, report: &mut ResponseReport, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        loop {
            self.poll_upload(cx)?;
            if let Some(part) = &mut self.part {
                let is_last = part.end.is_some();
                match self.client.poll_send(part, self.upstream.held(), cx) {
                    Poll::Ready(sent) => sent?,
                    Poll::Pending => {
                        self.upstream.poll_hold(cx);
                        // The gateway waits only for the client, so no timeout of the upstream applies.
                        return self.client.poll_ends(cx).map(|fault| Err(fault.into()));
                    }
                }
                self.part = None;
                if is_last {
                    self.progress = Progress::Ended;
                }
            }
            if self.progress == Progress::Ended {
                return self.client.poll_flush(cx).map_err(Fault::from);
            }
            match self.upstream.poll_part(cx) {
                Poll::Ready(Ok(mut part)) => {
                    self.response_length.count(&part).map_err(|_| {
                        let detail = "InvalidBody: differs from its length";
                        UpstreamFault::new(UpstreamError::InvalidAnswer, detail, Stage::Answering)
                    })?;
                    report.note_data(&part.data);
                    if self.response_length == StatedLength(Some(0)) {
                        report.note_length_reached();
                    }
                    if let Some(trailers) = &part.end {
                        report.note_end(trailers);
                    }
                    part.end = part.end.map(trailers::response_lines);
                    self.client.restart_upstream_wait();
                    if let Some(filter) = &mut self.usage_filter {
                        take_usage_out(filter, &mut part);
                        if part.data.is_empty() && part.end.is_none() {
                            continue;
                        }
                    }
                    self.part = Some(part);
                }
                Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault.into())),
                Poll::Pending => {
                    if let Poll::Ready(flushed) = self.client.poll_flush(cx) {
                        flushed?;
                    }
                    return self.poll_waits(cx).map(Err);
                }
            }
        }
    }

    /// Notes that the head of the response has been sent to the client. After this, no failure of the rest of the request ends
    /// the response.
    pub(super) fn note_answered(&mut self) {
        self.progress = Progress::Body;
        self.awaited = NextBytes::More;
        self.upload.deadline = None;
    }

    fn is_answered(&self) -> bool {
        matches!(self.progress, Progress::Body | Progress::Ended)
    }

    /// Notes that the response has no body, and so has ended.
    pub(super) fn end_with_head(&mut self) {
        self.progress = Progress::Ended;
    }

    /// Sends the part of the request that has arrived.
    ///
    /// # Errors
    /// If the client sends no more, or the upstream accepts nothing for too long, before the response has begun. After the
    /// response has begun, the rest of the request is given up, and the response continues.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        match self.poll_rest_of_upload(cx) {
            Err(fault) if self.is_answered() && !fault.ends_exchange() => {
                self.client.give_up_body();
                self.upload.break_off(fault.detail());
                Ok(())
            }
            sent => sent,
        }
    }

    fn poll_rest_of_upload(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        let decided = self.decided;
        loop {
            let sent = match (self.upload.state, &mut self.upload.part) {
                (State::Sent | State::Broken, _) => return Ok(()),
                (State::Ended, _) => self.upstream.poll_flush(cx).map_ok(|()| State::Sent),
                (State::Body, Some(part)) => {
                    let next = if part.end.is_some() { State::Ended } else { State::Body };
                    self.upstream.poll_send(part, cx).map_ok(|()| next)
                }
                (State::Body, None) => match self.poll_body_part(cx) {
                    Poll::Ready(Ok(mut part)) => {
                        self.upload.count(&part)?;
                        let is_read =
                            !part.data.is_empty() || part.end.as_ref().is_some_and(|trailers| trailers.len() > 2);
                        if is_read && !self.upload.is_stored {
                            self.upload.repeatable = Repeatable::No;
                        }
                        part.end =
                            part.end.map(|lines| trailers::request_lines(lines, decided.field_changes.as_deref()));
                        self.upload.part = Some(part);
                        continue;
                    }
                    Poll::Ready(Err(fault)) => {
                        self.upload.waits_for = WaitsFor::Client;
                        return Err(fault.into());
                    }
                    Poll::Pending => match self.upstream.poll_flush(cx) {
                        Poll::Ready(Ok(())) => {
                            self.upload.waits_for = WaitsFor::Client;
                            return Ok(());
                        }
                        other => other.map_ok(|()| State::Body),
                    },
                },
            };
            match sent {
                Poll::Ready(Ok(next)) => {
                    self.upload.part = None;
                    self.upload.state = next;
                    self.upload.deadline = None;
                    self.upload.waits_for = WaitsFor::Nothing;
                    self.client.restart_upstream_wait();
                }
                Poll::Ready(Err(error)) => self.upload.break_off(&error),
                Poll::Pending => {
                    self.upload.waits_for = WaitsFor::Upstream;
                    if self.is_answered() {
                        return Ok(());
                    }
                    let timeout = Duration::from(self.timeouts.write);
                    let deadline = self.upload.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
                    return match deadline.as_mut().poll(cx) {
                        Poll::Ready(()) => {
                            Err(UpstreamFault::new(UpstreamError::WriteTimeout, "WriteTimedout", Stage::Sent).into())
                        }
                        Poll::Pending => Ok(()),
                    };
                }
            }
        }
    }

    /// Returns the next part of the request's body: from memory, or from the client.
    fn poll_body_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, ClientFault>> {
        match &mut self.upload.stored {
            Some(body) => Poll::Ready(Ok(body.next_part(BUFFER))),
            None => self.client.poll_body(cx),
        }
    }

    /// Becomes ready when the upstream has taken too long, or the client has left in the meantime.
    fn poll_waits(&mut self, cx: &mut Context<'_>) -> Poll<Fault> {
        if let Poll::Ready(fault) = self.client.poll_ends(cx) {
            return Poll::Ready(fault.into());
        }
        if let Poll::Ready(fault) = self.client.poll_gone(cx) {
            return Poll::Ready(fault.into());
        }
        if self.upload.waits_for == WaitsFor::Upstream && !self.is_answered() {
            return Poll::Pending;
        }
        let is_waiting_for_client = self.is_waiting_for_client();
        // While the request is incomplete, the first byte of the response is not due, even if the client waits for
        // `100 Continue`.
        let is_incomplete = self.upload.waits_for == WaitsFor::Client;
        let (timeout, error, detail) = self.timeouts.of(if is_incomplete { NextBytes::More } else { self.awaited });
        ready!(self.client.poll_upstream_wait(timeout.into(), cx));
        Poll::Ready(match is_waiting_for_client {
            // The gateway and the upstream waited for the rest of the body, so the client caused the fault.
            true => Fault::UPLOAD_STALLED,
            false => UpstreamFault::new(error, detail, self.stage()).into(),
        })
    }

    /// Whether the request is incomplete, and the client is not waiting for the gateway.
    fn is_waiting_for_client(&self) -> bool {
        let may_wait = self.expects_continue && self.upload.bytes == 0;
        self.upload.waits_for == WaitsFor::Client && !may_wait
    }

    /// Whether the same request can be sent again. This is so while no part of its body or its trailers has been read, or
    /// the body is in memory.
    pub(super) fn repeatable(&self) -> Repeatable {
        if self.client.holds_trailers() { Repeatable::No } else { self.upload.repeatable }
    }

    fn stage(&self) -> Stage {
        if self.progress == Progress::Waiting { Stage::Sent } else { Stage::Answering }
    }

    /// Replaces the fault of a request that took too long by a fault that names the side for which the gateway waited.
    fn expired(&self, fault: Fault) -> Fault {
        match fault {
            Fault::Client(ClientFault::Expired) if self.is_waiting_for_client() => Fault::UPLOAD_STALLED,
            Fault::Client(ClientFault::Expired) => {
                UpstreamFault::new(UpstreamError::TotalTimeout, "TotalTimedout", self.stage()).into()
            }
            other => other,
        }
    }
}

//! Sends a request to its upstream: the head, and the body as it arrives from the client.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::HeaderName;
use pingora::protocols::Stream;
use tokio::io::AsyncWrite;
use tokio::time::Sleep;

use super::chunked::{Coding, chunk};
use super::fault::{Fault, Stage, UpstreamFault};
use super::read_body::ReadBody;
use super::repeatable::Repeatable;
use super::trailers;
use crate::gateway::server::body_part::HasBody;
use crate::gateway::server::http1::client::{BUFFER, Client};
use crate::gateway::server::http1::exchange_io::BodyRead;
use crate::gateway::telemetry::labels::UpstreamError;
use base::time::Micros;

/// A request on its way from the client to the upstream.
#[derive(Debug)]
pub(super) struct Upload {
    out: Vec<u8>,
    written: usize,
    flushed: bool,
    pub state: UploadState,
    coding: Coding,
    /// The rest of a body that is in memory. `None` if the body comes from the client.
    stored: Option<ReadBody>,
    /// Whether the body comes from memory, so that it can be sent again.
    is_stored: bool,
    data: Vec<u8>,
    trailers: Vec<u8>,
    /// The names of fields that the route sets or removes. Trailers with these names are removed.
    of_route: Vec<HeaderName>,
    pub phase: UploadPhase,
    /// Whether any byte of the request has been sent to the upstream.
    pub has_begun: bool,
    /// The number of bytes that may still follow in the body. `None` if the route does not bound the body.
    pub body_left: Option<u64>,
    pub waits_for: WaitsFor,
    deadline: Option<Pin<Box<Sleep>>>,
    /// The number of bytes of the body that have been read, without the sizes of chunks and without trailers.
    pub bytes: usize,
}

/// What is still to be sent of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadState {
    Body,
    /// The end of the request is among the bytes to be written.
    Ended,
    /// Everything has been sent, or nothing more is to be sent until a tunnel opens.
    Idle,
    /// The upstream accepts no more of the request. The upstream may have answered before.
    Broken,
}

/// Whether the upstream has answered while the request was being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadPhase {
    Asking,
    /// The head of the response has been passed on. The rest of the request is still sent as far as possible, and its failure
    /// does not end the response.
    Answered,
}

/// The side that must act before the upload can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    Nothing,
    Client,
    Upstream,
}

impl Upload {
    /// Makes an upload. `head` is sent first. `of_route` are the names of fields that the route sets or removes, and no trailer
    /// may have these names.
    pub(super) fn new(
        head: Vec<u8>,
        coding: Coding,
        body: HasBody,
        body_left: Option<u64>,
        of_route: Vec<HeaderName>,
    ) -> Upload {
        Upload {
            out: head,
            written: 0,
            flushed: true,
            state: if body == HasBody::Yes { UploadState::Body } else { UploadState::Idle },
            coding,
            stored: None,
            is_stored: false,
            data: Vec::new(),
            trailers: Vec::new(),
            of_route,
            phase: UploadPhase::Asking,
            has_begun: false,
            body_left,
            waits_for: WaitsFor::Nothing,
            deadline: None,
            bytes: 0,
        }
    }

    /// Sends `body` in place of the body from the client. `None` leaves the upload as it is.
    pub(super) fn with_body(self, body: Option<&ReadBody>) -> Upload {
        Upload { stored: body.cloned(), is_stored: body.is_some(), ..self }
    }

    /// Whether the whole request has been sent.
    pub(super) fn is_sent(&self) -> bool {
        matches!(self.state, UploadState::Idle | UploadState::Ended) && self.written == self.out.len() && self.flushed
    }

    /// Whether the same request can be sent again. This is so while no part of its body or its trailers has been read, or
    /// the body is in memory.
    pub(super) fn repeatable(&self) -> Repeatable {
        if self.is_stored || self.bytes == 0 && self.trailers.is_empty() { Repeatable::Yes } else { Repeatable::No }
    }

    /// Notes that the head of the response has been sent to the client. From then on, a failure of the upload does not end the
    /// response.
    pub(super) fn note_answered(&mut self) {
        self.phase = UploadPhase::Answered;
        self.deadline = None;
    }

    /// Opens a tunnel: everything that the client sends from now on goes to the upstream.
    pub(super) fn open_tunnel(&mut self) {
        self.state = UploadState::Body;
        self.stored = None;
        self.coding = Coding::Plain;
        self.body_left = None;
    }

    /// Encodes the part of the body that was read, for the upstream.
    fn encode(&mut self, read: BodyRead, before: usize) -> Result<(), Fault> {
        let length = match self.coding {
            Coding::Plain => self.out.len() - before,
            Coding::Chunked => self.data.len(),
        };
        self.bytes += length;
        if let Some(left) = &mut self.body_left {
            let rest = left.checked_sub(u64::try_from(length).unwrap_or(u64::MAX));
            *left = rest.ok_or(Fault::TOO_LONG)?;
        }
        if self.coding == Coding::Chunked {
            chunk(&self.data, &mut self.out);
            self.data.clear();
        }
        if read == BodyRead::End {
            if self.coding == Coding::Chunked {
                trailers::end_request(&self.trailers, &self.of_route, &mut self.out);
            }
            self.state = UploadState::Ended;
            self.stored = None;
        }
        Ok(())
    }

    /// Sends the part of the request that is ready.
    ///
    /// # Errors
    /// If the client does not send the rest, or the upstream accepts nothing for longer than `timeout`. A broken connection is
    /// no error here, because the upstream may have answered before. Once the head of the response has been passed on, only the
    /// end of the whole exchange is an error.
    pub(super) fn poll(
        &mut self,
        client: &mut Client,
        upstream: &mut Stream,
        timeout: Micros,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        match self.poll_sending(client, upstream, timeout, cx) {
            Err(fault) if self.phase == UploadPhase::Answered && !fault.ends_exchange() => {
                client.stream.give_up_body();
                self.break_off(fault.detail());
                Ok(())
            }
            sent => sent,
        }
    }

    fn poll_sending(
        &mut self,
        client: &mut Client,
        upstream: &mut Stream,
        timeout: Micros,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        loop {
            if self.state == UploadState::Broken {
                return Ok(());
            }
            // Body bytes that arrived with the head are sent together with the head.
            let combines = self.state == UploadState::Body && self.written == 0 && self.bytes == 0;
            let all_written = self.written == self.out.len();
            let has_more = match &self.stored {
                Some(body) => !body.is_empty(),
                None => !client.stream.unparsed().is_empty(),
            };
            if (all_written && self.flushed) || (combines && has_more) {
                if self.written == self.out.len() {
                    self.out.clear();
                    self.written = 0;
                }
                match self.state {
                    UploadState::Body => {}
                    UploadState::Idle | UploadState::Broken => return Ok(()),
                    UploadState::Ended => {
                        self.state = UploadState::Idle;
                        return Ok(());
                    }
                }
                let before = self.out.len();
                // A chunk is held twice, decoded and encoded, so only half of a buffer is read at once.
                let (target, most) = match self.coding {
                    Coding::Plain => (&mut self.out, BUFFER),
                    Coding::Chunked => (&mut self.data, BUFFER / 2),
                };
                let read = match &mut self.stored {
                    Some(body) => Poll::Ready(Ok(body.append_next(target, most, &mut self.trailers))),
                    None => client.stream.poll_body_part(target, most, &mut self.trailers, cx),
                };
                match read {
                    Poll::Ready(Ok(read)) => self.encode(read, before)?,
                    Poll::Ready(Err(fault)) => {
                        self.waits_for = WaitsFor::Client;
                        return Err(fault.into());
                    }
                    Poll::Pending if self.out.is_empty() => {
                        self.waits_for = WaitsFor::Client;
                        return Ok(());
                    }
                    Poll::Pending => {}
                }
                continue;
            }
            let sent = match self.out.get(self.written..) {
                Some(rest @ [_, ..]) => Pin::new(&mut *upstream).poll_write(cx, rest),
                _ => Pin::new(&mut *upstream).poll_flush(cx).map_ok(|()| 0),
            };
            match sent {
                Poll::Ready(Ok(count)) if count > 0 || all_written => {
                    self.written += count;
                    self.has_begun |= count > 0;
                    self.flushed = count == 0;
                    self.deadline = None;
                    self.waits_for = WaitsFor::Nothing;
                    client.stream.restart_upstream_wait();
                }
                Poll::Ready(Ok(_)) => self.break_off("no more is taken"),
                Poll::Ready(Err(error)) => self.break_off(&error.to_string()),
                Poll::Pending => {
                    self.waits_for = WaitsFor::Upstream;
                    if self.phase == UploadPhase::Answered {
                        return Ok(());
                    }
                    let timeout = Duration::from(timeout);
                    let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
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

    /// Ends the upload, because the upstream accepts no more of the request.
    fn break_off(&mut self, error: &str) {
        log::debug!(error; "upstream takes no more of the request");
        self.state = UploadState::Broken;
        self.stored = None;
        self.waits_for = WaitsFor::Nothing;
    }
}

//! Holds the parts of a message's body that have arrived, until they are read.
//!
//! The h2 crate keeps some 270 bytes with the content of every frame. So the loop of a connection [takes
//! out](WaitingBody::take_out) the parts of bodies that nobody reads yet, and small parts are joined. The parts count
//! in the flow-control window until they are read.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream};
use http::HeaderMap;
use parking_lot::Mutex;

use super::frame_counts::FrameCounts;

/// Parts shorter than this are copied, so that they do not hold a large buffer.
const SMALL: usize = 8 << 10;
/// The size of the parts into which small parts are joined.
const JOINED: usize = 16 << 10;

/// Gives the parts of one message's body to the reader of the body.
#[derive(Debug)]
pub(crate) struct ReceivedBody(Arc<Mutex<State>>);

/// A weak reference to the body of a request. With it, the connection takes received data out of the h2 crate.
#[derive(Debug)]
pub(crate) struct WaitingBody(Weak<Mutex<State>>);

#[derive(Debug)]
struct State {
    stream: RecvStream,
    /// The counts of the frames on the stream's connection.
    frames: Arc<FrameCounts>,
    /// The parts that were taken out before they were read.
    waiting: VecDeque<Bytes>,
    /// The bytes of the small parts that arrived after the parts in `waiting`.
    small: BytesMut,
    /// The waker of the last reader that found no data.
    reader: Option<Waker>,
}

impl ReceivedBody {
    /// Makes the body of a stream. `frames` are the counts of its connection.
    pub(crate) fn new(stream: RecvStream, frames: Arc<FrameCounts>) -> ReceivedBody {
        let state = State { stream, frames, waiting: VecDeque::new(), small: BytesMut::new(), reader: None };
        ReceivedBody(Arc::new(Mutex::new(state)))
    }

    pub(crate) fn waiting(&self) -> WaitingBody {
        WaitingBody(Arc::downgrade(&self.0))
    }

    /// Reads the next part of the body. The client may then send the same number of further bytes. `None` at the end of
    /// the body.
    ///
    /// # Errors
    ///
    /// If the client reset the stream, or its connection failed.
    pub(crate) fn poll_part(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let mut state = self.0.lock();
        let part = match state.pop() {
            Some(part) => part,
            None => match state.stream.poll_data(cx) {
                Poll::Ready(Some(Ok(part))) => part,
                Poll::Ready(end) => return Poll::Ready(end),
                Poll::Pending => {
                    if !state.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
                        state.reader = Some(cx.waker().clone());
                    }
                    return Poll::Pending;
                }
            },
        };
        // An error is ignored, because no more is read from a stream that has ended.
        let _ = state.stream.flow_control().release_capacity(part.len());
        Poll::Ready(Some(Ok(part)))
    }

    /// Reads the trailers of the message. Called after the end of the body.
    ///
    /// # Errors
    ///
    /// If the peer reset the stream, or its connection failed. `PROTOCOL_ERROR` if the h2 crate has left out fields of
    /// the trailers.
    pub(crate) fn poll_trailers(&self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, h2::Error>> {
        let state = &mut *self.0.lock();
        let Some(trailers) = ready!(state.stream.poll_trailers(cx))? else { return Poll::Ready(Ok(None)) };
        let sent = state.frames.trailers().take(state.stream.stream_id().into());
        Poll::Ready(if sent == Some(trailers.len()) { Ok(Some(trailers)) } else { Err(Reason::PROTOCOL_ERROR.into()) })
    }

    /// Takes the parts that have arrived out of the h2 crate, and wakes the task when more parts arrive. Parts that
    /// were taken out still count in the flow-control window.
    pub(crate) fn poll_take_out(&self, cx: &mut Context<'_>) {
        self.0.lock().take_out(cx);
    }

    /// Returns the number of bytes that were taken out of the h2 crate and have not been read.
    pub(crate) fn held(&self) -> usize {
        let state = self.0.lock();
        state.small.len() + state.waiting.iter().map(Bytes::len).sum::<usize>()
    }

    /// Whether the whole body is known to have been read. Reads nothing.
    pub(crate) fn is_at_end(&self) -> bool {
        let state = self.0.lock();
        state.waiting.is_empty() && state.small.is_empty() && state.stream.is_end_stream()
    }
}

impl WaitingBody {
    /// Whether the body still has a reader.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Takes the parts that have arrived out of the h2 crate, and keeps them for the reader of the body.
    pub(crate) fn take_out(&self) {
        let Some(body) = self.0.upgrade() else { return };
        let state = &mut *body.lock();
        // The h2 crate keeps only one waker for each stream, so the reader's waker is passed.
        let reader = state.reader.clone();
        state.take_out(&mut Context::from_waker(reader.as_ref().unwrap_or(Waker::noop())));
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // Removes trailers that nobody has read.
        self.frames.trailers().take(self.stream.stream_id().into());
    }
}

impl State {
    fn take_out(&mut self, cx: &mut Context<'_>) {
        // The end of the body or an error need not be kept, because the reader polls the stream itself.
        while let Poll::Ready(Some(Ok(part))) = self.stream.poll_data(cx) {
            self.push(part);
        }
    }

    fn push(&mut self, part: Bytes) {
        if part.len() < SMALL {
            if self.small.len() + part.len() > JOINED {
                self.waiting.push_back(self.small.split().freeze());
            }
            self.small.extend_from_slice(&part);
        } else {
            if !self.small.is_empty() {
                self.waiting.push_back(self.small.split().freeze());
            }
            self.waiting.push_back(part);
        }
    }

    fn pop(&mut self) -> Option<Bytes> {
        let small = || (!self.small.is_empty()).then(|| std::mem::take(&mut self.small).freeze());
        self.waiting.pop_front().or_else(small)
    }
}

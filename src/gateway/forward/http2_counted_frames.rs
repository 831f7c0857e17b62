//! Counts the frames of an upstream on their way to the h2 crate, because the crate does not report these counts.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pingora::protocols::Stream;
use tokio::io::{AsyncRead, ReadBuf};

use crate::gateway::server::forward_writes::forward_writes;
use crate::gateway::server::http2::frame_counts::{FrameCounter, FrameCounts};

/// The stream of an HTTP/2 connection to an upstream. Counts the frames that the upstream sends.
#[derive(Debug)]
pub(super) struct CountedFrames {
    inner: Stream,
    counter: FrameCounter,
}

impl CountedFrames {
    /// Makes a stream that counts the frames of `inner`, and returns it with the counts.
    pub(super) fn new(inner: Stream) -> (CountedFrames, Arc<FrameCounts>) {
        let counter = FrameCounter::of_server();
        let counts = Arc::clone(counter.counts());
        (CountedFrames { inner, counter }, counts)
    }
}

impl AsyncRead for CountedFrames {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        self.counter.count(buf.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

forward_writes!(CountedFrames, inner);

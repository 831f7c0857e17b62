//! Counts the frames of a client while its bytes pass to the h2 crate.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use pingora::protocols::Stream;
use tokio::io::{AsyncRead, ReadBuf};

use super::frame_counts::{FrameCounter, FrameCounts};
use crate::gateway::server::forward_writes::forward_writes;
use crate::gateway::server::http1::poll_on_wake::PollOnWake;

/// The maximum number of frames that are read before other connections get a turn.
const FRAMES_PER_TURN: u32 = 256;

/// The stream of an HTTP/2 connection. Counts the frames that the client sends.
#[derive(Debug)]
pub(super) struct FrameWatch {
    inner: Stream,
    /// Whether the socket has woken the task since the last read, so that there may be something to read.
    readable: PollOnWake,
    /// The bytes that were read from the connection before this stream was made.
    prefix: Bytes,
    counter: FrameCounter,
}

impl FrameWatch {
    /// Makes a stream that counts the frames of `inner`, and returns it with the counts. `prefix` are the bytes that have
    /// already been read from `inner`.
    pub(super) fn new(inner: Stream, prefix: Bytes) -> (FrameWatch, Arc<FrameCounts>) {
        let counter = FrameCounter::default();
        let counts = Arc::clone(counter.counts());
        (FrameWatch { inner, readable: PollOnWake::default(), prefix, counter }, counts)
    }
}

impl AsyncRead for FrameWatch {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let watch = &mut *self;
        let before = buf.filled().len();
        if !watch.prefix.is_empty() {
            let length = watch.prefix.len().min(buf.remaining());
            buf.put_slice(&watch.prefix.split_to(length));
        } else if watch.counter.counts().of_this_turn() > FRAMES_PER_TURN {
            // The task is polled again after the other connections.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        } else {
            let inner = Pin::new(&mut watch.inner);
            ready!(watch.readable.poll(cx, |cx| inner.poll_read(cx, buf)))?;
        }
        watch.counter.count(buf.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

forward_writes!(FrameWatch, inner);

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::super::frame_counts::PREFACE;
    use super::*;

    #[tokio::test]
    async fn a_flood_of_frames_lets_others_have_their_turn() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (mut stream, counts) = FrameWatch::new(Box::new(server), Bytes::from_static(PREFACE));
        let flood = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(1000);
        client.write_all(&flood).await.unwrap();
        drop(client);
        let (mut turns, mut read) = (0, 0);
        let mut space = [0; 1 << 10];
        while read < PREFACE.len() + flood.len() {
            counts.begin_turn();
            turns += 1;
            let turn = std::future::poll_fn(|cx| {
                loop {
                    let mut part = ReadBuf::new(&mut space);
                    match Pin::new(&mut stream).poll_read(cx, &mut part) {
                        Poll::Ready(Ok(())) if !part.filled().is_empty() => read += part.filled().len(),
                        _ => return Poll::Ready(()),
                    }
                }
            });
            turn.await;
        }
        assert!((3..=5).contains(&turns), "{turns}");
    }
}

//! Limits how many bytes from a server this process buffers. A reply that is too long closes the connection.
//!
//! Counts the bytes received since the last write. These are at most six replies, to five calls and a heartbeat. Their
//! size is far below the limit.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The limit in bytes, far above the replies to the largest calls.
const MAX_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct ReadLimit<S> {
    stream: S,
    read: usize,
}

impl<S> ReadLimit<S> {
    pub(super) fn new(stream: S) -> ReadLimit<S> {
        ReadLimit { stream, read: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadLimit<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.read += buffer.filled().len() - before;
        if self.read > MAX_BYTES {
            return Poll::Ready(Err(io::Error::other("an answer that does not end")));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadLimit<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.read = 0;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

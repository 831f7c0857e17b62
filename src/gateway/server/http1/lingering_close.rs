//! Closes connections on which the client is still sending (lingering close), or resets them.
//!
//! Closing a connection with unread bytes resets it, and the client may lose the response. So the gateway closes its
//! own side first, and then discards what still arrives (RFC 9112, section 9.6).

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use pingora::protocols::Stream;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};

use base::time;

const LONGEST: Duration = Duration::from_secs(2);
/// The maximum number of bytes that are discarded.
const MAX_BYTES: usize = 64 << 20;

pub(super) async fn linger(mut stream: Stream) {
    let closing = async {
        stream.shutdown().await?;
        let mut left = MAX_BYTES;
        while left > 0 {
            match discard(&mut stream).await? {
                0 => break,
                discarded => left = left.saturating_sub(discarded),
            }
        }
        Ok::<_, io::Error>(())
    };
    let _ = time::timeout(LONGEST, closing).await;
}

/// Makes a connection close with a reset, which discards the bytes that have not been sent yet.
///
/// # Errors
/// If this option cannot be set on the socket of the stream.
pub(super) fn reset_at_close(stream: &Stream) -> io::Result<()> {
    socket2_raw::SockRef::from(&Descriptor((**stream).id())).set_linger(Some(Duration::ZERO))
}

/// The file descriptor of a stream, as a type that implements `AsRawFd` for `socket2`.
struct Descriptor(RawFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// Reads once, into a buffer that is not kept between reads.
async fn discard(stream: &mut Stream) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut space = [const { MaybeUninit::<u8>::uninit() }; 16 << 10];
        let mut part = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut *stream).poll_read(cx, &mut part))?;
        Poll::Ready(Ok(part.filled().len()))
    })
    .await
}

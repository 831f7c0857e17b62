//! Closes a connection on which the client is still sending, so that it can read what it was answered.
//!
//! Closing with bytes unread resets the connection, and a reset discards what the client has not read yet. So our side is
//! closed first, and what comes is read for a while and thrown away (RFC 9112, section 9.6).

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use pingora::protocols::Stream;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};

use crate::base::time;

const LONGEST: Duration = Duration::from_secs(2);
/// What a client on a good line sends in that time.
const MOST: usize = 64 << 20;

pub async fn linger(mut stream: Stream) {
    let closing = async {
        stream.shutdown().await?;
        let mut left = MOST;
        while left > 0 {
            match throw_away(&mut stream).await? {
                0 => break,
                thrown => left = left.saturating_sub(thrown),
            }
        }
        Ok::<_, io::Error>(())
    };
    let _ = time::timeout(LONGEST, closing).await;
}

/// Reads once, in a buffer that is not kept in between.
async fn throw_away(stream: &mut Stream) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut space = [const { MaybeUninit::<u8>::uninit() }; 16 << 10];
        let mut part = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut *stream).poll_read(cx, &mut part))?;
        Poll::Ready(Ok(part.filled().len()))
    })
    .await
}

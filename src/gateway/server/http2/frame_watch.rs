//! Watches the frames that a client sends, as they pass on their way to the h2 crate, which says nothing of them.
//!
//! Only the nine bytes at the head of each frame are looked at (RFC 9113, section 4.1). So it is known whether a block of
//! header fields has begun and is not complete, and how often a client resets streams or sends frames that carry nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use pingora::protocols::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a client sends before its first frame.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const FRAME_HEAD: usize = 9;

/// How many frames are read before other connections get a turn.
const FRAMES_PER_TURN: u32 = 256;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// What is known of the frames so far, for the loop of the connection.
#[derive(Debug, Default)]
pub struct FrameCounts {
    /// Whether a block of header fields is incomplete.
    in_block: AtomicBool,
    /// How many such blocks have begun; it wraps.
    blocks: AtomicU32,
    resets: AtomicU32,
    /// Frames that carry neither a part of a message nor credit for one: SETTINGS, PING, PRIORITY and unknown ones.
    idle_frames: AtomicU32,
    /// Frames since the last turn.
    turn: AtomicU32,
}

impl FrameCounts {
    /// The number of the block of header fields that is incomplete.
    pub fn open_block(&self) -> Option<u32> {
        self.in_block.load(Ordering::Relaxed).then(|| self.blocks.load(Ordering::Relaxed))
    }

    /// How many blocks of header fields, so about how many streams, have begun. It wraps.
    pub fn blocks(&self) -> u32 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// How many streams the client has reset. It wraps.
    pub fn resets(&self) -> u32 {
        self.resets.load(Ordering::Relaxed)
    }

    /// How many frames have carried nothing. It wraps.
    pub fn idle_frames(&self) -> u32 {
        self.idle_frames.load(Ordering::Relaxed)
    }

    /// Begins a turn, in which a bounded number of frames is read.
    pub fn begin_turn(&self) {
        self.turn.store(0, Ordering::Relaxed);
    }
}

/// The stream of a connection of HTTP/2.
#[derive(Debug)]
pub struct FrameWatch {
    inner: Stream,
    /// What has been read of the connection before.
    prefix: Bytes,
    /// What is left of the preface.
    preface: usize,
    head: [u8; FRAME_HEAD],
    /// How much of the head is there.
    filled: usize,
    /// What is left of the frame's payload.
    payload: usize,
    /// Whether the last block of header fields goes on in a further frame.
    is_continued: bool,
    counts: Arc<FrameCounts>,
}

impl FrameWatch {
    /// `prefix` has been read of the stream already.
    pub fn new(inner: Stream, prefix: Bytes) -> (FrameWatch, Arc<FrameCounts>) {
        let counts = Arc::new(FrameCounts::default());
        let watch = FrameWatch {
            inner,
            prefix,
            preface: PREFACE.len(),
            head: [0; FRAME_HEAD],
            filled: 0,
            payload: 0,
            is_continued: false,
            counts: Arc::clone(&counts),
        };
        (watch, counts)
    }

    fn watch(&mut self, mut bytes: &[u8]) {
        bytes = skip(&mut self.preface, bytes);
        loop {
            bytes = skip(&mut self.payload, bytes);
            if bytes.is_empty() {
                break;
            }
            let Some((part, rest)) = bytes.split_at_checked(bytes.len().min(FRAME_HEAD - self.filled)) else { break };
            if let Some(head) = self.head.get_mut(self.filled..self.filled + part.len()) {
                head.copy_from_slice(part);
            }
            self.filled += part.len();
            bytes = rest;
            if self.filled == FRAME_HEAD {
                self.filled = 0;
                self.begin_frame();
            }
        }
        let has_fields = matches!(self.head, [_, _, _, HEADERS | CONTINUATION, ..]) && self.filled == 0;
        let in_block = self.is_continued || (has_fields && self.payload > 0);
        self.counts.in_block.store(in_block, Ordering::Relaxed);
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let add = |count: &AtomicU32| count.fetch_add(1, Ordering::Relaxed);
        add(&self.counts.turn);
        match kind {
            DATA | WINDOW_UPDATE => {}
            HEADERS | CONTINUATION => {
                if kind == HEADERS {
                    add(&self.counts.blocks);
                }
                self.is_continued = flags & END_HEADERS == 0;
            }
            RST_STREAM => drop(add(&self.counts.resets)),
            _ => drop(add(&self.counts.idle_frames)),
        }
    }
}

/// Skips what is `left` of a part, as far as `bytes` have it, and returns the rest of them.
fn skip<'b>(left: &mut usize, bytes: &'b [u8]) -> &'b [u8] {
    let skipped = bytes.len().min(*left);
    *left -= skipped;
    bytes.get(skipped..).unwrap_or_default()
}

impl AsyncRead for FrameWatch {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let watch = &mut *self;
        let before = buf.filled().len();
        if !watch.prefix.is_empty() {
            let length = watch.prefix.len().min(buf.remaining());
            buf.put_slice(&watch.prefix.split_to(length));
        } else if watch.counts.turn.load(Ordering::Relaxed) > FRAMES_PER_TURN {
            // The connection is polled again after the others.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        } else {
            ready!(Pin::new(&mut watch.inner).poll_read(cx, buf))?;
        }
        watch.watch(buf.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for FrameWatch {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u8::try_from(payload).unwrap();
        [vec![0, 0, length, kind, flags, 0, 0, 0, 1], vec![HEADERS; payload]].concat()
    }

    /// What is known after each of these bytes, which arrive one by one or together.
    async fn watch(bytes: &[u8], sizes: &[usize]) -> Arc<FrameCounts> {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let (mut stream, counts) = FrameWatch::new(Box::new(server), Bytes::copy_from_slice(&PREFACE[..3]));
        let mut read = [0; 1 << 10];
        stream.read_exact(&mut read[..3]).await.unwrap();
        client.write_all(&PREFACE[3..]).await.unwrap();
        client.write_all(bytes).await.unwrap();
        stream.read_exact(&mut read[..PREFACE.len() - 3]).await.unwrap();
        let mut left = bytes.len();
        for size in sizes.iter().cycle() {
            let size = left.min(*size);
            stream.read_exact(&mut read[..size]).await.unwrap();
            left -= size;
            if left == 0 {
                break;
            }
        }
        counts
    }

    #[tokio::test]
    async fn a_block_of_fields_is_open_from_its_first_frame_to_the_end_of_its_last() {
        let whole = frame(HEADERS, END_HEADERS, 20);
        let begun = [frame(DATA, 0, 30), frame(HEADERS, 0, 20)].concat();
        let ended = [begun.clone(), frame(CONTINUATION, 0, 0), frame(CONTINUATION, END_HEADERS, 5)].concat();
        for sizes in [&[1][..], &[7, 2, 11], &[1 << 10]] {
            for (bytes, open) in [
                (&whole[..], None),
                (&whole[..28], Some(1)),
                (&whole[..10], Some(1)),
                (&begun, Some(1)),
                (&ended, None),
                (&ended[..ended.len() - 1], Some(1)),
                (&ended[..ended.len() - 6], Some(1)),
            ] {
                assert_eq!(watch(bytes, sizes).await.open_block(), open, "{} by {sizes:?}", bytes.len());
            }
        }
    }

    #[tokio::test]
    async fn frames_are_counted_by_what_they_do() {
        const PING: u8 = 6;
        let bytes = [
            frame(HEADERS, END_HEADERS, 3),
            frame(RST_STREAM, 0, 4),
            frame(RST_STREAM, 0, 4),
            frame(PING, 0, 8),
            frame(WINDOW_UPDATE, 0, 4),
            frame(DATA, 0, 9),
            frame(200, 0, 2),
        ]
        .concat();
        for sizes in [&[1][..], &[5, 6], &[1 << 10]] {
            let counts = watch(&bytes, sizes).await;
            assert_eq!((counts.blocks(), counts.resets(), counts.idle_frames()), (1, 2, 2));
        }
    }

    #[tokio::test]
    async fn a_flood_of_frames_lets_others_have_their_turn() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (mut stream, counts) = FrameWatch::new(Box::new(server), Bytes::from_static(PREFACE));
        let flood = frame(6, 0, 8).repeat(1000);
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

//! Counts the frames that a client sends, from the heads of the frames alone (RFC 9113, section 4.1).
//!
//! The fields of trailers are counted too ([`TrailerCounts`]). The h2 crate reads all other content.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::trailer_counts::{BlockCounter, TrailerCounts};

/// The bytes that a client sends before its first frame.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The length of a frame's head, in bytes.
const FRAME_HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The counts of the frames on one connection. Every count wraps around.
#[derive(Debug, Default)]
pub struct FrameCounts {
    /// Whether a block of header fields is incomplete.
    in_block: AtomicBool,
    blocks: AtomicU32,
    /// The number of blocks of header fields that are the first of their stream.
    opened: AtomicU32,
    resets: AtomicU32,
    data: AtomicU32,
    idle_frames: AtomicU32,
    turn: AtomicU32,
    trailers: TrailerCounts,
}

impl FrameCounts {
    /// Returns the sequence number of the header block that has begun and is incomplete. `None` if every block is complete.
    pub fn open_block(&self) -> Option<u32> {
        self.in_block.load(Ordering::Relaxed).then(|| self.blocks.load(Ordering::Relaxed))
    }

    /// The number of header blocks that have begun.
    pub fn blocks(&self) -> u32 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// The number of streams that have begun.
    pub fn opened(&self) -> u32 {
        self.opened.load(Ordering::Relaxed)
    }

    /// The number of streams that the client has reset.
    pub fn resets(&self) -> u32 {
        self.resets.load(Ordering::Relaxed)
    }

    /// The number of DATA frames that have begun.
    pub fn data(&self) -> u32 {
        self.data.load(Ordering::Relaxed)
    }

    /// The number of frames that carry no part of a message, such as SETTINGS and PING.
    pub fn idle_frames(&self) -> u32 {
        self.idle_frames.load(Ordering::Relaxed)
    }

    /// The number of frames that have begun since the last call of [`FrameCounts::begin_turn`].
    pub fn of_this_turn(&self) -> u32 {
        self.turn.load(Ordering::Relaxed)
    }

    /// The numbers of fields in trailers. On a connection to an upstream, the fields in heads of responses without a
    /// body are also counted.
    pub fn trailers(&self) -> &TrailerCounts {
        &self.trailers
    }

    /// Begins a turn of the connection's task. In one turn, a bounded number of frames is read.
    pub fn begin_turn(&self) {
        self.turn.store(0, Ordering::Relaxed);
    }
}

/// Counts the frames in the bytes that a client sends. The result does not depend on how the bytes are split.
#[derive(Debug)]
pub struct FrameCounter {
    /// The number of missing bytes of the preface.
    preface: usize,
    head: [u8; FRAME_HEAD],
    /// The number of bytes of `head` that have arrived.
    filled: usize,
    /// The number of missing bytes of the frame's payload.
    payload: usize,
    /// Whether the last block of header fields continues in a further frame.
    is_continued: bool,
    /// The highest stream that the client has opened.
    last_stream: u32,
    /// The counter of the current block of header fields, if the block may be trailers.
    block: Option<BlockCounter>,
    counts: Arc<FrameCounts>,
}

impl Default for FrameCounter {
    fn default() -> FrameCounter {
        FrameCounter {
            preface: PREFACE.len(),
            head: [0; FRAME_HEAD],
            filled: 0,
            payload: 0,
            is_continued: false,
            last_stream: 0,
            block: None,
            counts: Arc::default(),
        }
    }
}

impl FrameCounter {
    /// Makes a counter for the frames of a server, which begins without a preface and opens no streams.
    pub(crate) fn of_server() -> FrameCounter {
        FrameCounter { preface: 0, last_stream: u32::MAX, ..FrameCounter::default() }
    }

    pub fn counts(&self) -> &Arc<FrameCounts> {
        &self.counts
    }

    /// Counts the frames in the next bytes of the connection.
    pub fn count(&mut self, mut bytes: &[u8]) {
        bytes = skip(&mut self.preface, bytes);
        loop {
            let before = bytes;
            bytes = skip(&mut self.payload, bytes);
            if let Some(block) = &mut self.block {
                block.count(before.get(..before.len() - bytes.len()).unwrap_or_default());
                self.end_block();
            }
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

    /// Notes the trailers once their last frame is complete.
    fn end_block(&mut self) {
        if self.payload == 0
            && !self.is_continued
            && let Some(block) = self.block.take()
        {
            block.end(&self.counts.trailers);
        }
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, stream @ ..] = self.head;
        self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        // Only this counter writes these numbers, so no atomic addition is needed.
        let add = |count: &AtomicU32| count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        add(&self.counts.turn);
        match kind {
            DATA => add(&self.counts.data),
            WINDOW_UPDATE => {}
            HEADERS | CONTINUATION => {
                if kind == HEADERS {
                    add(&self.counts.blocks);
                    // Stream numbers of clients are odd and grow. The reserved bit is removed.
                    let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
                    self.block = None;
                    if stream % 2 == 1 && stream > self.last_stream {
                        self.last_stream = stream;
                        add(&self.counts.opened);
                    } else if flags & END_STREAM != 0 {
                        self.block = Some(BlockCounter::new(stream, flags, self.payload));
                    }
                } else if let Some(block) = &mut self.block {
                    block.continue_in(self.payload);
                }
                self.is_continued = flags & END_HEADERS == 0;
                self.end_block();
            }
            RST_STREAM => add(&self.counts.resets),
            _ => add(&self.counts.idle_frames),
        }
    }
}

/// Skips up to `left` bytes, and returns the rest of `bytes`.
fn skip<'b>(left: &mut usize, bytes: &'b [u8]) -> &'b [u8] {
    let skipped = bytes.len().min(*left);
    *left -= skipped;
    bytes.get(skipped..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: usize) -> Vec<u8> {
        let length = u8::try_from(payload).unwrap();
        [vec![0, 0, length, kind, flags, 0, 0, 0, stream], vec![HEADERS; payload]].concat()
    }

    /// Returns the counts after these bytes, which arrive in parts of these sizes.
    fn count(bytes: &[u8], sizes: &[usize]) -> Arc<FrameCounts> {
        let mut counter = FrameCounter::default();
        counter.count(&PREFACE[..3]);
        counter.count(&PREFACE[3..]);
        let mut rest = bytes;
        for size in sizes.iter().cycle() {
            let (part, more) = rest.split_at(rest.len().min(*size));
            counter.count(part);
            rest = more;
            if rest.is_empty() {
                break;
            }
        }
        Arc::clone(counter.counts())
    }

    #[test]
    fn a_block_of_fields_is_open_from_its_first_frame_to_the_end_of_its_last() {
        let whole = frame(HEADERS, END_HEADERS, 1, 20);
        let begun = [frame(DATA, 0, 1, 30), frame(HEADERS, 0, 1, 20)].concat();
        let ended = [begun.clone(), frame(CONTINUATION, 0, 1, 0), frame(CONTINUATION, END_HEADERS, 1, 5)].concat();
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
                assert_eq!(count(bytes, sizes).open_block(), open, "{} by {sizes:?}", bytes.len());
            }
        }
    }

    #[test]
    fn frames_are_counted_by_what_they_do() {
        const PING: u8 = 6;
        let bytes = [
            frame(HEADERS, END_HEADERS, 1, 3),
            frame(HEADERS, END_HEADERS, 5, 3),
            // These three frames open no stream. Stream 1 is already open. Stream 3 comes after stream 5, and numbers must
            // grow. The number 8 is even, and clients use odd numbers.
            frame(HEADERS, END_HEADERS, 1, 3),
            frame(HEADERS, END_HEADERS, 3, 3),
            frame(HEADERS, END_HEADERS, 8, 3),
            frame(RST_STREAM, 0, 1, 4),
            frame(RST_STREAM, 0, 5, 4),
            frame(PING, 0, 0, 8),
            frame(WINDOW_UPDATE, 0, 0, 4),
            frame(DATA, 0, 1, 9),
            frame(200, 0, 0, 2),
        ]
        .concat();
        for sizes in [&[1][..], &[5, 6], &[1 << 10]] {
            let counts = count(&bytes, sizes);
            assert_eq!((counts.blocks(), counts.opened(), counts.resets(), counts.idle_frames()), (5, 2, 2, 2));
            assert_eq!((counts.data(), counts.of_this_turn()), (1, 11));
        }
    }
}

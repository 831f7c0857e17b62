//! Back-pressure of slow readers: counts the responses whose clients do not read them fast enough, and gives each of them
//! up after a timeout.
//!
//! Each holds in memory what has been read of it: Pingora reads up to nine pieces ahead, each of at most what the upstream's
//! socket has received. So above a threshold responses are read through a small receive window, and thousands that no client
//! reads take little memory.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

/// How many may stall while others are still read as fast as the upstream sends them.
const THRESHOLD: usize = 64;

/// The number of stalled responses, on all threads.
#[derive(Clone, Debug, Default)]
pub struct WriteBackpressure(Arc<AtomicUsize>);

/// One stalled response, counted until it is dropped.
#[derive(Debug)]
pub struct WriteStall {
    number: Arc<AtomicUsize>,
    deadline: Pin<Box<Sleep>>,
}

impl WriteBackpressure {
    /// Whether so many stall that little may be read ahead for each.
    pub fn is_above_threshold(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= THRESHOLD
    }

    /// After a write that the client is not ready for: counts the response as stalled, in `stall`, and is ready when the
    /// client has read nothing for `timeout`.
    pub fn poll_stalled(&self, stall: &mut Option<WriteStall>, timeout: Duration, cx: &mut Context<'_>) -> Poll<()> {
        stall.get_or_insert_with(|| self.begin(timeout)).deadline.as_mut().poll(cx)
    }

    fn begin(&self, timeout: Duration) -> WriteStall {
        self.0.fetch_add(1, Ordering::Relaxed);
        WriteStall { number: Arc::clone(&self.0), deadline: Box::pin(tokio::time::sleep(timeout)) }
    }
}

impl Drop for WriteStall {
    fn drop(&mut self) {
        self.number.fetch_sub(1, Ordering::Relaxed);
    }
}

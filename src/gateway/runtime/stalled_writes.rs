//! Counts the answers that wait for their clients to take more of them.
//!
//! Each holds what has been read of it: Pingora reads up to nine pieces ahead, each of at most what the upstream's socket has
//! received. So from a number on, answers are read through a small window, and thousands that nobody takes stay small.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

/// How many may wait while others are still read as fast as they come.
const MANY: usize = 64;

/// How many wait, on all threads.
#[derive(Clone, Debug, Default)]
pub struct StalledWrites(Arc<AtomicUsize>);

/// One of them, until it goes or gives up.
#[derive(Debug)]
pub struct WriteStall {
    number: Arc<AtomicUsize>,
    deadline: Pin<Box<Sleep>>,
}

impl StalledWrites {
    /// Whether so many wait that what is read for each has to be little.
    pub fn are_many(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= MANY
    }

    pub fn wait(&self, patience: Duration) -> WriteStall {
        self.0.fetch_add(1, Ordering::Relaxed);
        WriteStall { number: Arc::clone(&self.0), deadline: Box::pin(tokio::time::sleep(patience)) }
    }
}

impl WriteStall {
    /// Ready when nothing has been taken for too long.
    pub fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.deadline.as_mut().poll(cx)
    }
}

impl Drop for WriteStall {
    fn drop(&mut self) {
        self.number.fetch_sub(1, Ordering::Relaxed);
    }
}

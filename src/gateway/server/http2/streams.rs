//! Counts the streams of a connection, and keeps the connection counted until the last of them has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use crate::base::time::{Clock, Timestamp};
use crate::gateway::server::connection_guard::ConnectionGuard;
use crate::gateway::server::connections_per_client::ClientGuard;

/// The streams of one connection.
#[derive(Clone, Debug)]
pub struct Streams(Arc<State>);

#[derive(Debug)]
struct State {
    open: AtomicUsize,
    /// When the last stream ended, in microseconds.
    ended: AtomicU64,
    clock: Clock,
    /// Whether the loop of the connection waits for the end of the last stream.
    is_awaited: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// Held for the connection, and for streams that outlive it.
    _guard: ConnectionGuard,
}

impl Streams {
    pub fn new(guard: ConnectionGuard, clock: &Clock) -> Streams {
        Streams(Arc::new(State {
            open: AtomicUsize::new(0),
            ended: AtomicU64::new(clock.now().0),
            clock: clock.clone(),
            is_awaited: AtomicBool::new(false),
            waker: Mutex::default(),
            _guard: guard,
        }))
    }

    pub fn open(&self) -> usize {
        self.0.open.load(Ordering::Acquire)
    }

    /// When the last stream ended, or the connection began. Means nothing while one is open.
    pub fn ended(&self) -> Timestamp {
        Timestamp(self.0.ended.load(Ordering::Relaxed))
    }

    /// Has the task woken when the last stream ends. Not done for every connection: few wait for that.
    pub fn wake_at_end(&self, waker: &Waker) {
        *self.0.waker.lock() = Some(waker.clone());
        self.0.is_awaited.store(true, Ordering::Release);
    }

    /// Counts a stream. `client` counts it as its client's.
    pub fn begin(&self, client: Option<ClientGuard>) -> StreamGuard {
        self.0.open.fetch_add(1, Ordering::AcqRel);
        StreamGuard { streams: self.clone(), _client: client }
    }
}

/// Counts one stream, until it is dropped.
#[derive(Debug)]
pub struct StreamGuard {
    streams: Streams,
    _client: Option<ClientGuard>,
}

impl StreamGuard {
    /// The clock of the connection.
    pub fn clock(&self) -> &Clock {
        &self.streams.0.clock
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let state = &*self.streams.0;
        state.ended.store(state.clock.now().0, Ordering::Relaxed);
        let was_last = state.open.fetch_sub(1, Ordering::AcqRel) == 1;
        if was_last
            && state.is_awaited.load(Ordering::Acquire)
            && let Some(waker) = state.waker.lock().take()
        {
            waker.wake();
        }
    }
}

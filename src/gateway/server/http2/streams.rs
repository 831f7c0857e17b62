//! Counts the streams of a connection. The connection stays counted until its last stream has ended. Also lends timers
//! to streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::gateway::server::connection_guard::ConnectionGuard;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::connection_limits::ConnectionLimit;
use crate::gateway::server::http1::reusable_timer::ReusableTimer;
use base::time::{Clock, Timestamp};

/// The maximum number of timers of one connection that are kept for later streams.
const MOST_TIMERS: usize = 16;

/// Counts the open streams of one connection, and holds what these streams share.
#[derive(Clone, Debug)]
pub(crate) struct Streams(Arc<State>);

#[derive(Debug)]
struct State {
    open: AtomicUsize,
    /// Whether one of the open streams is counted together with the connection.
    is_first_open: AtomicBool,
    /// The time at which the last stream ended, in microseconds.
    ended: AtomicU64,
    clock: Clock,
    /// Whether the loop of the connection waits for the end of the last stream.
    is_awaited: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// The timers that no stream has borrowed.
    timers: Mutex<Vec<ReusableTimer>>,
    handle: ConnectionHandle,
    /// The exit of the process waits until this receiver is dropped.
    exit: Mutex<Option<watch::Receiver<bool>>>,
    /// The guard of the connection. Streams hold it too, because they may outlive the connection.
    guard: ConnectionGuard,
}

impl Streams {
    pub(crate) fn new(guard: ConnectionGuard, clock: &Clock, handle: ConnectionHandle) -> Streams {
        Streams(Arc::new(State {
            open: AtomicUsize::new(0),
            is_first_open: AtomicBool::new(false),
            ended: AtomicU64::new(clock.now().0),
            clock: clock.clone(),
            is_awaited: AtomicBool::new(false),
            waker: Mutex::default(),
            timers: Mutex::default(),
            handle,
            exit: Mutex::default(),
            guard,
        }))
    }

    pub(crate) fn open(&self) -> usize {
        self.0.open.load(Ordering::Acquire)
    }

    /// Returns the time at which the last stream ended, or at which the connection began if there was no stream. Has no meaning
    /// while a stream is open.
    pub(crate) fn ended(&self) -> Timestamp {
        Timestamp(self.0.ended.load(Ordering::Relaxed))
    }

    /// Wakes the task when the last stream of the connection ends. Called only for the few connections that wait for this.
    pub(crate) fn wake_at_end(&self, waker: &Waker) {
        *self.0.waker.lock() = Some(waker.clone());
        self.0.is_awaited.store(true, Ordering::Release);
    }

    /// Notes that the connection is closed. The process no longer waits for it.
    pub(crate) fn close(&self) {
        *self.0.exit.lock() = None;
    }

    /// Counts a stream, also for its client. `most` is the number of streams that the client may have, in addition to one
    /// stream for each of its connections. `None` allows any number.
    ///
    /// # Errors
    /// If the client already has as many streams as allowed. The stream still counts for its connection, because it gets a
    /// response.
    pub(crate) fn begin(&self, most: Option<usize>) -> (StreamGuard, Result<(), ConnectionLimit>) {
        let state = &*self.0;
        state.open.fetch_add(1, Ordering::AcqRel);
        let is_first = !state.is_first_open.swap(true, Ordering::AcqRel);
        let client = state.guard.client().zip(most).filter(|_| !is_first);
        let counted = client.map(|(client, most)| client.begin_stream(most));
        let is_clients = matches!(counted, Some(Ok(())));
        let guard = StreamGuard { streams: self.clone(), is_first, is_clients };
        (guard, counted.unwrap_or(Ok(())).map_err(|_| ConnectionLimit::ConnectionsPerClient))
    }
}

/// Counts one stream until the guard is dropped.
#[derive(Debug)]
pub(crate) struct StreamGuard {
    streams: Streams,
    /// Whether the stream is counted together with its connection.
    is_first: bool,
    /// Whether the stream is counted among those of its client.
    is_clients: bool,
}

impl StreamGuard {
    pub(crate) fn clock(&self) -> &Clock {
        &self.streams.0.clock
    }

    /// Returns the handle of the connection, for the application.
    pub(crate) fn handle(&self) -> &ConnectionHandle {
        &self.streams.0.handle
    }

    /// Makes the exit of the process wait for the connection, so that the last frames of the streams are written. The
    /// wait ends when the receiver from `exit` is dropped. Only the first call has an effect.
    pub(crate) fn delay_exit(&self, exit: impl FnOnce() -> watch::Receiver<bool>) {
        self.streams.0.exit.lock().get_or_insert_with(exit);
    }

    /// Lends a timer to the stream, until [`StreamGuard::return_timer`]. The timer may be set for an earlier stream.
    pub(crate) fn borrow_timer(&self) -> ReusableTimer {
        self.streams.0.timers.lock().pop().unwrap_or_else(ReusableTimer::coarse)
    }

    pub(crate) fn return_timer(&self, timer: ReusableTimer) {
        let mut timers = self.streams.0.timers.lock();
        if timers.len() < MOST_TIMERS {
            timers.push(timer);
        }
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let state = &*self.streams.0;
        if self.is_first {
            state.is_first_open.store(false, Ordering::Release);
        }
        if self.is_clients
            && let Some(client) = state.guard.client()
        {
            client.end_stream();
        }
        if state.open.load(Ordering::Acquire) == 1 {
            // Nobody reads this time while other streams are open.
            state.ended.store(state.clock.now().0, Ordering::Relaxed);
        }
        let was_last = state.open.fetch_sub(1, Ordering::AcqRel) == 1;
        if was_last
            && state.is_awaited.load(Ordering::Acquire)
            && let Some(waker) = state.waker.lock().take()
        {
            waker.wake();
        }
    }
}

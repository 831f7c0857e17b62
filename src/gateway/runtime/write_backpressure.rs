//! Limits the memory for slow readers: counts the responses whose clients do not read them, and aborts each of them after a
//! timeout.
//!
//! If many responses are stalled, responses are read through a small receive window, so that they take little memory.
//! [`super::response_buffers`] limits the memory of all stalled responses together.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use super::response_buffers::{HeldForClient, HeldResponse, ResponseBuffers};

/// The number of stalled responses up to which all responses are read through a window of ordinary size.
const THRESHOLD: usize = 64;

/// The maximum number of stalled responses of one connection that are counted towards [`THRESHOLD`]. If a connection
/// has more, only its own responses are read through the small window.
const SHARE: usize = 8;

/// Counts stalled responses, which their clients do not read. There is one count for the process, and one for each HTTP/2
/// connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteBackpressure {
    all: Arc<AtomicUsize>,
    /// The count of one HTTP/2 connection; `None` for HTTP/1, where a connection has at most one stalled response.
    own: Option<Arc<AtomicUsize>>,
    /// The limit on the bytes of unread responses, if there is one.
    buffers: Option<Arc<ResponseBuffers>>,
    /// The client of the response; `None` if the client is not counted.
    client: Option<HeldForClient>,
}

/// A response that its client does not read. It counts as stalled until this value is dropped.
#[derive(Debug)]
pub(crate) struct WriteStall {
    counts: WriteBackpressure,
    /// Whether the response is in the count of all connections.
    is_counted: bool,
    held: Option<HeldResponse>,
    deadline: Pin<Box<Sleep>>,
}

/// The reason why a stalled response is aborted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StallEnd {
    TimedOut,
    /// Unread responses take too much memory.
    BuffersFull,
}

impl WriteBackpressure {
    pub(crate) fn new(buffers: Arc<ResponseBuffers>) -> WriteBackpressure {
        WriteBackpressure { buffers: Some(buffers), ..WriteBackpressure::default() }
    }

    /// Returns these counts for use by the responses on one connection. `client` is the client of the connection, or `None` if
    /// the client is not known.
    #[must_use]
    pub(crate) fn of_client(&self, client: Option<&HeldForClient>) -> WriteBackpressure {
        WriteBackpressure { client: client.cloned(), ..self.clone() }
    }

    /// Returns these counts for use by the responses on one HTTP/2 connection, which also gets a count of its own. If `client`
    /// is `None`, the connection counts as a separate client.
    #[must_use]
    pub(crate) fn of_connection(&self, client: Option<&HeldForClient>) -> WriteBackpressure {
        let client = client.cloned().unwrap_or_default();
        WriteBackpressure { own: Some(Arc::default()), client: Some(client), ..self.clone() }
    }

    /// Returns whether so many responses are stalled that responses must be read through the small receive window.
    pub(crate) fn is_above_threshold(&self) -> bool {
        let has_share = || self.own.as_ref().is_some_and(|own| own.load(Ordering::Relaxed) >= SHARE);
        self.all.load(Ordering::Relaxed) >= THRESHOLD
            || has_share()
            || self.buffers.as_ref().is_some_and(|buffers| buffers.is_half_full())
    }

    /// Counts a response as stalled, in `stall`, with `held` unread bytes. To be called after a write for which the
    /// client was not ready. Becomes ready when the response must be aborted, because the client has read nothing for
    /// `timeout` or too many bytes are held.
    pub(crate) fn poll_stalled(
        &self,
        stall: &mut Option<WriteStall>,
        (timeout, held): (Duration, usize),
        cx: &mut Context<'_>,
    ) -> Poll<StallEnd> {
        let stall = stall.get_or_insert_with(|| self.begin(timeout, held));
        if let Some(held) = &mut stall.held
            && held.poll_given_up(cx).is_ready()
        {
            return Poll::Ready(StallEnd::BuffersFull);
        }
        stall.deadline.as_mut().poll(cx).map(|()| StallEnd::TimedOut)
    }

    fn begin(&self, timeout: Duration, held: usize) -> WriteStall {
        let is_counted = self.own.as_ref().is_none_or(|own| own.fetch_add(1, Ordering::Relaxed) < SHARE);
        if is_counted {
            self.all.fetch_add(1, Ordering::Relaxed);
        }
        let client = || self.client.clone().unwrap_or_default();
        let held = self.buffers.as_ref().map(|buffers| buffers.hold(&client(), held));
        WriteStall { counts: self.clone(), is_counted, held, deadline: Box::pin(tokio::time::sleep(timeout)) }
    }
}

impl Drop for WriteStall {
    fn drop(&mut self) {
        if let Some(own) = &self.counts.own {
            own.fetch_sub(1, Ordering::Relaxed);
        }
        if self.is_counted {
            self.counts.all.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn stalls(of: &WriteBackpressure, count: usize) -> Vec<WriteStall> {
        (0..count).map(|_| of.begin(LONG, 1)).collect()
    }

    #[tokio::test]
    async fn the_unread_responses_of_one_connection_make_the_windows_of_no_other_small() {
        let all = WriteBackpressure::default();
        let (many, few) = (all.of_connection(None), all.of_connection(None));
        let hundred = stalls(&many, 100);
        assert_eq!([&all, &many, &few].map(WriteBackpressure::is_above_threshold), [false, true, false]);
        drop(hundred);
        assert!(!many.is_above_threshold());
    }

    #[tokio::test]
    async fn those_of_many_connections_do_until_they_are_read() {
        let all = WriteBackpressure::default();
        let connections: Vec<_> = (0..THRESHOLD / SHARE).map(|_| all.of_connection(None)).collect();
        let unread: Vec<_> = connections.iter().map(|connection| stalls(connection, 100)).collect();
        assert!(all.is_above_threshold());
        drop(unread);
        assert!(!all.is_above_threshold());
        // With HTTP/1.1, each of these responses is on its own connection.
        let unread = stalls(&all, THRESHOLD);
        assert!(all.is_above_threshold());
        drop(unread);
        assert_eq!(all.all.load(Ordering::Relaxed), 0);
    }
}

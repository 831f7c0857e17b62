//! Ends a connection between two requests: after `limits.idle_timeout`, when the process shuts down, or when the
//! current certificates no longer admit the client.
//!
//! A connection without any request is not closed at once when the process shuts down: its client may have sent the first one,
//! and could not know.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf;

use super::poll_on_wake::PollOnWake;
use super::reusable_timer::ReusableTimer;
use crate::gateway::server::http1::downstream_stream::DownstreamStream;
use crate::gateway::server::server_state::ServerState;
use crate::gateway::server::tls::client_exclusion::ClientExclusion;
use base::time::{self, Clock, Timestamp};

/// How long a connection without any request is kept when the process shuts down, because a request may be on its way.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// Waits for the first byte of a head. Returns `false` if the connection must be closed, for example after the idle
/// timeout.
///
/// Some clients send an empty line after a body. This line is skipped (RFC 9112, section 2.2).
pub(crate) async fn wait_for_first_byte(
    stream: &mut DownstreamStream,
    idle_timeout: &mut IdleTimeout<impl Future<Output = ()> + Unpin>,
    state: &ServerState,
) -> bool {
    let mut skipped = false;
    while !begins_head(stream, &mut skipped) {
        let timeout = state.snapshot.load().config.bounds.idle_timeout;
        let end = state.clock.now().plus(timeout);
        let read = poll_fn(|cx| match stream.poll_read_ahead(cx) {
            Poll::Ready(read) => Poll::Ready(Ok(read.unwrap_or(0))),
            Poll::Pending => idle_timeout.poll(end, &state.clock, cx).map(Err),
        });
        match read.await {
            Ok(0) => return false,
            Ok(_) => {}
            Err(reason) => {
                read_what_arrived(stream).await;
                let is_new = reason == IdleEnd::Shutdown && !idle_timeout.had_request;
                if is_new && !begins_head(stream, &mut skipped) {
                    let first = poll_fn(|cx| stream.poll_read_ahead(cx));
                    // Boxed, to keep the task of every connection small. An error is found again by the next read or write.
                    let _ = Box::pin(time::timeout(FIRST_REQUEST, first)).await;
                }
                return begins_head(stream, &mut skipped);
            }
        }
    }
    true
}

/// Whether the unparsed bytes are the beginning of a head. Skips one empty line before the head.
fn begins_head(stream: &mut DownstreamStream, skipped: &mut bool) -> bool {
    loop {
        match &stream.unparsed()[..] {
            [b'\r', b'\n', ..] if !*skipped => {
                stream.unparsed().advance(2);
                *skipped = true;
            }
            [] => return false,
            [b'\r'] if !*skipped => return false,
            _ => return true,
        }
    }
}

/// Reads the bytes that have arrived by the end of the wait, because there may be a request among them.
async fn read_what_arrived(stream: &mut DownstreamStream) {
    // The runtime looks at its sockets before this task continues.
    tokio::task::yield_now().await;
    // An error here is found again by the next read or write.
    let _ = poll_fn(|cx| Poll::Ready(stream.poll_read_ahead(cx))).await;
}

/// The reason why the wait between two requests ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleEnd {
    Shutdown,
    /// The certificates in force no longer admit the client.
    Excluded,
    Timeout,
}

/// The reasons to end the wait between two requests: the idle timeout, the shutdown of the process, and the exclusion
/// of the client.
pub(crate) struct IdleTimeout<S> {
    shutdown: S,
    /// Whether `shutdown` has ended. It must not be polled again.
    is_shut_down: bool,
    /// Whether the connection had a request.
    had_request: bool,
    shutdown_woken: PollOnWake,
    exclusion: ClientExclusion,
    timer: ReusableTimer,
}

impl<S: Future<Output = ()> + Unpin> IdleTimeout<S> {
    /// Makes the timeout of one connection. `shutdown` is a future that ends when the process shuts down.
    pub(crate) fn new(shutdown: S, exclusion: ClientExclusion) -> IdleTimeout<S> {
        let (shutdown_woken, timer) = (PollOnWake::default(), ReusableTimer::coarse());
        IdleTimeout { shutdown, is_shut_down: false, had_request: false, shutdown_woken, exclusion, timer }
    }

    /// Notes that the connection had a request.
    pub(crate) fn note_request(&mut self) {
        self.had_request = true;
    }

    /// Whether the certificates in force no longer admit the client.
    pub(crate) async fn is_client_excluded(&mut self) -> bool {
        poll_fn(|cx| Poll::Ready(self.exclusion.poll(cx).is_ready())).await
    }

    /// Becomes ready when the process shuts down or the client is excluded, or at `deadline`.
    pub(crate) fn poll(&mut self, deadline: Timestamp, clock: &Clock, cx: &mut Context<'_>) -> Poll<IdleEnd> {
        let shutdown = Pin::new(&mut self.shutdown);
        self.is_shut_down = self.is_shut_down || self.shutdown_woken.poll(cx, |cx| shutdown.poll(cx)).is_ready();
        if self.is_shut_down {
            return Poll::Ready(IdleEnd::Shutdown);
        }
        if self.exclusion.poll(cx).is_ready() {
            return Poll::Ready(IdleEnd::Excluded);
        }
        self.timer.poll(deadline, clock, cx).map(|()| IdleEnd::Timeout)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use pingora::server::ShutdownWatch;
    use tokio::sync::watch::channel;
    use tokio::task::yield_now;

    use super::*;

    const FAR: Timestamp = Timestamp(3_600_000_000);

    fn idle_timeout(watch: &ShutdownWatch) -> IdleTimeout<impl Future<Output = ()> + Unpin + Send + use<>> {
        let mut watch = watch.clone();
        let leave = Box::pin(async move { drop(watch.wait_for(|leaves| *leaves).await) });
        IdleTimeout::new(leave, ClientExclusion::Unencrypted)
    }

    async fn settle() {
        for _ in 0..20 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn only_a_shutdown_wakes_a_task_that_has_polled_often() {
        let (leave, watch) = channel(false);
        let mut idle = idle_timeout(&watch);
        let polling = tokio::spawn(async move {
            let clock = Clock::manual(Timestamp(0));
            for _ in 0..3 {
                assert!(poll_fn(|cx| Poll::Ready(idle.poll(FAR, &clock, cx))).await.is_pending());
            }
            poll_fn(|cx| idle.poll(FAR, &clock, cx)).await;
        });
        settle().await;
        leave.send(false).unwrap();
        settle().await;
        assert!(!polling.is_finished());
        leave.send(true).unwrap();
        tokio::time::timeout(Duration::from_secs(5), polling).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_shutdown_wakes_the_task_that_polled_last() {
        let (leave, watch) = channel(false);
        let mut idle = idle_timeout(&watch);
        let first = tokio::spawn(async move {
            let clock = Clock::manual(Timestamp(0));
            assert!(poll_fn(|cx| Poll::Ready(idle.poll(FAR, &clock, cx))).await.is_pending());
            idle
        });
        let mut idle = first.await.unwrap();
        let second = tokio::spawn(async move {
            let clock = Clock::manual(Timestamp(0));
            poll_fn(|cx| idle.poll(FAR, &clock, cx)).await;
        });
        settle().await;
        leave.send(true).unwrap();
        tokio::time::timeout(Duration::from_secs(5), second).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn during_a_shutdown_the_first_poll_is_ready() {
        let (leave, watch) = channel(false);
        leave.send(true).unwrap();
        let clock = Clock::manual(Timestamp(0));
        assert!(poll_fn(|cx| Poll::Ready(idle_timeout(&watch).poll(FAR, &clock, cx))).await.is_ready());
    }
}

//! Does acts of leases on a worker's connection. The breaker counts the results.

use std::sync::atomic::Ordering;

use super::Remote;
use super::connection::Connection;
use super::queue::Route;
use super::transport::Transport;
use crate::breaker::{CallResult, Change, Permit};
use crate::error::{Fault, StoreError};
use crate::events::Event;
use crate::lease_acts::{ActResults, BucketAct};
use crate::worker::Worker;
use base::time::{Micros, Timestamp, timeout_precisely};

/// Acts under way, with a permit of the breaker.
struct PendingActs<'r, T: Transport> {
    remote: &'r Remote<T>,
    /// The permit. `None` after the result is recorded.
    permit: Option<Permit>,
    started: Timestamp,
    /// The time at which the connection was made.
    connected: Timestamp,
}

impl<T: Transport> Remote<T> {
    /// Does acts of leases in one call. Waits at most for the store's timeout, also while a connection that has ended is made again.
    /// `route` says why this server is asked.
    ///
    /// # Errors
    ///
    /// When the store gives no answer. Unless the error proves otherwise, some or all acts may be done.
    pub async fn act(&self, worker: Worker, acts: &[BucketAct], route: Route) -> Result<ActResults, Fault> {
        let down = |error| Fault::unsent(error, "the connection is down");
        let connection = self.connection(worker).map_err(down)?;
        let (timeout, since) = (connection.timeout(), self.clock.now());
        let link = timeout_precisely(timeout.into(), connection.link()).await;
        let link = link.unwrap_or(Err(StoreError::Unsent)).map_err(down)?;
        let started = self.clock.now();
        let permit = self.breaker.acquire(started);
        if permit == Permit::Refused {
            return Err(Fault::unsent(StoreError::BreakerOpen, "the circuit breaker is open"));
        }
        let connected = connection.connected_at();
        let pending = PendingActs { remote: self, permit: Some(permit), started, connected };
        let left = Micros(timeout.0.saturating_sub(started.since(since).0));
        let done = timeout_precisely(left.into(), connection.act(link, acts, route)).await;
        let done = done.unwrap_or_else(|| Err(Fault::new(StoreError::Timeout, "no answer in time")));
        pending.conclude(&done);
        done
    }

    /// Whether the server is known to give no answer: the last attempt to connect has failed, or the breaker is open.
    pub fn is_away(&self, worker: Worker) -> bool {
        self.connection(worker).map_or(true, Connection::is_away) || self.breaker.is_open()
    }

    /// Sends no heartbeats on new connections.
    pub fn silence(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
    }

    /// Returns when the server last answered acts, or a question of a connection without heartbeats.
    pub fn heard(&self) -> Option<Timestamp> {
        heard(&self.heard)
    }
}

/// Reads a time. 0 means no time.
pub(crate) fn heard(stored: &std::sync::atomic::AtomicU64) -> Option<Timestamp> {
    Some(Timestamp(stored.load(Ordering::Relaxed))).filter(|at| *at > Timestamp(0))
}

impl<T: Transport> PendingActs<'_, T> {
    /// Records the result in the breaker.
    fn conclude(mut self, done: &Result<ActResults, Fault>) {
        let Some(permit) = self.permit.take() else { return };
        let Remote { breaker, clock, events, is_silent, .. } = self.remote;
        let now = clock.now();
        // A store that is only for acts is of no use while it is full.
        let is_home = is_silent.load(Ordering::Relaxed);
        let change = match done.as_ref().map_err(|fault| fault.error) {
            Ok(results) if is_home && results.is_out_of_memory() => breaker.record(permit, CallResult::Failure, now),
            Err(StoreError::OutOfMemory) if is_home => breaker.record(permit, CallResult::Failure, now),
            Ok(_) => breaker.record(permit, CallResult::Success, now),
            Err(error) if error.is_answer() => breaker.record(permit, CallResult::Success, now),
            // Such an error does not show whether the server can decide requests.
            Err(error) if error.is_refusal() => return breaker.release(permit),
            Err(_) if breaker.is_outdated(self.connected) => return breaker.release(permit),
            Err(StoreError::Timeout) if permit == Permit::Granted => breaker.record_timeout(self.started..now, now),
            Err(_) => breaker.record(permit, CallResult::Failure, now),
        };
        match change {
            Change::Opened => events.send(Event::BreakerOpened),
            Change::Closed => events.send(Event::BreakerClosed),
            Change::None => {}
        }
    }
}

impl<T: Transport> Drop for PendingActs<'_, T> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.remote.breaker.release(permit);
        }
    }
}

//! Waits for the answer to one request. The breaker gets the result of a probe even if the request no longer waits.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::queue::TakeResult;
use crate::breaker::{Breaker, CallResult, Change, Permit};
use crate::error::StoreError;
use crate::events::{Event, EventSink};
use base::time::{Clock, Timestamp, timeout_precisely};

/// The period in which a request waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct WaitPeriod {
    pub since: Timestamp,
    /// The end of the period. `None` if it ends when the store's `timeout` has passed.
    pub until: Option<Timestamp>,
}

/// A request that waits for its answer and holds a permit of the breaker.
pub(crate) struct PendingReply<'r> {
    pub breaker: &'r Arc<Breaker>,
    pub clock: &'r Clock,
    pub events: &'r EventSink,
    pub permit: Permit,
    /// The time at which the request's connection was made.
    pub connected: Timestamp,
    /// The receiver of the answer. `None` before the request is queued and after its answer.
    pub result: Option<oneshot::Receiver<TakeResult>>,
}

impl PendingReply<'_> {
    /// Waits for the answer. `until` is the end of the wait. `None` means the store's timeout.
    ///
    /// # Errors
    /// Returns the reason why the store has not decided.
    pub(super) async fn wait(mut self, until: Option<Timestamp>) -> TakeResult {
        let Some(result) = &mut self.result else { return Err(StoreError::Closed) };
        let received = match until {
            None => result.await,
            // The future of this rare case is on the heap, because it would enlarge every task.
            Some(until) => {
                let left = until.since(self.clock.now());
                let Some(received) = Box::pin(timeout_precisely(left.into(), result)).await else {
                    return Err(StoreError::Timeout);
                };
                received
            }
        };
        self.result = None;
        // A sender is dropped without an answer only if the connection is lost.
        let taken = received.unwrap_or(Err(StoreError::Closed));
        if self.permit == Permit::Probe {
            self.permit = Permit::Granted;
            conclude(self.breaker, self.clock, self.events, self.connected, &taken);
        }
        taken
    }
}

impl Drop for PendingReply<'_> {
    fn drop(&mut self) {
        if self.permit != Permit::Probe {
            return;
        }
        // A task waits for the result of the probe. Without a runtime, the process is ending.
        let runtime = Handle::try_current();
        if let (Some(result), Ok(runtime)) = (self.result.take(), runtime) {
            let (breaker, clock, events) = (Arc::clone(self.breaker), self.clock.clone(), self.events.clone());
            let connected = self.connected;
            runtime.spawn(async move {
                let taken = result.await.unwrap_or(Err(StoreError::Closed));
                conclude(&breaker, &clock, &events, connected, &taken);
            });
        } else {
            self.breaker.release(Permit::Probe);
        }
    }
}

/// Reports the result of a probe.
fn conclude(breaker: &Breaker, clock: &Clock, events: &EventSink, connected: Timestamp, taken: &TakeResult) {
    let result = match taken {
        // The request was not sent, so the state of the store is still unknown.
        Ok(None) => return breaker.release(Permit::Probe),
        Ok(Some(_)) => CallResult::Success,
        Err(error) if error.is_answer() => CallResult::Success,
        // Such an error does not show whether the server can decide requests.
        Err(error) if error.is_refusal() => return breaker.release(Permit::Probe),
        Err(_) if breaker.is_outdated(connected) => return breaker.release(Permit::Probe),
        Err(_) => CallResult::Failure,
    };
    match breaker.record(Permit::Probe, result, clock.now()) {
        Change::Opened => events.send(Event::BreakerOpened),
        Change::Closed => events.send(Event::BreakerClosed),
        Change::None => {}
    }
}

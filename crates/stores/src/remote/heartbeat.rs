//! Announces this gateway to the other gateways through the store, and learns how many gateways are alive.
//!
//! The number is used when the store gives no answer and each gateway grants its share.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::transport::{LiveGateways, Transport};
use crate::error::{Fault, StoreError};
use crate::events::{Event, EventSink, RunningGateway};
use crate::fallback::FallbackShare;
use crate::worker::Worker;
use base::interval::fixed_interval;
use base::time;

/// The format of states in which buckets can have raises. An older gateway finds such a state invalid, and empties the bucket.
pub(crate) const WITH_RAISES: u8 = 1;
/// The format of states in which purses can have the raises at home. In format 2, buckets can have a mark of the highest threshold that was
/// reported, and timed holds.
const WITH_RAISED_PURSES: u8 = 3;
/// The newest format of states that this gateway reads. Every heartbeat announces it.
pub(crate) const STATE_FORMAT: u8 = WITH_RAISED_PURSES;

/// The interval of heartbeats.
const BEAT: Duration = Duration::from_secs(2);
/// How long to wait for the reply to a heartbeat.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// The workers of this gateway that are connected to a server. The first of them sends the heartbeats.
#[derive(Debug, Default)]
pub(crate) struct ConnectedWorkers(Mutex<BTreeSet<usize>>);

/// Sends the heartbeats of this gateway to the gateways that share the store.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    worker: Worker,
    connected: Arc<ConnectedWorkers>,
    name: [u8; 8],
    this_gateway: Arc<Mutex<RunningGateway>>,
    fallback: Arc<FallbackShare>,
    events: EventSink,
}

/// Marks a worker as connected, until this value is dropped.
#[derive(Debug)]
pub(crate) struct ConnectedWorker<'h>(&'h Heartbeat);

impl Drop for ConnectedWorker<'_> {
    fn drop(&mut self) {
        self.0.connected.0.lock().remove(&self.0.worker.0);
    }
}

impl Heartbeat {
    pub(super) fn new(
        worker: Worker,
        connected: Arc<ConnectedWorkers>,
        name: [u8; 8],
        this_gateway: Arc<Mutex<RunningGateway>>,
        fallback: Arc<FallbackShare>,
        events: EventSink,
    ) -> Heartbeat {
        Heartbeat { worker, connected, name, this_gateway, fallback, events }
    }

    pub(super) fn connected(&self) -> ConnectedWorker<'_> {
        self.connected.0.lock().insert(self.worker.0);
        ConnectedWorker(self)
    }

    /// Waits until no worker with a lower index is connected, so that this worker sends the heartbeats.
    pub(super) async fn turn(&self) {
        while self.connected.0.lock().first() != Some(&self.worker.0) {
            time::sleep(interval()).await;
        }
    }

    /// Sends heartbeats while the connection lasts and no worker with a lower index is connected. Returns a fault when
    /// the server no longer accepts writes. Timeouts are not reported.
    pub(super) async fn keep<T: Transport>(&self, transport: &T, mut link: T::Link) -> Fault {
        loop {
            self.turn().await;
            let this_gateway = self.this_gateway.lock().clone();
            match time::timeout(REPLY_TIMEOUT, transport.beat(&mut link, self.name, &this_gateway)).await {
                Ok(Ok(Some(LiveGateways { alive, older, others }))) => {
                    self.fallback.set_older_gateways(older);
                    self.events.send(Event::Gateways { alive: self.fallback.set_gateways(alive), others });
                }
                Ok(Err(fault)) if fault.error == StoreError::Replica => return fault,
                Ok(Err(fault)) => self.events.send(Event::HeartbeatError(fault)),
                Ok(Ok(None)) | Err(_) => {}
            }
            time::sleep(interval()).await;
        }
    }
}

/// Returns the interval until the next heartbeat, with jitter.
pub(crate) fn interval() -> Duration {
    fixed_interval("heartbeat", BEAT).mul_f64(0.75 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::Clock;

    #[tokio::test(start_paused = true)]
    async fn the_first_worker_that_is_connected_sends_the_heartbeats() {
        let connected: Arc<ConnectedWorkers> = Arc::default();
        let heartbeats = [0, 1, 2].map(|worker| {
            let fallback = Arc::new(FallbackShare::new(1, Clock::manual(Default::default()), Arc::default()));
            let this_gateway =
                Arc::new(Mutex::new(RunningGateway { host: String::new(), configuration: String::new() }));
            let events = EventSink::new(|_| ());
            Heartbeat::new(Worker(worker), Arc::clone(&connected), [0; 8], this_gateway, fallback, events)
        });
        let is_first = async |worker: usize| tokio::time::timeout(4 * BEAT, heartbeats[worker].turn()).await.is_ok();
        let (one, two) = (heartbeats[1].connected(), heartbeats[2].connected());
        assert!(is_first(1).await && !is_first(2).await);
        let zero = heartbeats[0].connected();
        assert!(is_first(0).await && !is_first(1).await);
        drop((one, zero));
        assert!(is_first(2).await);
        drop(two);
    }
}

//! Keeps the connection open. After a fault, waits for a growing, jittered pause before the next attempt.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};

use super::lanes::{Lanes, Session};
use super::round_trip::RoundTrip;
use super::{Connection, LinkState, OpenLink};
use crate::error::{Fault, StoreError};
use crate::events::Event;
use crate::remote::queue::Queue;
use crate::remote::transport::{ConnectionProof, DrivenLink, Driver, Transport};
use base::time;
use base::time::Micros;

const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl<T: Transport> Connection<T> {
    /// Connects, makes calls until the connection ends, and connects again. Never returns. Adds a permit to `tried`
    /// after the first attempt to connect.
    pub(crate) async fn run(&self, tried: &Semaphore) {
        // If `run` was called before, this call has nothing to do.
        let Some(mut queue) = self.waiting.lock().take() else { return };
        let mut pause = SHORTEST_PAUSE;
        let mut first = true;
        let (mut ended_by, mut last_server) = (None, None);
        loop {
            let connected = self.connect(&mut queue).await;
            let up = connected.is_ok();
            *self.down.lock() = connected.as_ref().err().map(|fault| fault.error);
            if up {
                let now = self.clock.now();
                self.connected_at.store(now.0, Ordering::Relaxed);
                self.shared.deny_cache.invalidate();
                *self.number.lock() = self.holds.connect();
                let server = connected.as_ref().ok().and_then(|connected| connected.server.clone());
                // After a server hung, only a probe shows whether it works again.
                match T::CONNECTED {
                    _ if ended_by == Some(StoreError::Timeout) && server == last_server => {
                        self.shared.breaker.probe_soon(now);
                    }
                    ConnectionProof::Decides => self.publish(self.shared.breaker.reset()),
                    ConnectionProof::Answers => self.shared.breaker.begin_again(now),
                }
                last_server.clone_from(&server);
                self.events.send(Event::Up { worker: self.worker, server });
            }
            if std::mem::take(&mut first) {
                tried.add_permits(1);
            }
            let since = self.clock.now();
            let fault = match connected {
                Ok(connected) => self.serve(connected, &mut queue, &mut pause).await,
                Err(fault) => {
                    self.link.send_replace(LinkState::Away(fault.error));
                    fault
                }
            };
            // A connection that lasted, or on which acts were answered, resets the pause.
            let has_lasted = Duration::from(self.clock.now().since(since)) > LONGEST_PAUSE;
            if up && (has_lasted || self.heard.load(Ordering::Relaxed) > since.0) {
                pause = SHORTEST_PAUSE;
            }
            *self.down.lock() = Some(fault.error);
            // A failed attempt to connect does not show whether the server decides.
            if up {
                ended_by = Some(fault.error);
            }
            // The server was replaced, and the new server may be ready.
            let is_replaced = up && pause == SHORTEST_PAUSE && is_elsewhere(fault.error);
            if !is_replaced {
                // The queued requests are answered now instead of at their deadlines.
                while let Some(mut waiting) = queue.try_next().or_else(|| queue.try_next_timed()) {
                    waiting.answer.send(Err(fault.error));
                }
            }
            self.events.send(Event::Down { worker: self.worker, fault });
            if is_replaced {
                // The next attempt is made at once. The longer `pause` delays the attempt after it.
                pause *= 2;
                continue;
            }
            tokio::select! {
                // Jittered, so that gateways do not all reconnect at the same time.
                () = tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
                () = self.transport.found_again() => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Connects. Meanwhile, the requests that the last connection has put back wait.
    async fn connect(&self, queue: &mut Queue) -> Result<DrivenLink<T::Link>, Fault> {
        let mut connecting = std::pin::pin!(self.transport.connect());
        loop {
            let now = self.clock.now();
            let Some(oldest) = self.answer_overdue(queue, now) else { return connecting.await };
            let left = Micros(self.timeout.0.saturating_sub(now.since(oldest).0));
            tokio::select! {
                biased;
                connected = &mut connecting => return connected,
                () = time::sleep_precisely(left.into()) => {}
            }
        }
    }

    /// Makes calls until the connection cannot be used any more. Returns the reason.
    async fn serve(&self, connected: DrivenLink<T::Link>, queue: &mut Queue, pause: &mut Duration) -> Fault {
        let DrivenLink { link, mut driver, .. } = connected;
        let (failed, mut failure) = mpsc::channel(1);
        self.link.send_replace(LinkState::Up(OpenLink { link: link.clone(), failed }));
        let fault = self.serve_link(link, &mut driver, &mut failure, queue, pause).await;
        self.link.send_replace(LinkState::Connecting);
        fault
    }

    async fn serve_link(
        &self,
        link: T::Link,
        mut driver: &mut Driver,
        failure: &mut mpsc::Receiver<Fault>,
        queue: &mut Queue,
        pause: &mut Duration,
    ) -> Fault {
        let _connected = self.heartbeat.connected();
        let heartbeat = async {
            let transport = &*self.transport;
            let watching = async {
                self.heartbeat.turn().await;
                transport.watch(link.clone(), &self.events).await;
                std::future::pending::<Fault>().await
            };
            let beating = async {
                match self.shared.is_silent.load(Ordering::Relaxed) {
                    true => self.ask_at_intervals(link.clone()).await,
                    false => self.heartbeat.keep(transport, link.clone()).await,
                }
            };
            tokio::select! {
                fault = beating => fault,
                fault = watching => fault,
            }
        };
        let session = Session::new(RoundTrip::new(self.timeout, T::CALLS.at_once));
        let fault = {
            let lane = |lane| self.calls(lane, &session, link.clone());
            let mut lanes = Lanes::new(&session, (0..T::CALLS.at_once).map(lane));
            let mut feed = std::pin::pin!(self.feed(&session, queue));
            // Calls write first, so that the driver sends the bytes in the same poll.
            let fault = tokio::select! {
                biased;
                fault = lanes.run(feed.as_mut()) => fault,
                fault = heartbeat => fault,
                fault = &mut driver => fault,
                Some(fault) = failure.recv() => fault,
            };
            if fault.error == StoreError::Replica {
                // The other calls may have run. Only their answers can prove that they did not.
                let rest = async {
                    tokio::select! {
                        biased;
                        () = lanes.finish() => {}
                        _ = &mut driver => {}
                    }
                };
                let _ = time::timeout(self.timeout.into(), rest).await;
            }
            fault
        };
        if session.answered.load(Ordering::Relaxed) {
            *pause = SHORTEST_PAUSE;
        }
        queue.put_back(session.returned.into_inner());
        fault
    }
}

/// Whether another server accepts the writes now. Calls with such an error did not run.
fn is_elsewhere(error: StoreError) -> bool {
    matches!(error, StoreError::Replica | StoreError::Moved)
}

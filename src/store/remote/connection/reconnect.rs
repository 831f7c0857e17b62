//! Keeps the connection up: connects, serves, and after a fault waits a growing, randomised pause before the next attempt.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{Mutex as FairMutex, Semaphore};

use super::Connection;
use super::batch::{Session, Turn};
use crate::store::error::{Fault, StoreError};
use crate::store::events::Event;
use crate::store::remote::queue::Queue;
use crate::store::remote::transport::{Connected, Overflow, Transport};

const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl<T: Transport> Connection<T> {
    /// Drives the connection, forever; `tried` gets a permit after the first attempt.
    pub async fn run(&self, tried: &Semaphore) {
        // A second driver would have nothing to do.
        let Some(mut queue) = self.waiting.lock().take() else { return };
        let mut pause = SHORTEST_PAUSE;
        let mut first = true;
        loop {
            let connected = self.transport.connect().await;
            let up = connected.is_ok();
            *self.down.lock() = connected.as_ref().err().map(|fault| fault.error);
            if up {
                self.shared.deny_cache.invalidate();
                self.publish(self.shared.breaker.reset());
                self.events.send(Event::Up(self.worker));
            }
            if std::mem::take(&mut first) {
                tried.add_permits(1);
            }
            let since = self.clock.now();
            let fault = match connected {
                Ok(connected) => self.serve(connected, &mut queue, &mut pause).await,
                Err(fault) => fault,
            };
            // A connection that lasted was good even if it was not used, so there is no reason to back off.
            if up && Duration::from(self.clock.now().since(since)) > LONGEST_PAUSE {
                pause = SHORTEST_PAUSE;
            }
            self.went_down(fault, &mut queue);
            // Jittered, so that gateways that lost their server together do not reconnect at the same time.
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn went_down(&self, fault: Fault, queue: &mut Queue) {
        *self.down.lock() = Some(fault.error);
        // A request that was not sent has not run, and need not wait for its deadline.
        while let Some(mut waiting) = queue.try_next() {
            waiting.answer.send(Err(fault.error));
        }
        self.events.send(Event::Down { worker: self.worker, fault });
    }

    /// Makes calls until the connection is no longer usable.
    async fn serve(&self, connected: Connected<T::Link>, queue: &mut Queue, pause: &mut Duration) -> Fault {
        let Connected { link, mut driver } = connected;
        let heartbeat = async {
            if let Some(heartbeat) = &self.heartbeat {
                let transport = &*self.transport;
                tokio::join!(heartbeat.keep(transport, link.clone()), transport.watch(link.clone(), &self.events));
            }
            std::future::pending::<Fault>().await
        };
        let session = Session { queue: FairMutex::new(queue), answered: AtomicBool::new(false) };
        let calls = |turn| self.calls(turn, &session, link.clone());
        // In this order: calls write first, and the driver then sends it in the same poll.
        let fault = tokio::select! {
            biased;
            fault = calls(Turn::Next) => fault,
            fault = calls(Turn::Overflow), if T::CALLS.overflow == Overflow::SecondCall => fault,
            fault = heartbeat => fault,
            () = &mut driver => Fault::new(StoreError::Closed, "the connection was closed"),
        };
        if session.answered.into_inner() {
            *pause = SHORTEST_PAUSE;
        }
        fault
    }
}

//! Does acts of leases on the open connection, besides its calls.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Connection, OpenLink};
use crate::error::{Fault, StoreError};
use crate::lease_acts::{ActResults, BucketAct};
use crate::remote::heartbeat::interval;
use crate::remote::queue::Route;
use crate::remote::transport::Transport;
use base::time::{self, Micros, Timestamp};

/// How long to wait for the answer to a question on a connection without heartbeats.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of consecutive questions without an answer after which the connection is replaced.
const MOST_UNANSWERED: u32 = 2;

impl<T: Transport> Connection<T> {
    /// Does acts of leases in one call. Does not watch a timeout.
    ///
    /// # Errors
    ///
    /// When there is no answer. Unless the error proves otherwise, some or all acts may be done.
    pub(in crate::remote) async fn act(
        &self,
        OpenLink { mut link, failed }: OpenLink<T::Link>,
        acts: &[BucketAct],
        route: Route,
    ) -> Result<ActResults, Fault> {
        let started = self.clock.now();
        let near = self.shared.store_clock.at(started);
        let done = self.transport.act(&mut link, acts, near, route).await.and_then(|done| {
            let wrong = || Fault::new(StoreError::UnexpectedReply, "acts of leases were answered with another number");
            if done.results.len() == acts.len() { Ok(done) } else { Err(wrong()) }
        });
        match &done {
            Ok(ActResults { now, .. }) => {
                let ended = self.clock.now();
                self.shared.store_clock.observe(*now, started, ended);
                self.hear(ended);
            }
            // A fault that is sent before has closed the connection.
            Err(fault) if fault.ends_connection() => drop(failed.try_send(fault.clone())),
            Err(_) => {}
        }
        done
    }

    fn hear(&self, now: Timestamp) {
        self.heard.store(now.0, Ordering::Relaxed);
        self.shared.heard.store(now.0, Ordering::Relaxed);
    }

    /// The longest time that acts may take.
    pub(crate) fn timeout(&self) -> Micros {
        self.timeout
    }

    /// Asks the server for its time at intervals, on a connection that sends no heartbeats. Returns a fault when the server does not
    /// answer any more.
    pub(super) async fn ask_at_intervals(&self, mut link: T::Link) -> Fault {
        let mut unanswered = 0;
        loop {
            time::sleep(interval()).await;
            match time::timeout(ANSWER_TIMEOUT, self.transport.read(&mut link, &[], Route::Owner)).await {
                Ok(Err(fault)) if fault.ends_connection() => return fault,
                Ok(Err(_)) => unanswered = 0,
                Ok(Ok(_)) => {
                    unanswered = 0;
                    self.hear(self.clock.now());
                }
                Err(_) => unanswered += 1,
            }
            if unanswered >= MOST_UNANSWERED {
                return Fault::new(StoreError::Timeout, format!("no answer within {ANSWER_TIMEOUT:?}, twice"));
            }
        }
    }
}

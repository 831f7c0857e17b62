//! Handles signals, from the start of the process until it has drained: reload, reopen, upgrade, exit.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};

use super::bucket_saver::BucketSaver;
use super::drain::{LastActs, SecondSignal};
use super::signal_listener::{SignalAction, SignalListener};
use super::upgrade::{InheritedSockets, NextProcess, NextProcessReport, SlotRequest, Upgrade};
use super::{bucket_handover, drain};
use crate::gateway::enforcement::left_holds;
use crate::gateway::enforcement::running_holds::RunningHolds;
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::events::EventKind;

/// The shortest delay after a handover, in which clients with busy connections are asked to reconnect.
const MIN_DELAY_AFTER_HANDOVER: Duration = Duration::from_secs(1);

/// Handles the signals to the process. Pingora shuts down as soon as `recv` returns.
pub(crate) struct SignalWatch {
    pub gateway: Arc<GatewayState>,
    pub upgrade: Upgrade,
    /// The sockets from the previous process. They are taken out when this process is ready.
    pub inherited: Mutex<InheritedSockets>,
    pub bucket_saver: Option<Arc<BucketSaver>>,
    /// The function to call once signals are handled. `None` after the call.
    pub ready: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// The listener for exit signals. It is kept here after the first exit signal, so that the drain notices a second signal.
    pub second_signal: SecondSignal,
    pub running_holds: Arc<RunningHolds>,
}

#[async_trait]
impl ShutdownSignalWatch for SignalWatch {
    async fn recv(&self) -> ShutdownSignal {
        let listening = SignalListener::exit().and_then(|exit| Ok((exit, SignalListener::running()?)));
        let (mut exit, mut running) = match listening {
            Ok(listeners) => listeners,
            Err(error) => {
                log::error!(error:% = error; "cannot listen for signals");
                return ShutdownSignal::FastShutdown;
            }
        };
        // Requests begin when the store, home and the keys are ready, or a first attempt to reach them has failed.
        let attempted =
            async { tokio::join!(self.gateway.store.first_attempt(), self.home_attempted(), self.keys_attempted()) };
        tokio::select! {
            ((), (), ()) = attempted => {}
            _ = exit.next() => return self.shut_down_fast().await,
        }
        let inherited = std::mem::take(&mut *self.inherited.lock());
        let inherited = bucket_handover::receive(&self.gateway, self.bucket_saver.as_ref(), inherited).await;
        if let Some(ready) = self.ready.lock().take() {
            ready();
        }
        bucket_handover::report_ready(inherited);
        let delay = self.act_until_exit(&mut exit, &mut running).await;
        if self.gateway.lifecycle.is_handed_over() {
            // With buckets in memory, only the next process knows from now on what becomes of them.
            left_holds::leave(&self.gateway, &self.running_holds).await;
        }
        let shutdown = drain::announce(&self.gateway, delay, &mut exit).await;
        // The drain uses the same listener, so that no signal is lost.
        *self.second_signal.lock() = Some(exit);
        self.upgrade.close();
        match shutdown {
            ShutdownSignal::FastShutdown => self.shut_down_fast().await,
            shutdown => shutdown,
        }
    }
}

impl SignalWatch {
    /// Waits until the gateway has tried to connect home.
    async fn home_attempted(&self) {
        if let Some(leases) = &self.gateway.leases {
            leases.keeper.home().first_attempt().await;
        }
    }

    /// Does what must be done before the process ends, and lets Pingora exit without waiting for requests.
    async fn shut_down_fast(&self) -> ShutdownSignal {
        let last = LastActs { saver: self.bucket_saver.as_deref(), holds: &self.running_holds };
        drain::end_all(&self.gateway, last).await;
        ShutdownSignal::FastShutdown
    }

    /// Waits until the process must exit. Returns for how long the process should still accept connections.
    async fn act_until_exit(&self, exit: &mut SignalListener, running: &mut SignalListener) -> Duration {
        let mut next: Option<NextProcess> = None;
        let delay = loop {
            let action = tokio::select! {
                action = exit.next() => action,
                action = running.next() => action,
                report = report(&mut next) => match (report, next.take()) {
                    (NextProcessReport::Ready, Some(next)) => break self.hand_over_sockets(&next),
                    (NextProcessReport::ReadyForBuckets(slots), Some(next)) => match self.hand_over_buckets(next, slots).await {
                        Some(delay) => break delay,
                        None => continue,
                    },
                    (_, gave_up) => {
                        self.next_gave_up(gave_up);
                        continue;
                    }
                },
            };
            match action {
                SignalAction::Drain => break self.delay(),
                SignalAction::DrainWithoutDelay => break Duration::ZERO,
                SignalAction::Reload => self.reload(),
                SignalAction::ReopenAccessLog => {
                    log::info!("SIGUSR1: reopening the access log and the records");
                    self.gateway.reopen_logs();
                }
                SignalAction::Upgrade => next = self.upgrade(next.take()),
            }
        };
        if let Some(next) = next {
            log::warn!(status:% = next.end(); "ended the next process, which was not ready yet");
        }
        delay
    }

    /// Returns the `drain.delay` of the current configuration.
    fn delay(&self) -> Duration {
        self.gateway.snapshot.load().config.drain.delay.into()
    }

    fn reload(&self) {
        log::info!("SIGHUP: reading files and fetching keys again");
        self.gateway.lifecycle.request_reload();
        self.gateway.reopen_logs();
        self.gateway.remotes().iter().for_each(|remote| remote.fetch_now());
    }

    /// Starts the next process, unless one is already starting.
    fn upgrade(&self, next: Option<NextProcess>) -> Option<NextProcess> {
        if next.is_some() {
            log::warn!("SIGUSR2: a next process is already starting");
            return next;
        }
        match self.upgrade.begin() {
            Ok(next) => {
                self.gateway.events.note(EventKind::UpgradeBegan, "");
                log::info!(pid = next.process_id(); "SIGUSR2: starting the next process");
                Some(next)
            }
            Err(error) => {
                self.gateway.events.note(EventKind::UpgradeFailed, "");
                log::error!(error:% = error; "SIGUSR2: cannot start the next process; this one goes on");
                None
            }
        }
    }

    fn hand_over_sockets(&self, next: &NextProcess) -> Duration {
        let pid = next.process_id();
        if !self.gateway.store.is_shared() {
            // The next process has an older version or another store.
            log::warn!(pid; "the next process does not take the buckets in memory");
        }
        self.handed_over(pid, None)
    }

    /// Sends the buckets to the next process. `None` if that process ended before it had the buckets. This process then
    /// continues.
    async fn hand_over_buckets(&self, next: NextProcess, slots: SlotRequest) -> Option<Duration> {
        // The next process will serve the address, so `/readyz` answers 200 even while this process drains.
        self.gateway.lifecycle.hand_over();
        match bucket_handover::send(&self.gateway, self.bucket_saver.as_ref(), &next, slots).await {
            Ok(buckets) => {
                // Closes the sockets on which the next process does not listen.
                self.upgrade.close();
                Some(self.handed_over(next.process_id(), buckets))
            }
            Err(error) => {
                log::error!(error:%; "the next process does not have the buckets");
                self.next_gave_up(Some(next));
                bucket_handover::resume(&self.gateway, self.bucket_saver.as_ref());
                None
            }
        }
    }

    /// Notes the handover to the next process, which has received `buckets`. Returns the delay before this process drains.
    fn handed_over(&self, pid: u32, buckets: Option<u64>) -> Duration {
        self.gateway.events.note(EventKind::HandedOver, "");
        match buckets {
            Some(buckets) => log::info!(pid, buckets; "handed over"),
            None => log::info!(pid; "handed over"),
        }
        self.gateway.lifecycle.hand_over();
        self.delay().max(MIN_DELAY_AFTER_HANDOVER)
    }

    fn next_gave_up(&self, next: Option<NextProcess>) {
        if let Some(next) = next {
            self.gateway.events.note(EventKind::UpgradeFailed, "");
            log::error!(status:% = next.end(); "the next process gave up; this one goes on");
        }
    }

    /// Returns when each issuer's keys have been fetched, or a first attempt has failed.
    async fn keys_attempted(&self) {
        for remote in self.gateway.remotes() {
            remote.first_attempt().await;
        }
    }
}

/// Waits for the report of the next process. Never returns if there is no next process.
async fn report(next: &mut Option<NextProcess>) -> NextProcessReport {
    match next {
        Some(next) => next.report().await,
        None => std::future::pending().await,
    }
}

//! Acts on signals, from the start of the process until it has drained: reload, reopen, upgrade, exit.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};

use super::drain;
use super::signal_listener::{SignalAction, SignalListener};
use super::upgrade::{NextProcess, Upgrade};
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::events::EventKind;

/// The shortest delay after a handover, so that clients with busy connections are asked to reconnect before idle
/// connections are closed.
const MIN_DELAY_AFTER_HANDOVER: Duration = Duration::from_secs(1);

/// Returns from Pingora's wait for a shutdown when the process is about to exit. The other signals are acted on meanwhile.
pub struct SignalWatch {
    pub gateway: Arc<GatewayState>,
    pub upgrade: Upgrade,
    /// Called once signals are listened for: from then on they do what is documented.
    pub ready: Mutex<Option<Box<dyn FnOnce() + Send>>>,
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
        // The store and the keys are there for the first request, unless a first attempt to reach them has failed.
        tokio::select! {
            ((), ()) = async { tokio::join!(self.gateway.store.first_attempt(), self.keys_attempted()) } => {}
            _ = exit.next() => return ShutdownSignal::FastShutdown,
        }
        if let Some(ready) = self.ready.lock().take() {
            ready();
        }
        let delay = self.act_until_exit(&mut exit, &mut running).await;
        let shutdown = drain::announce(&self.gateway, delay, &mut exit).await;
        self.upgrade.close();
        if matches!(shutdown, ShutdownSignal::FastShutdown) {
            self.gateway.access_logs.finish();
        }
        shutdown
    }
}

impl SignalWatch {
    /// Returns when the process is to exit: how long it should go on accepting connections.
    async fn act_until_exit(&self, exit: &mut SignalListener, running: &mut SignalListener) -> Duration {
        let mut next: Option<NextProcess> = None;
        let delay = loop {
            let action = tokio::select! {
                action = exit.next() => action,
                action = running.next() => action,
                ready = is_ready(&mut next) => match next.take() {
                    Some(next) if ready => break self.handed_over(&next),
                    gave_up => {
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
                    log::info!("SIGUSR1: reopening the access log");
                    self.gateway.access_logs.reopen();
                }
                SignalAction::Upgrade => next = self.upgrade(next.take()),
            }
        };
        if let Some(next) = next {
            log::warn!(status:% = next.end(); "ended the next process, which was not ready yet");
        }
        delay
    }

    /// The delay of the configuration.
    fn delay(&self) -> Duration {
        self.gateway.snapshot.load().config.drain.delay.into()
    }

    fn reload(&self) {
        log::info!("SIGHUP: reading files and fetching keys again");
        self.gateway.lifecycle.request_reload();
        self.gateway.access_logs.reopen();
        self.gateway.remotes().iter().for_each(|remote| remote.fetch_now());
    }

    /// Starts a next process, unless one is starting already.
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

    fn handed_over(&self, next: &NextProcess) -> Duration {
        self.gateway.events.note(EventKind::HandedOver, "");
        log::info!(pid = next.process_id(); "handed over");
        self.gateway.lifecycle.hand_over();
        self.delay().max(MIN_DELAY_AFTER_HANDOVER)
    }

    fn next_gave_up(&self, next: Option<NextProcess>) {
        if let Some(next) = next {
            self.gateway.events.note(EventKind::UpgradeFailed, "");
            log::error!(status:% = next.end(); "the next process gave up; this one goes on");
        }
    }

    /// Returns when the keys of every issuer have been fetched, or a first attempt has failed.
    async fn keys_attempted(&self) {
        for remote in self.gateway.remotes() {
            remote.first_attempt().await;
        }
    }
}

/// Returns whether the next process is ready or has given up. Does not return while there is no next process.
async fn is_ready(next: &mut Option<NextProcess>) -> bool {
    match next {
        Some(next) => next.is_ready().await,
        None => std::future::pending().await,
    }
}

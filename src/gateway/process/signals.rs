//! Runs the process to its end: signals, draining, and the housekeeping beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::SigSet;
use parking_lot::Mutex;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch, ShutdownWatch};
use pingora::services::background::BackgroundService;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::fallback_events::FallbackEvents;
use super::reload::Reload;
use super::upgrade::{NextProcess, Upgrade};
use crate::base::interval::fixed_interval;
use crate::config::Drain;
use crate::gateway::admin::status::Status;
use crate::gateway::runtime::supervise;
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::events::Happened;
use crate::gateway::telemetry::trace::FLUSH_TIMEOUT;

/// Waits for the signal to leave. SIGHUP is no such signal.
pub struct Signals {
    pub gateway: Arc<GatewayState>,
    pub handover: Upgrade,
    /// Called once signals are listened for: from then on the process leaves as it should.
    pub ready: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let others = [SignalKind::hangup(), SignalKind::user_defined1(), SignalKind::user_defined2()];
        let listening = Ends::listen().and_then(|ends| Ok((ends, listen(others)?)));
        // One thread that takes those that were held back is enough.
        let released = listening.and_then(|listening| Ok((listening, SigSet::from_iter(HELD).thread_unblock()?)));
        let (mut ends, [mut hangup, mut renamed, mut upgrade]) = match released {
            Ok((listening, ())) => listening,
            Err(error) => {
                log::error!(error:% = error; "signals cannot be listened for");
                return ShutdownSignal::FastShutdown;
            }
        };
        // A store that is there is there for the first request; one that is not has been tried.
        tokio::select! {
            ((), ()) = async { tokio::join!(self.gateway.store.first_attempt(), self.keys_tried()) } => {}
            _ = ends.next() => return ShutdownSignal::FastShutdown,
        }
        if let Some(ready) = self.ready.lock().take() {
            ready();
        }
        let mut next: Option<NextProcess> = None;
        let delay = loop {
            tokio::select! {
                end = ends.next() => break match end {
                    End::Drained => self.drain().delay.into(),
                    End::DrainedWithoutDelay => Duration::ZERO,
                },
                _ = upgrade.recv() => next = self.upgrade(next.take()),
                ready = taken_over(&mut next) => match next.take() {
                    Some(next) if ready => {
                        self.gateway.events.note(Happened::HandedOver, "");
                        log::info!(pid = next.process_id(); "handed over");
                        self.gateway.lifecycle.hand_over();
                        break Duration::from(self.drain().delay).max(SHORTEST_OVERLAP);
                    }
                    Some(next) => {
                        self.gateway.events.note(Happened::NotHandedOver, "");
                        log::error!(status:% = next.end(); "the next process gave up; this one goes on");
                    }
                    None => {}
                },
                _ = hangup.recv() => {
                    log::info!("SIGHUP: files are read, and keys of issuers fetched, again");
                    self.gateway.lifecycle.request_reload();
                    self.gateway.access_logs.reopen();
                    self.gateway.remotes().iter().for_each(|remote| remote.fetch_now());
                }
                _ = renamed.recv() => {
                    log::info!("SIGUSR1: the access log is opened again");
                    self.gateway.access_logs.reopen();
                }
            }
        };
        if let Some(next) = next {
            log::warn!(status:% = next.end(); "the next process was not ready yet");
        }
        // Still accepting: answers say `Connection: close`, and /readyz tells load balancers to go elsewhere.
        self.gateway.lifecycle.begin_draining();
        self.gateway.events.note(Happened::Draining, "");
        log::info!(delay:? = delay, timeout:? = Duration::from(self.drain().timeout); "draining");
        let how = tokio::select! {
            () = tokio::time::sleep(delay) => ShutdownSignal::GracefulTerminate,
            _ = ends.next() => ShutdownSignal::FastShutdown,
        };
        self.handover.close();
        if matches!(how, ShutdownSignal::FastShutdown) {
            self.gateway.access_logs.finish();
        }
        how
    }
}

/// After a handover, so that clients whose connections are busy are told to come again before idle ones are closed.
const SHORTEST_OVERLAP: Duration = Duration::from_secs(1);

/// Those that say something to a process which goes on, and would end one that does not listen yet.
const HELD: [nix::sys::signal::Signal; 3] = {
    use nix::sys::signal::Signal::{SIGHUP, SIGUSR1, SIGUSR2};
    [SIGHUP, SIGUSR1, SIGUSR2]
};

/// Has signals that are no end wait until they are listened for. To be called first, on the only thread there is.
pub fn hold_signals() {
    if let Err(error) = SigSet::from_iter(HELD).thread_block() {
        log::debug!(error:% = error; "signals are not held back");
    }
}

fn listen<const COUNT: usize>(kinds: [SignalKind; COUNT]) -> std::io::Result<[Signal; COUNT]> {
    let signals = kinds.into_iter().map(signal).collect::<std::io::Result<Vec<_>>>()?;
    signals.try_into().map_err(|_| std::io::Error::other("some signals are missing"))
}

/// The signals that say that the process is to leave.
struct Ends {
    terminate: Signal,
    quit: Signal,
    interrupt: Signal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Drained,
    DrainedWithoutDelay,
}

impl Ends {
    fn listen() -> std::io::Result<Ends> {
        let [terminate, quit, interrupt] =
            listen([SignalKind::terminate(), SignalKind::quit(), SignalKind::interrupt()])?;
        Ok(Ends { terminate, quit, interrupt })
    }

    async fn next(&mut self) -> End {
        tokio::select! {
            _ = self.terminate.recv() => End::Drained,
            // Who knows nginx leaves gracefully by this one.
            _ = self.quit.recv() => End::Drained,
            _ = self.interrupt.recv() => End::DrainedWithoutDelay,
        }
    }
}

/// Whether the next process is ready; never, while there is none.
async fn taken_over(next: &mut Option<NextProcess>) -> bool {
    match next {
        Some(next) => next.is_ready().await,
        None => std::future::pending().await,
    }
}

impl Signals {
    /// Starts a next process, unless one is starting already.
    fn upgrade(&self, next: Option<NextProcess>) -> Option<NextProcess> {
        if next.is_some() {
            log::warn!("SIGUSR2: a next process is starting already");
            return next;
        }
        match self.handover.begin() {
            Ok(next) => {
                self.gateway.events.note(Happened::NextProcess, "");
                log::info!(pid = next.process_id(); "SIGUSR2: the next process starts");
                Some(next)
            }
            Err(error) => {
                self.gateway.events.note(Happened::NotHandedOver, "");
                log::error!(error:% = error; "SIGUSR2: the next process cannot be started; this one goes on");
                None
            }
        }
    }

    fn drain(&self) -> Drain {
        self.gateway.snapshot.load().config.drain
    }

    /// The keys of tokens are there for the first request as well, where their issuers answer.
    async fn keys_tried(&self) {
        for remote in self.gateway.remotes() {
            remote.tried().await;
        }
    }
}

/// What goes on beside the requests.
pub struct Housekeeping {
    pub gateway: Arc<GatewayState>,
    pub status: Arc<Status>,
    /// The connections of all threads.
    pub open: Arc<AtomicUsize>,
    /// To be taken out when it runs.
    pub reload: Mutex<Option<Reload>>,
}

#[async_trait]
impl BackgroundService for Housekeeping {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let reload = self.reload.lock().take().map(Reload::run);
        let reload = async {
            if let Some(reload) = reload {
                reload.await;
            }
        };
        let (gateway, status) = (Arc::clone(&self.gateway), Arc::clone(&self.status));
        let tidy = supervise::spawn("housekeeping", async move {
            tokio::join!(sweep(&gateway), status.keep_history(&gateway), reload);
        });
        let _ = shutdown.wait_for(|stop| *stop).await;
        tidy.abort();
        self.leave().await;
    }
}

impl Housekeeping {
    /// Ends the process as soon as the last connection has gone, when it has taken too long, or at a second signal.
    async fn leave(&self) {
        let gone = async {
            while self.open.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let (clock, tracer) = (&self.gateway.clock, &self.gateway.tracer);
        let (began, most) = (clock.now(), Duration::from(self.gateway.snapshot.load().config.drain.timeout));
        let timeout = async {
            // Whoever is still open at the end has no more to tell by then.
            tokio::time::sleep(most.saturating_sub(FLUSH_TIMEOUT)).await;
            tracer.flush_soon();
            tokio::time::sleep(most.min(FLUSH_TIMEOUT)).await;
        };
        let second_signal = async {
            if let Ok(mut ends) = Ends::listen() {
                ends.next().await;
            }
        };
        let drained = async {
            gone.await;
            let left = most.saturating_sub(clock.now().since(began).into());
            tracer.finish(left.min(FLUSH_TIMEOUT)).await;
        };
        tokio::select! {
            biased;
            () = drained => log::info!("drained"),
            () = timeout => log::warn!(open = self.open.load(Ordering::Acquire); "drain timeout, leaving what is open"),
            () = second_signal => log::warn!(open = self.open.load(Ordering::Acquire); "second signal, leaving at once"),
        }
        self.gateway.access_logs.finish();
        log::logger().flush();
        std::process::exit(0);
    }
}

async fn sweep(gateway: &GatewayState) {
    let mut second = tokio::time::interval(fixed_interval("sweep", Duration::from_secs(1)));
    let mut without_store = FallbackEvents::default();
    loop {
        second.tick().await;
        without_store.look(&gateway.snapshot.load(), &gateway.events);
        supervise::stumble("housekeeping");
        gateway.store.sweep();
        gateway.access_logs.tell();
        if let Some(tokens) = &gateway.snapshot.load().tokens {
            tokens.sweep();
        }
    }
}

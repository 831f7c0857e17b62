//! Runs the process to its end: signals, draining, and the housekeeping beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch, ShutdownWatch};
use pingora::services::background::BackgroundService;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::reload::Reload;
use super::shared::Gateway;
use crate::config::Drain;

/// Waits for the signal to leave. SIGHUP is no such signal.
pub struct Signals {
    pub gateway: Arc<Gateway>,
    /// Called once signals are listened for: from then on the process leaves as it should.
    pub ready: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let streams = (|| Ok::<_, std::io::Error>([terminate()?, interrupt()?, signal(SignalKind::hangup())?]))();
        let [mut term, mut int, mut hangup] = match streams {
            Ok(streams) => streams,
            Err(error) => {
                log::error!(error:% = error; "signals cannot be listened for");
                return ShutdownSignal::FastShutdown;
            }
        };
        // A store that is there is there for the first request; one that is not has been tried.
        tokio::select! {
            ((), ()) = async { tokio::join!(self.gateway.store.tried(), self.keys_tried()) } => {}
            _ = term.recv() => return ShutdownSignal::FastShutdown,
            _ = int.recv() => return ShutdownSignal::FastShutdown,
        }
        if let Some(ready) = self.ready.lock().take() {
            ready();
        }
        let delay = loop {
            tokio::select! {
                _ = term.recv() => break self.drain().delay.into(),
                _ = int.recv() => break Duration::ZERO,
                _ = hangup.recv() => {
                    log::info!("SIGHUP: files are read, and keys of issuers fetched, again");
                    self.gateway.hangup.notify_one();
                    self.gateway.remotes().iter().for_each(|remote| remote.fetch_now());
                }
            }
        };
        // Still accepting: answers say `Connection: close`, and /readyz tells load balancers to go elsewhere.
        self.gateway.draining.store(true, Ordering::Relaxed);
        log::info!(delay:? = delay, timeout:? = Duration::from(self.drain().timeout); "draining");
        tokio::select! {
            () = tokio::time::sleep(delay) => ShutdownSignal::GracefulTerminate,
            _ = term.recv() => ShutdownSignal::FastShutdown,
            _ = int.recv() => ShutdownSignal::FastShutdown,
        }
    }
}

impl Signals {
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
    pub gateway: Arc<Gateway>,
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
        let tidy = async { tokio::join!(self.sweep(), self.upkeep(), reload) };
        tokio::select! {
            _ = tidy => {}
            _ = shutdown.wait_for(|stop| *stop) => {}
        }
        self.leave().await;
    }
}

impl Housekeeping {
    async fn sweep(&self) {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        loop {
            second.tick().await;
            self.gateway.store.sweep();
            if let Some(tokens) = &self.gateway.snapshot.load().tokens {
                tokens.sweep();
            }
        }
    }

    async fn upkeep(&self) {
        let mut often = tokio::time::interval(Duration::from_secs(5));
        loop {
            often.tick().await;
            self.gateway.metrics.upkeep();
        }
    }

    /// Ends the process as soon as the last connection has gone, when it has taken too long, or at a second signal.
    async fn leave(&self) {
        let gone = async {
            while self.open.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let timeout = tokio::time::sleep(self.gateway.snapshot.load().config.drain.timeout.into());
        let second_signal = async {
            if let (Ok(mut term), Ok(mut int)) = (terminate(), interrupt()) {
                tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
            }
        };
        tokio::select! {
            biased;
            () = gone => log::info!("drained"),
            () = timeout => log::warn!(open = self.open.load(Ordering::Acquire); "drain timeout, leaving what is open"),
            () = second_signal => log::warn!(open = self.open.load(Ordering::Acquire); "second signal, leaving at once"),
        }
        std::process::exit(0);
    }
}

fn terminate() -> std::io::Result<Signal> {
    signal(SignalKind::terminate())
}

fn interrupt() -> std::io::Result<Signal> {
    signal(SignalKind::interrupt())
}

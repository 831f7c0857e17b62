//! Listens for signals, and returns the action that each signal requests.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{self, SignalKind};

/// The action that an operator requests with a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalAction {
    Drain,
    DrainWithoutDelay,
    Reload,
    ReopenAccessLog,
    Upgrade,
}

impl SignalAction {
    /// Returns the action that a signal requests. `None` for a signal that the gateway does not handle.
    pub(crate) fn of(signal: Signal) -> Option<SignalAction> {
        match signal {
            // SIGQUIT also drains, because it does so in nginx.
            Signal::SIGTERM | Signal::SIGQUIT => Some(SignalAction::Drain),
            Signal::SIGINT => Some(SignalAction::DrainWithoutDelay),
            Signal::SIGHUP => Some(SignalAction::Reload),
            Signal::SIGUSR1 => Some(SignalAction::ReopenAccessLog),
            Signal::SIGUSR2 => Some(SignalAction::Upgrade),
            _ => None,
        }
    }
}

/// Signals that make the process exit.
const EXIT: [Signal; 3] = [Signal::SIGTERM, Signal::SIGQUIT, Signal::SIGINT];

/// Signals after which the process continues. Their default action would end the process.
const RUNNING: [Signal; 3] = [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

/// Blocks the signals that do not request an exit, until [`SignalListener::running`] listens for them. Must be called first,
/// while the process has only one thread.
pub(crate) fn hold_signals() {
    if let Err(error) = SigSet::from_iter(RUNNING).thread_block() {
        log::debug!(error:% = error; "signals are not blocked during the start");
    }
}

/// Receives signals, and says which action each signal requests.
#[derive(Debug)]
pub(crate) struct SignalListener(Vec<(SignalAction, unix::Signal)>);

impl SignalListener {
    /// Makes a listener for the signals that make the process exit.
    ///
    /// # Errors
    /// If the operating system does not let a signal be handled.
    pub(crate) fn exit() -> io::Result<SignalListener> {
        SignalListener::new(EXIT)
    }

    /// Makes a listener for the signals that do not make the process exit. Unblocks these signals after [`hold_signals`] has
    /// blocked them.
    ///
    /// # Errors
    /// If the operating system does not let a signal be handled or unblocked.
    pub(crate) fn running() -> io::Result<SignalListener> {
        let listener = SignalListener::new(RUNNING)?;
        // One thread that receives the signals is enough.
        SigSet::from_iter(RUNNING).thread_unblock()?;
        Ok(listener)
    }

    fn new(signals: [Signal; 3]) -> io::Result<SignalListener> {
        let known = signals.into_iter().filter_map(|signal| Some((signal, SignalAction::of(signal)?)));
        let listen = |(signal, action)| Ok((action, unix::signal(SignalKind::from_raw(signal as i32))?));
        known.map(listen).collect::<io::Result<_>>().map(SignalListener)
    }

    /// Waits for the next signal, and returns the requested action. The wait may be cancelled and begun again.
    pub(crate) async fn next(&mut self) -> SignalAction {
        poll_fn(|cx| {
            let mut listened = self.0.iter_mut();
            let received = listened.find_map(|(action, signal)| signal.poll_recv(cx).is_ready().then_some(*action));
            received.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_with_an_action_is_in_the_list_for_that_action() {
        let exits =
            |signal| matches!(SignalAction::of(signal), Some(SignalAction::Drain | SignalAction::DrainWithoutDelay));
        for signal in Signal::iterator() {
            assert_eq!(EXIT.contains(&signal), exits(signal), "{signal}");
            assert_eq!(RUNNING.contains(&signal), SignalAction::of(signal).is_some() && !exits(signal), "{signal}");
        }
    }
}

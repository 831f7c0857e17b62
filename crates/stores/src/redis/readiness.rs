//! Some servers answer that they are not ready, for example because they load their data. One thread of the gateway
//! connects repeatedly to such a server. When it succeeds, the other threads connect at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, watch};

use crate::error::{Fault, StoreError};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Coordinates the attempts of all threads to connect to a server that is not ready.
#[derive(Debug)]
pub(super) struct Readiness {
    /// Whether the last attempt reached a server that answered that it is not ready.
    not_ready: AtomicBool,
    /// Counts the attempts that succeeded.
    connected: watch::Sender<u64>,
    /// Held by the thread whose turn it is to connect.
    turn: Mutex<()>,
}

impl Readiness {
    pub(super) fn new() -> Readiness {
        Readiness { not_ready: AtomicBool::new(false), connected: watch::Sender::new(0), turn: Mutex::new(()) }
    }

    /// Notes the result of an attempt to connect. After a success, the threads that wait connect at once.
    pub(super) fn attempted<T>(&self, attempt: &Result<T, Fault>) {
        let not_ready = attempt.as_ref().is_err_and(|fault| is_state_of_server(fault.error));
        self.not_ready.store(not_ready, Ordering::Relaxed);
        if attempt.is_ok() {
            self.connected.send_modify(|connected| *connected += 1);
        }
    }

    /// Waits until this thread should connect: it is its turn, or another thread has connected.
    pub(super) async fn retry(&self) {
        let mut connected = self.connected.subscribe();
        tokio::select! {
            // Fails only if the sender is dropped, which never happens while `self` exists.
            _ = connected.changed() => {}
            () = self.turn() => {}
        }
    }

    async fn turn(&self) {
        let turn = self.turn.lock().await;
        tokio::time::sleep(PAUSE.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        // A server that could not be reached gives no sign that it will be ready soon.
        if !self.not_ready.load(Ordering::Relaxed) {
            drop(turn);
            std::future::pending::<()>().await;
        }
    }
}

/// Whether this error means that a server has refused because of a temporary state.
fn is_state_of_server(error: StoreError) -> bool {
    matches!(
        error,
        StoreError::Loading | StoreError::Busy | StoreError::OutOfMemory | StoreError::Replica | StoreError::Refused
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(error: StoreError) -> Result<(), Fault> {
        Err(Fault::new(error, ""))
    }

    /// Whether the next attempt is made before a second has passed.
    async fn is_tried_again(readiness: &Readiness) -> bool {
        tokio::time::timeout(Duration::from_secs(1), readiness.retry()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_not_ready_is_tried_again_soon_and_one_that_is_away_is_not() {
        let readiness = Readiness::new();
        for (error, again) in [
            (StoreError::Refused, true),
            (StoreError::Loading, true),
            (StoreError::Unreachable, false),
            (StoreError::Forbidden, false),
        ] {
            readiness.attempted(&fault(error));
            assert_eq!(is_tried_again(&readiness).await, again, "{error:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_thread_tries_and_the_others_follow_when_it_has_connected() {
        let readiness = Readiness::new();
        readiness.attempted(&fault(StoreError::Refused));
        let mut threads: Vec<_> = (0..16).map(|_| Box::pin(readiness.retry())).collect();
        let mut tries = 0;
        for _ in 0..10 {
            tokio::time::advance(PAUSE).await;
            for thread in &mut threads {
                if is_complete(thread.as_mut()).await {
                    tries += 1;
                    readiness.attempted(&fault(StoreError::Refused));
                    *thread = Box::pin(readiness.retry());
                }
            }
        }
        assert!((5..=10).contains(&tries), "{tries}");
        // `retry` notices only a success after its first poll.
        for thread in &mut threads {
            assert!(!is_complete(thread.as_mut()).await);
        }
        readiness.attempted(&Ok(()));
        for thread in &mut threads {
            assert!(is_complete(thread.as_mut()).await);
        }
    }

    /// Whether a future is complete.
    async fn is_complete(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        let mut future = Some(future);
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(future.take().is_some_and(|future| future.poll(context).is_ready()))
        })
        .await
    }
}

//! Reads or changes values of a shared store on a connection of its own, on another thread, so that no request waits for it.

use std::time::Duration;

use base::interval::fixed_interval;
use stores::{Fault, Inspector, Settings};

/// The longest time that this may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The interval between two batches of a task. After a failure it is [`RETRY`] times as long.
const EVERY: Duration = Duration::from_secs(5);
const RETRY: u32 = 6;

/// Waits for the next batch of the task with this name.
pub(super) async fn next_batch(task: &str, has_succeeded: bool) {
    pause(task, EVERY, if has_succeeded { 1 } else { RETRY }).await;
}

/// Waits for about so many intervals of a task. Gateways that have started together do not ask at the same time.
pub(super) async fn pause(task: &str, interval: Duration, intervals: u32) {
    tokio::time::sleep(fixed_interval(task, interval).mul_f64(0.75 + fastrand::f64() / 2.0) * intervals).await;
}

/// Does this work on a connection that ends with it.
///
/// # Errors
/// When the store gives no answer. Some of the work may be done then.
pub(super) async fn on_own_connection<T: Send + 'static>(
    store: Settings,
    work: impl AsyncFnOnce(&mut Inspector) -> Result<T, Fault> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let working = async { work(&mut store.inspect().await?).await };
        let done = runtime.block_on(async { tokio::time::timeout(PATIENCE, working).await });
        let done = done.map_err(|_| format!("no answer within {PATIENCE:?}"))?;
        done.map_err(|Fault { error, detail, .. }| format!("{}: {detail}", error.name()))
    });
    done.await.unwrap_or_else(|error| Err(error.to_string()))
}

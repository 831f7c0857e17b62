//! Reads or changes values of a shared store on a connection of its own, on another thread, so that no request waits for it.

use std::time::Duration;

use stores::{Fault, Inspector, Settings};

/// The longest time that this may take.
const PATIENCE: Duration = Duration::from_secs(30);

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

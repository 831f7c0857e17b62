//! Runs what the gateway cannot do without. Where that panics, the process leaves: who keeps it up starts it anew.
//!
//! A connection is nothing of that kind. A panic there, which would be a bug of ours, costs that connection alone.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::task::JoinHandle;

/// Runs a task to its end, or to that of the process.
pub fn spawn(name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let mut task = Box::pin(task);
    tokio::spawn(poll_fn(move |cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx)));
        polled.unwrap_or_else(|_| {
            log::error!(task = name; "panicked, leaving");
            log::logger().flush();
            std::process::exit(1)
        })
    }))
}

/// Panics at a place that a test has chosen; a plain build knows none.
#[cfg_attr(not(feature = "test-hooks"), inline(always))]
pub fn stumble(place: &str) {
    #[cfg(feature = "test-hooks")]
    if std::env::var("TOLLGATE_STUMBLE").is_ok_and(|chosen| chosen == place) {
        #[expect(clippy::panic, reason = "what it is for")]
        {
            panic!("test-hooks: a panic on purpose");
        }
    }
    #[cfg(not(feature = "test-hooks"))]
    let _ = place;
}

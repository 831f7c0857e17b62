//! Runs the tasks without which the gateway cannot work. If such a task panics, the process exits, so that its
//! supervisor restarts it.
//!
//! The task of a connection is not supervised. A panic in it ends only this connection.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use tokio::task::JoinHandle;

/// The work that remains to be done when a task has panicked, before the process exits.
static LAST_WORK: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Sets the work to be done when a task of [`spawn_critical`] has panicked, before the process exits. The first call counts.
pub(crate) fn before_leaving(work: impl Fn() + Send + Sync + 'static) {
    let _ = LAST_WORK.set(Box::new(work));
}

/// Spawns a task that the gateway cannot work without: if the task panics, the process exits. `name` is the task's name in the
/// log.
pub(crate) fn spawn_critical(name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let mut task = Box::pin(task);
    tokio::spawn(poll_fn(move |cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx)));
        polled.unwrap_or_else(|_| {
            log::error!(task = name; "panicked, leaving");
            if let Some(work) = LAST_WORK.get() {
                work();
            }
            log::logger().flush();
            std::process::exit(1)
        })
    }))
}

/// Panics if a test has chosen the place with this `name` by the environment variable `TOLLGATE_STUMBLE`. Does nothing in a
/// build without test hooks.
#[cfg_attr(not(feature = "test-hooks"), inline(always))]
pub(crate) fn fault_point(name: &str) {
    #[cfg(feature = "test-hooks")]
    if std::env::var("TOLLGATE_STUMBLE").is_ok_and(|chosen| chosen == name) {
        #[expect(clippy::panic, reason = "a test wants it")]
        {
            panic!("test-hooks: a panic on purpose");
        }
    }
    #[cfg(not(feature = "test-hooks"))]
    let _ = name;
}

/// Panics like [`fault_point`] if a test has chosen this place. The name of the place is `stage` followed by `name`.
#[cfg_attr(not(feature = "test-hooks"), inline(always))]
pub(crate) fn fault_point_in(stage: &str, name: &str) {
    #[cfg(feature = "test-hooks")]
    fault_point(&format!("{stage}{name}"));
    #[cfg(not(feature = "test-hooks"))]
    let _ = (stage, name);
}

//! Timers of a connection that are set once for many requests.
//!
//! A timer that is made for one request takes 1300 of its 90 000 instructions, and nearly never fires. So each
//! connection uses its timers again. Two parts make this possible:
//!
//! - [`reusable_timer`]: a timer for many requests. If it fires before the current deadline, it is set again.
//! - [`poll_on_wake`]: polls a socket, a shutdown or a timer only if it has woken the task.
//!
//! The timers of a connection are:
//!
//! - [`idle_timeout`]: between two requests, together with the shutdown of the process (`limits.idle_timeout`).
//! - [`exchange_timer`]: during the wait for the upstream's response, and until the deadline of a request. After a
//!   timeout, the task gets [`grace_turns`].
//!
//! Other waits are rare, and have plain timeouts.

pub(crate) mod exchange_timer;
pub(crate) mod grace_turns;
pub(crate) mod idle_timeout;
pub(crate) mod poll_on_wake;
pub(crate) mod reusable_timer;

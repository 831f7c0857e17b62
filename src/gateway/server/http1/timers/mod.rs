//! Timers of a connection that are set once for many requests.
//!
//! Plain timeouts would cost too much: to make, register and drop one timer takes 1300 of the 90 000 instructions of a
//! request, and a keep-alive connection would need two, one for the time between requests and one for the upstream's
//! response. Nearly none of them ever fires. So each connection has one reusable timer for each of these two waits. Two
//! parts make this possible:
//!
//! - [`reusable_timer`]: one timer that outlives the request for which it was set. It may fire before the current deadline, and
//!   is then set again for the rest. So a deadline that moves with every request costs one comparison.
//! - [`poll_on_wake`]: a task that waits for a socket, a shutdown and a timer is woken by one of them and polls all three.
//!   Polling a timer or a watch channel takes a lock and a walk through a list. So each waker sets a flag, and a future is
//!   polled only if its flag is set. The check is one load.
//!
//! The timers of a connection are:
//!
//! - [`idle_timeout`]: between two requests, together with the shutdown of the process (`limits.idle_timeout`).
//! - [`exchange_timer`]: during the wait for the upstream's response, and until the deadline of a request. When the wait has
//!   timed out, the task gets [`grace_turns`].
//!
//! Waits that most connections never begin have plain timeouts: for the rest of a head that arrives in parts, for a
//! request body or a response that stalls, for a PROXY protocol header, and in a lingering close.

pub(crate) mod exchange_timer;
pub(crate) mod grace_turns;
pub(crate) mod idle_timeout;
pub(crate) mod poll_on_wake;
pub(crate) mod reusable_timer;

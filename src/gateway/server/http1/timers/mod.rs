//! Timers of a connection that are set once for many requests.
//!
//! Plain timeouts would cost too much: a timer that is made, registered and dropped with every request takes 1300 of the 90 000
//! instructions of a request, and a keep-alive connection would need two of them, one for the time between requests and one
//! for the upstream's response. Nearly none of them ever fires. So each connection has one timer for either purpose, made of
//! two parts:
//!
//! - [`reusable_timer`]: one timer that outlives the request it was set for. It may fire before the present deadline;
//!   then it is set again for the rest. So a deadline that moves away with every request costs a comparison.
//! - [`poll_on_wake`]: a task that waits for a socket, a shutdown and a timer is woken by one of them and polls all three.
//!   Polling a timer or a watch channel takes a lock and a walk through a list. A flag that its own waker sets tells whether a
//!   poll is needed, so an idle poll is one load.
//!
//! These timers are made of them:
//!
//! - [`idle_timeout`]: between two requests, together with the shutdown of the process (`limits.idle_timeout`).
//! - [`exchange_timer`]: during the wait for the upstream's response, and until the deadline of a request. At the end of the
//!   first, the task gets [`grace_turns`].
//!
//! Waits that most connections never begin have plain timeouts: for the rest of a head that arrives in parts, for a request body
//! or a response that stalls, for PROXY protocol headers, and in a lingering close.

pub(crate) mod exchange_timer;
pub(crate) mod grace_turns;
pub(crate) mod idle_timeout;
pub(crate) mod poll_on_wake;
pub(crate) mod reusable_timer;

//! Timers of a connection that are set once for many requests.
//!
//! Why they are not plain timeouts: a timer that is made, registered and dropped with every request takes 1300 of the 90 000
//! instructions of a request, and a keep-alive connection would need two of them, one for the time between requests and one
//! for the upstream's response. Nearly none of them ever fires. So each connection has one timer for
//! either purpose, and both are built of the same two parts:
//!
//! - [`reusable_timer`]: one timer that outlives the request it was set for. It may fire earlier than what is waited for now;
//!   then it is set again for the rest. A deadline that moves away with every request so costs a comparison.
//! - [`poll_on_wake`]: a task that waits for a socket, a shutdown and a timer is woken by one of them and polls all three.
//!   Polling a timer or a watch channel takes a lock and a walk through a list; a flag that its own waker sets says whether
//!   there is anything to poll for. An idle poll is one load.
//!
//! Of those are made:
//!
//! - [`idle_timeout`]: between two requests, together with the shutdown of the process (`limits.idle_timeout`).
//! - [`delegated_timer`]: while the upstream's response is waited for, if the proxy delegates that timeout.
//!   At its end it takes [`grace_turns`].
//!
//! Waits that most connections never begin have plain timeouts: the rest of a head that arrives in parts, a
//! request body or a response that stalls, PROXY protocol headers, lingering close.

pub mod delegated_timer;
pub mod grace_turns;
pub mod idle_timeout;
pub mod poll_on_wake;
pub mod reusable_timer;

//! Knows whose requests travelled in a call, in a build that has traces; in any other it is nothing at all.
//!
//! A store does not know what a mark means: it takes it from who asks and gives it back with the call.

#[cfg(feature = "opentelemetry")]
mod kept;
#[cfg(not(feature = "opentelemetry"))]
mod none;

#[cfg(feature = "opentelemetry")]
pub use kept::{Mark, Marks};
#[cfg(not(feature = "opentelemetry"))]
pub use none::Marks;

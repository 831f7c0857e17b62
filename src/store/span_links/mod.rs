//! Knows whose requests travelled in a call, in a build that has traces; in any other it is nothing at all.
//!
//! A store does not know what a mark means: it takes it from who asks and gives it back with the call.

#[cfg(not(feature = "opentelemetry"))]
mod disabled;
#[cfg(feature = "opentelemetry")]
mod enabled;

#[cfg(feature = "opentelemetry")]
pub use super::caller::SpanLink;
#[cfg(not(feature = "opentelemetry"))]
pub use disabled::SpanLinks;
#[cfg(feature = "opentelemetry")]
pub use enabled::SpanLinks;

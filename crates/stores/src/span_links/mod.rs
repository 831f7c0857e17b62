//! The spans of the decisions that a call served: recorded in a build with traces, a zero-sized type in any other.
//!
//! A store does not interpret a link: it takes it from the [`Caller`](super::Caller) and returns it with the call.

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

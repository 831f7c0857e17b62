//! Defines the span links of a call: the spans of the decisions that the call served. They are recorded only in a build
//! with traces. In other builds the type has no size.
//!
//! A store does not interpret a link. It takes the link from the [`Caller`](super::Caller) and returns it with the
//! call.

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

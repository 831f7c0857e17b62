//! Defines the span links of a call: the spans of the decisions that the call served. In a build without traces the
//! type has no size.

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

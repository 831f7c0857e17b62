//! Decides about a request, without I/O. Defines the order in which answers are checked, the refusals with their status
//! codes, and the numbers that clients see.
//!
//! The proxy, `explain` and `replay` all use this crate to decide, so their decisions cannot differ. Like [`rules`],
//! this crate has no async, no I/O, no clock and no log.
//!
//! ```
//! use decision::reason::Reason;
//! use decision::refusal::Refusal;
//!
//! let refusal = Refusal::store_unavailable(2);
//! assert_eq!((refusal.status, refusal.reason), (503, Reason::StoreUnavailable));
//! assert_eq!(refusal.retry_after, Some(2));
//! ```

pub mod order_of_answers;

pub mod cors;
pub mod credentials;
pub mod error_pages;
pub mod left_hold;
pub mod limit_usage;
pub mod model_requests;
pub mod payment;
pub mod ratelimit_numbers;
pub mod reason;
pub mod record_line;
pub mod refusal;
pub mod request_prices;
pub mod retry_after;
pub mod speaking_limit;
pub mod store_failure_refusal;
pub mod take_report;

pub mod access_log_line;

#[cfg(any(test, feature = "test-values"))]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub mod test_rules;

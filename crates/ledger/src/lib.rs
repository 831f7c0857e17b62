//! The ledger: algorithms, each in Rust and in Lua, the calendar, the keys of buckets, and the settlement of charges.
//!
//! A store reads the states of the buckets of a [plan](charge::Plan), calls [`settle`](charge::settle) and writes the
//! returned states. The crate `stores` implements the stores.
//!
//! ```
//! use ledger::algorithm::token_bucket::{Rate, TokenBucket};
//! use ledger::algorithm::{Algorithm, State};
//! use ledger::bucket_key::BucketKey;
//! use ledger::charge::{Charge, Plan, settle};
//! use ledger::cost::Cost;
//! use ledger::{Micros, Timestamp};
//!
//! let one_per_second = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
//! let bucket = Algorithm::TokenBucket(TokenBucket::new(one_per_second, 1).unwrap());
//! let mut plan = Plan::default();
//! plan.enforce(Charge::new(BucketKey([7; 16]), bucket, Cost::ONE));
//!
//! let now = Timestamp(1_800_000_000_000_000);
//! let (first, mut entries) = settle(&plan, &[None::<State>], now);
//! assert!(first.is_granted());
//! let stored = entries.pop().unwrap().unwrap().state;
//! let (second, _) = settle(&plan, &[Some(stored)], now);
//! assert!(!second.is_granted());
//! assert_eq!(second.enforced[0].retry_after, Micros(1_000_000));
//! ```
//!
//! Invariants: no async, no I/O, no clock, no log. The same input always has the same result. A refused request spends
//! nothing.

pub mod algorithm;
mod ban_beginnings;
pub mod bucket_key;
pub mod bucket_level;
pub mod calendar;
pub mod charge;
pub mod cost;
pub mod holds;
pub mod money;
pub mod outcome;
pub mod store_time;
#[cfg(any(test, feature = "test-values"))]
mod test_charges;
mod truncated_hash;

pub use base::time::{Micros, Timestamp};

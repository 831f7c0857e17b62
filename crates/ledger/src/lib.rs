//! The ledger: algorithms with their Lua twins, the calendar, the keys of buckets, and charges that are settled together.
//!
//! Invariants: no async, no I/O, no clock, no log. The same input has the same answer, time is an argument, and nothing
//! here can fail. A refused request spends nothing.

pub mod algorithm;
pub mod bucket_key;
pub mod calendar;
pub mod charge;
pub mod cost;
pub mod outcome;
pub mod store_time;

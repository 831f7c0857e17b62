//! The rules: what a request has to pay, and whether its buckets can pay it.
//!
//! A request has [attributes](request::attribute); the first [`rule`] of each policy that applies picks a descriptor from them; the
//! descriptor identifies a bucket, and all charges of a request are settled together. [`route`] has the routes of a file.
//!
//! Invariants: no async, no I/O, no clock, no log. The same input has the same answer, time is an argument, and nothing
//! here can fail. A refused request spends nothing.

pub mod ambiguity;
pub mod call;
pub mod claimed_numbers;
mod compiled_limit;
pub mod denier;
pub mod diff;
pub mod explanation;
pub mod index;
pub mod number_changes;
mod overrides;
pub mod partial;
pub mod resolved;
pub mod route;
pub mod rule;
pub mod rule_set;
pub mod ruling;

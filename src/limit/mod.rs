//! The rules: what a request has to pay, and whether its buckets can pay it.
//!
//! A request has [`attribute`]s; the first [`rule`] of each policy that applies picks a descriptor from them; the
//! descriptor identifies a bucket ([`bucket_key`]), and all [`charge`]s of a request are settled together.
//!
//! Invariants: no async, no I/O, no clock, no log. The same input has the same answer, time is an argument, and nothing
//! here can fail. A refused request spends nothing.

pub mod algorithm;
pub mod ambiguity;
pub mod attribute;
pub mod attribute_value;
pub mod bucket_key;
pub mod calendar;
pub mod call;
pub mod charge;
pub mod claim_list;
pub mod claimed_numbers;
pub mod client_certificate_field;
mod compiled_limit;
mod cookie;
pub mod cost;
pub mod denier;
pub mod diff;
pub mod door;
pub mod explanation;
mod folded_name;
pub mod grpc_timeout;
pub mod identity;
pub mod index;
pub mod list_file;
pub mod matcher;
pub mod number_changes;
pub mod outcome;
mod overrides;
pub mod partial;
pub mod path;
pub mod percent;
mod query;
pub mod request;
pub mod resolved;
pub mod rule;
pub mod rule_set;
pub mod ruling;
pub mod scheme;
pub mod sent_descriptor;

//! The rules, which determine the charges that a request has to pay, or deny the request.
//!
//! A request has [attributes](request::attribute). In each policy, the first [`rule`] that applies picks a descriptor
//! from the attributes. The descriptor identifies a bucket, and all charges of a request are settled together. The
//! module [`route`] has the routes of a file.
//!
//! ```
//! use base::position::Position;
//! use ledger::Timestamp;
//! use request::client_address::ClientAddress;
//! use request::request::Request;
//! use rules::rule::{Mode, Otherwise, Policy, RuleSource};
//! use rules::rule_set::RuleSet;
//! use rules::ruling::Answer;
//!
//! // A policy without rules denies what it does not allow.
//! let closed = Policy {
//!     name: "closed".to_owned(),
//!     conditions: Vec::new(),
//!     mode: Mode::Enforce,
//!     otherwise: Otherwise::Deny,
//!     rules: Vec::new(),
//!     position: Position::default(),
//! };
//! let rules = RuleSet::compile(RuleSource { policies: vec![closed], exempt: Vec::new() });
//! let (head, ()) = http::Request::get("/").body(()).unwrap().into_parts();
//! let request = Request::new(&head, ClientAddress::new([203, 0, 113, 7].into(), 64));
//! assert!(matches!(rules.plan(&request, Timestamp(0)).answer, Answer::Denied(_)));
//! ```
//!
//! Invariants: no async, no I/O, no clock, no log. The same input always has the same result, time is an argument, and
//! nothing in this crate can fail. A refused request spends nothing.

pub mod ambiguity;
pub mod body_plan;
pub mod claimed_numbers;
mod compiled_limit;
mod compiled_rule;
pub mod cost_sample;
pub mod denier;
pub mod descriptors_plan;
pub mod diff;
pub mod explanation;
pub mod grpc_status;
pub mod index;
mod json_place;
pub mod number_changes;
mod overrides;
pub mod partial_evaluation;
mod plan;
mod policy_walk;
mod reserve;
mod resolved;
pub mod route;
pub mod rule;
mod rule_mode;
pub mod rule_set;
pub mod ruling;
pub mod settled_price;
mod upstream_results;
mod walked_reserve;
mod weights;
pub mod without_store;

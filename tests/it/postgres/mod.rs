//! PostgreSQL as the store: its tables, its limits, and what happens when it fails.

mod clean;
mod crash;
mod failover;
mod histories;
mod initialization;
mod operators;
mod outage;
mod secrets;

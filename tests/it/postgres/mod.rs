//! PostgreSQL as the store: its tables, its limits, and what happens when it fails.

mod bans;
mod budgets;
mod clean;
mod conflicts;
mod contention;
mod crash;
pub mod failover;
mod fallback;
mod histories;
mod hot_bucket;
mod initialization;
mod moved_name;
mod notices;
mod operators;
mod other_servers;
mod outage;
mod prepared_statements;
mod published_function;
mod secrets;
mod side_work;
mod slots;

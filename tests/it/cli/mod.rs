//! The commands of the command line.

mod bucket;
mod bucket_grant;
mod budget_prices;
mod commands;
mod completions;
mod explain;
mod explain_id;
mod explain_parity;
mod hostile_text;
mod import;
mod init;
mod queues;
mod replay;
mod replay_budgets;
mod replay_listing;
mod replay_parity;
mod start_errors;
mod unknown_values;
mod without_store;

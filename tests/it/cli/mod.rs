//! The commands.

mod bucket;
mod commands;
mod completions;
mod explain;
mod explain_id;
mod replay;
mod replay_parity;

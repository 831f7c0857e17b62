//! The repository itself: documentation, layout, deployment files, releases.

pub mod deploy;
pub mod docs;
mod imports;
mod prose;
mod reasons;
mod recipes;
mod release;
mod tidy;

//! The repository itself: documentation, layout, deployment files, releases.

mod algorithms_picture;
pub mod deploy;
pub mod docs;
mod imports;
mod lua;
mod prose;
mod reasons;
mod recipes;
mod release;
mod tidy;

//! The repository itself: documentation, file layout, deployment files and releases.

mod algorithms_picture;
mod book;
mod dependencies;
pub mod deploy;
pub mod docs;
mod guide;
mod imports;
mod log_lines;
mod lua;
mod prose;
mod reasons;
mod recipes;
mod regions;
mod release;
mod shipped_file;
mod tidy;

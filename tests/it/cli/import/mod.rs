//! `tollgate import ratelimit`: the printed configuration decides about each descriptor as the original files do.

mod calls;
mod remarks;
mod service;
mod trees;

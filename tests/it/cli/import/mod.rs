//! `tollgate import ratelimit`: what it prints decides each descriptor as the files it has read.

mod calls;
mod remarks;
mod service;
mod trees;

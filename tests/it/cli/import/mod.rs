//! `tollgate import`: the printed configuration decides about each descriptor as the files of envoyproxy/ratelimit do. How
//! it is written to a file.

mod calls;
mod nginx_parity;
mod output;
mod remarks;
mod service;
mod trees;

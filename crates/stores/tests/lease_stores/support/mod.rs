//! Runs real servers for tests, and ends them with the tests.

pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod redis_cluster;
pub(crate) mod sentinel;

use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Returns a free port. Another program could take it in this moment.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! Connections to the upstream that are kept for the next request and then break.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::upstreams::{start, statuses};
use crate::support::{Upstream, eventually};

#[test]
fn a_kept_connection_that_the_server_closes_leaves_its_place() {
    let fresh = Arc::new(AtomicUsize::new(0));
    let upstream = Upstream::answering({
        let fresh = Arc::clone(&fresh);
        move |request, stream| {
            // Every second request of a connection finds it closed.
            match request.line.starts_with("GET /again ") && fresh.swap(0, Ordering::Relaxed) == 1 {
                true => drop(stream.shutdown(Shutdown::Both)),
                false => {
                    fresh.store(1, Ordering::Relaxed);
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                }
            }
        }
    });
    let gateway = start(&[upstream.address], ", max_connections: 1", "");
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(client.get("/again", &[]).status, 200);
    gateway.expect("tollgate_upstream_retries_total", &[], 1.0);
    gateway.expect("tollgate_refused_requests_total", &["upstream_busy"], 0.0);
}

#[test]
fn kept_connections_that_a_server_closes_eject_it() {
    let (good, ill) = (Upstream::start(), {
        // Answers the first request of a connection, and resets it at the next.
        Upstream::answering(|request, stream| {
            if request.line.starts_with("GET / ") {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            } else {
                let _ = stream.shutdown(Shutdown::Both);
            }
        })
    });
    let keys = ", ejection: {consecutive: 1, for: 60s}";
    let gateway = start(&[good.address, ill.address], keys, "");
    assert_eq!(statuses(&gateway, "GET", 4), [200; 4]);
    // Those that the ill server got. The log may be late, and until then all go to the other one.
    let mut failed = 0;
    eventually("the server is ejected", || {
        // An odd number, so that each server gets some of either kind.
        (0..2).for_each(|_| drop(gateway.client().get("/", &[])));
        failed += usize::from(gateway.client().send("POST", "/post", &[], "").status != 200);
        gateway.has_logged("endpoint ejected")
    });
    assert!(failed < 20, "{failed}");
}

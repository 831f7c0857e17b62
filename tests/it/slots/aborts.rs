//! Requests that clients abort at random places leave no slot behind.

use std::io::Write;
use std::time::Duration;

use super::{get, slots};
use crate::support::{Gateway, Redis, Upstream, eventually, print_measured, short_or_long};

const THREADS: u64 = 8;

/// Answers with three parts, a few milliseconds apart.
fn answer_in_parts(stream: &mut std::net::TcpStream) {
    let parts = ["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "4\r\npart\r\n", "4\r\npart\r\n0\r\n\r\n"];
    for part in parts {
        std::thread::sleep(Duration::from_millis(2));
        if stream.write_all(part.as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn aborts_at_random_places_leave_no_slot() {
    let (redis, requests) = (Redis::start(), short_or_long(1_000, 100_000));
    let upstream = Upstream::answering(|_, stream| answer_in_parts(stream));
    let config = format!("{}{}", redis.patient_store(), slots(64));
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &config));
    let whole = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (gateways, whole) = (&gateways, &whole);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                for _ in 0..requests / THREADS {
                    let mut client = gateways[random.usize(..2)].client();
                    let head = "HTTP/1.1\r\nHost: a\r\nX-User: ann\r\n";
                    match random.u8(..4) {
                        0 => client.write(&format!("GET / {}", &head[..random.usize(..head.len())])),
                        1 => client.write(&format!(
                            "POST / {head}Content-Length: 100000\r\n\r\n{}",
                            "x".repeat(random.usize(..5000))
                        )),
                        2 => client.write(&format!("GET / {head}\r\n")),
                        _ => {
                            client.write(&format!("GET / {head}\r\n"));
                            let response = client.response("GET").unwrap();
                            assert_eq!(response.status, 200, "{response:?}");
                            whole.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                            continue;
                        }
                    }
                    std::thread::sleep(Duration::from_micros(random.u64(..9_000)));
                }
            });
        }
    });
    for gateway in &gateways {
        gateway.expect("rate_limiter_in_flight", &[], 0.0);
    }
    for gateway in &gateways {
        eventually("all slots are free", || {
            get(gateway, "/", "ann").field("ratelimit").as_deref() == Some("\"in-flight\";r=63")
        });
    }
    print_measured(&format!("{requests} requests, {} whole, and no slot is held", whole.into_inner()));
}

//! Host names of upstreams whose addresses change, become fewer, or cannot be looked up. `libnss_wrapper` makes the gateway's
//! resolver read a hosts file that the test writes, instead of the machine's.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use crate::support::{Gateway, Load, Upstream, eventually};

const NAME: &str = "api.tollgate.test";

/// Makes the host name resolve to these addresses.
fn point(hosts: &Path, addresses: &[&str]) {
    let new = hosts.with_extension("new");
    let lines: String = addresses.iter().map(|address| format!("{address} {NAME}\n")).collect();
    std::fs::write(&new, format!("{lines}127.0.0.1 localhost\n")).unwrap();
    std::fs::rename(new, hosts).unwrap();
}

#[test]
fn requests_follow_a_name_that_changes_shrinks_and_fails() {
    let first = Upstream::start();
    let port = first.address.port();
    let others = ["127.0.0.2", "127.0.0.3"].map(|address| {
        Upstream::listening(TcpListener::bind((address, port)).unwrap(), |_, stream| {
            let _ = std::io::Write::write_all(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        })
    });
    let folder = tempfile::TempDir::new().unwrap();
    let hosts = folder.path().join("hosts");
    point(&hosts, &["127.0.0.1", "127.0.0.2"]);
    // One name and one thread that looks it up: the wrapper crashes if its file changes while two threads read it.
    let gateway = Gateway::before_url(&format!("http://{NAME}:{port}"))
        .variables(&[("LD_PRELOAD", "libnss_wrapper.so"), ("NSS_WRAPPER_HOSTS", &hosts.display().to_string())])
        .interval("resolve", Duration::from_millis(100))
        .start();
    let endpoints = |count: f64| gateway.expect("tollgate_upstream_endpoints", &["state=\"available\""], count);
    let http = gateway.http;
    endpoints(2.0);
    let load = Load::on(move || http);
    load.await_answers();
    assert!(first.count() > 0 && others[0].count() > 0);
    point(&hosts, &["127.0.0.2", "127.0.0.3"]);
    gateway.expect("tollgate_endpoint_up", &["127.0.0.3"], 1.0);
    load.await_answers();
    point(&hosts, &["127.0.0.3"]);
    endpoints(1.0);
    let counts = || [first.count(), others[0].count()];
    let mut before = counts();
    eventually("what was under way has ended", || {
        load.await_answers();
        std::mem::replace(&mut before, counts()) == before
    });
    load.await_answers();
    assert_eq!(counts(), before);
    // A name that cannot be looked up keeps its addresses.
    point(&hosts, &[]);
    eventually("it is logged", || gateway.has_logged("upstream not resolved"));
    load.await_answers();
    point(&hosts, &["127.0.0.1"]);
    eventually("the first one is back", || first.count() > before[0]);
    load.end();
}

//! Three endpoints under load: one is killed and restarted, one is stopped, and one answers 503.
//!
//! The long form compares the share of failed requests with HAProxy's and nginx's: `benches/upstreams.py`.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::support::{Gateway, Load, ServerProcess, Upstream};

fn start(servers: &[SocketAddr], ejection: &str) -> Gateway {
    let endpoints: Vec<String> = servers.iter().map(|address| format!("http://{address}")).collect();
    let text = format!(
        "upstreams:
  api:
    endpoints: [{}]
    timeouts: {{connect: 2s, read: 2s}}
    health: {{path: /healthz, interval: 300ms, timeout: 300ms, fall: 5, rise: 2}}
    ejection: {ejection}
    retries: {{max: 2, budget: 100%}}
routes: [{{name: all, upstream: api}}]
",
        endpoints.join(", ")
    );
    Gateway::before_url("").with(&text).start()
}

fn are_available(gateway: &Gateway, endpoints: f64) {
    gateway.expect("tollgate_upstream_endpoints", &["state=\"available\""], endpoints);
}

#[test]
fn clients_do_not_notice_that_one_is_killed_and_comes_back_and_another_is_stopped() {
    let mut servers = [(); 3].map(|()| ServerProcess::start());
    let gateway = start(&servers.each_ref().map(|server| server.address), "false");
    let http = gateway.http;
    let load = Load::on(move || http);
    load.await_answers();
    servers[0].kill();
    are_available(&gateway, 2.0);
    servers[0].start_again();
    are_available(&gateway, 3.0);
    servers[1].signal("STOP");
    are_available(&gateway, 2.0);
    load.await_answers();
    // The only one that is left with the one that came back.
    servers[2].kill();
    are_available(&gateway, 1.0);
    load.await_answers();
    servers[1].signal("CONT");
    servers[2].start_again();
    are_available(&gateway, 3.0);
    load.await_answers();
    load.end();
}

#[test]
fn one_that_is_stopped_and_one_that_answers_503_are_left_out_together() {
    let status = Arc::new(AtomicU16::new(200));
    let answered = Arc::clone(&status);
    let ill = Upstream::answering(move |_, stream| {
        let status = answered.load(Ordering::Relaxed);
        let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
    });
    let (good, stopped) = (ServerProcess::start(), ServerProcess::start());
    // Of three, half are one: the checks have no such bound.
    let gateway = start(&[good.address, stopped.address, ill.address], "{consecutive: 3, for: 1m, max_share: 50%}");
    let mut client = gateway.client();
    (0..9).for_each(|_| assert_eq!(client.get("/", &[]).status, 200));
    stopped.signal("STOP");
    status.store(503, Ordering::Relaxed);
    are_available(&gateway, 1.0);
    for _ in 0..50 {
        assert_eq!(gateway.client().get("/", &[]).status, 200);
    }
    stopped.signal("CONT");
}

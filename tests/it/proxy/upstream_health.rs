//! Health checks: which endpoints get requests, and what is reported to operators.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::support::{Client, Gateway, Upstream, eventually, now};

/// A server that answers health checks with a status that the test sets, and all other requests with 200.
struct CheckedServer {
    upstream: Upstream,
    status: Arc<AtomicU16>,
}

impl CheckedServer {
    fn start() -> CheckedServer {
        let status = Arc::new(AtomicU16::new(200));
        let answered = Arc::clone(&status);
        let upstream = Upstream::answering(move |request, stream| {
            let checked = request.line.starts_with("GET /healthz ");
            let status = if checked { answered.load(Ordering::Relaxed) } else { 200 };
            let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
        });
        CheckedServer { upstream, status }
    }

    fn set(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    fn checks(&self) -> usize {
        self.upstream.seen().iter().filter(|request| request.line.starts_with("GET /healthz ")).count()
    }

    fn requests(&self) -> usize {
        self.upstream.count() - self.checks()
    }
}

fn file(servers: &[SocketAddr], keys: &str) -> String {
    let endpoints: Vec<String> = servers.iter().map(|address| format!("http://{address}")).collect();
    let endpoints = endpoints.join(", ");
    format!("upstreams: {{api: {{endpoints: [{endpoints}], {keys}}}}}\nroutes: [{{name: all, upstream: api}}]\n")
}

const HEALTH: &str = "health: {path: /healthz, interval: 300ms, timeout: 300ms, fall: 2, rise: 2}";

fn is_in_state(gateway: &Gateway, state: &str, endpoints: f64) {
    gateway.expect("tollgate_upstream_endpoints", &["upstream=\"api\"", &format!("state=\"{state}\"")], endpoints);
}

fn get(gateway: &Gateway, requests: usize) {
    let mut client = gateway.client();
    (0..requests).for_each(|_| assert_eq!(client.get("/", &[]).status, 200));
}

#[test]
fn an_endpoint_is_left_out_from_its_failed_checks_to_its_passed_ones() {
    let (good, ill) = (CheckedServer::start(), CheckedServer::start());
    let servers = [good.upstream.address, ill.upstream.address];
    let gateway = Gateway::before_url("").with(&file(&servers, HEALTH)).start();
    get(&gateway, 4);
    assert_eq!((good.requests(), ill.requests()), (2, 2));
    ill.set(500);
    is_in_state(&gateway, "down", 1.0);
    gateway.expect("tollgate_endpoint_up", &[&format!("endpoint=\"{}\"", servers[1])], 0.0);
    get(&gateway, 10);
    // What is known stays over a reload, even if that changes the checks.
    gateway.reload_text(&file(&servers, &HEALTH.replace("rise: 2", "rise: 3")));
    get(&gateway, 10);
    assert_eq!((good.requests(), ill.requests()), (22, 2));
    let status = Client::connect(gateway.admin).get("/status.json", &[]).body;
    assert!(status.contains(&format!("\"endpoint\":\"{}\",\"state\":\"down\"", servers[1])), "{status}");
    assert!(status.contains("endpoint is down"), "{status}");
    gateway.expect_logged("endpoint is down");
    gateway.expect_logged("status 500");
    ill.set(204);
    is_in_state(&gateway, "available", 2.0);
    get(&gateway, 4);
    assert_eq!((good.requests(), ill.requests()), (24, 4));
    gateway.expect("tollgate_endpoint_requests_total", &[&format!("endpoint=\"{}\"", servers[1])], 4.0);
    gateway.expect("tollgate_endpoint_request_duration_seconds_count", &["upstream=\"api\""], 28.0);
    // Without checks nothing is known to be down.
    ill.set(500);
    is_in_state(&gateway, "down", 1.0);
    gateway.reload_text(&file(&servers, "ejection: false"));
    is_in_state(&gateway, "available", 2.0);
}

#[test]
fn an_endpoint_that_refuses_is_silent_or_speaks_another_protocol_is_down() {
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = Upstream::answering(|_, stream| {
        let _ = stream.write_all(b"220 ready\r\n");
    });
    let good = CheckedServer::start();
    let servers = [refusing, silent.local_addr().unwrap(), other.address, good.upstream.address];
    let gateway = Gateway::before_url("").with(&file(&servers, HEALTH)).start();
    is_in_state(&gateway, "down", 3.0);
    get(&gateway, 12);
    assert_eq!(good.requests(), 12);
    for why in ["cannot connect: ", "no response in time", "the response is not HTTP/1"] {
        gateway.expect_logged(why);
    }
}

#[test]
fn endpoints_that_are_down_are_used_if_too_few_others_are_left() {
    let servers = [(); 4].map(|()| CheckedServer::start());
    let addresses = servers.each_ref().map(|server| server.upstream.address);
    let keys = format!("{HEALTH}, panic_below: 50%");
    let gateway = Gateway::before_url("").with(&file(&addresses, &keys)).start();
    let requests = || servers.each_ref().map(CheckedServer::requests);
    servers[..2].iter().for_each(|server| server.set(503));
    is_in_state(&gateway, "down", 2.0);
    get(&gateway, 8);
    assert_eq!(requests(), [0, 0, 4, 4]);
    servers[2].set(503);
    is_in_state(&gateway, "down", 3.0);
    get(&gateway, 8);
    assert_eq!(requests(), [2, 2, 6, 6]);
    servers[3].set(503);
    is_in_state(&gateway, "down", 4.0);
    get(&gateway, 8);
    assert_eq!(requests(), [4, 4, 8, 8]);
}

#[test]
fn checks_are_made_once_for_all_threads_and_as_the_file_says() {
    let (server, aside) = (CheckedServer::start(), CheckedServer::start());
    let keys = format!(
        "health: {{path: \"/healthz?a=1\", interval: 100ms, expect: 500, host: checked.example, port: {}}}",
        aside.upstream.address.port()
    );
    let text = format!("threads: 4\n{}", file(&[server.upstream.address], &keys));
    let begun = now();
    let gateway = Gateway::before_url("").with(&text).start();
    let seen = || aside.upstream.count();
    eventually("twenty checks", || seen() >= 20);
    // If each thread checked by itself, there would be four times as many.
    let (count, most) = (seen(), begun.elapsed().as_millis() / 100 + 2);
    assert!(u128::try_from(count).unwrap() <= most, "{count} checks, at most {most}");
    let check = aside.upstream.last();
    assert_eq!((&*check.line, check.field("host")), ("GET /healthz?a=1 HTTP/1.1", Some("checked.example")));
    // A single endpoint gets its requests whatever its checks say.
    is_in_state(&gateway, "down", 1.0);
    get(&gateway, 3);
    assert_eq!(server.upstream.count(), 3);
}

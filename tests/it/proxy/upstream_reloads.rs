//! Reloads that change upstreams: current requests end on their old endpoint, and unchanged endpoints keep their connections.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};

use crate::support::{Gateway, Load, Upstream, eventually, short_or_long};

/// Returns a configuration with one upstream that has these endpoints.
fn file(servers: &[SocketAddr], rest: &str) -> String {
    let endpoints: Vec<String> = servers.iter().map(|address| format!("http://{address}")).collect();
    format!(
        "threads: 1
upstreams: {{api: {{endpoints: [{}], timeouts: {{idle: 1m}}}}}}
routes: [{{name: all, upstream: api}}]
{rest}
",
        endpoints.join(", ")
    )
}

fn start(servers: &[SocketAddr]) -> Gateway {
    Gateway::before_url("").with(&file(servers, "")).start()
}

#[test]
fn reloads_that_move_servers_under_load_lose_nothing() {
    // Every request is under way for a moment, so that each reload meets some at servers that leave.
    let slow = || {
        Upstream::answering(|_, stream| {
            std::thread::sleep(std::time::Duration::from_millis(3));
            let _ = std::io::Write::write_all(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        })
    };
    let servers = [(); 3].map(|()| slow());
    let addresses = servers.each_ref().map(|server| server.address);
    let gateway = start(&addresses[..2]);
    let http = gateway.http;
    let load = Load::on(move || http);
    load.await_answers();
    for turn in 1..=short_or_long(10, 200) {
        gateway.reload_text(&file(&[addresses[turn % 3], addresses[(turn + 1) % 3]], ""));
    }
    load.await_answers();
    let answered = load.end();
    let seen: usize = servers.iter().map(Upstream::count).sum();
    // Nothing was lost, and nothing was sent twice.
    assert_eq!(seen, answered);
    assert!(servers.iter().all(|server| server.count() > 0));
}

#[test]
fn a_server_that_stays_keeps_its_connections_and_its_numbers() {
    let servers = [(); 3].map(|()| Upstream::start());
    let addresses = servers.each_ref().map(|server| server.address);
    let gateway = start(&addresses[..2]);
    let mut client = gateway.client();
    let mut ask = |requests: usize| (0..requests).for_each(|_| assert_eq!(client.get("/", &[]).status, 200));
    ask(4);
    for turn in 0..6 {
        gateway.reload_text(&file(&[addresses[0], addresses[2 - turn % 2]], ""));
        ask(4);
    }
    // One client on one thread: one connection, and no other since.
    assert_eq!(servers[0].count(), 14);
    assert!(servers[0].seen().iter().all(|request| request.connection == 0));
    // Those of the others were kept as well, while they were away.
    assert!(servers.iter().all(|server| server.seen().iter().all(|request| request.connection == 0)));
    let endpoint = format!("endpoint=\"{}\"", addresses[0]);
    gateway.expect("tollgate_endpoint_requests_total", &[&endpoint], 14.0);
}

#[test]
fn a_request_ends_at_the_server_that_it_went_to_although_that_is_gone() {
    let (begun, end) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (arrived, reloaded) = (Arc::clone(&begun), Arc::clone(&end));
    let leaving = Upstream::answering(move |_, stream| {
        arrived.wait();
        reloaded.wait();
        let _ = std::io::Write::write_all(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlast");
    });
    let staying = Upstream::start();
    let gateway = start(&[leaving.address]);
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    begun.wait();
    gateway.reload_text(&file(&[staying.address], ""));
    assert_eq!(gateway.client().get("/", &[]).body, "ok");
    end.wait();
    assert_eq!(client.response("GET").unwrap().body, "last");
    assert_eq!(client.get("/", &[]).body, "ok");
}

#[test]
fn the_log_names_the_routes_and_upstreams_that_a_reload_has_changed() {
    let servers = [(); 2].map(|()| Upstream::start());
    let addresses = servers.each_ref().map(|server| server.address);
    let gateway = start(&addresses[..1]);
    gateway.reload_text(&file(&addresses, ""));
    eventually("it is logged", || {
        gateway.has_logged("upstreams are changed upstreams=1 which=\"api: other endpoints\"")
    });
    assert!(!gateway.has_logged("routes are changed"));
    let routes = "routes: [{name: all, upstream: api}";
    let more = format!("{routes}, {{name: never, match: {{path: /x}}, upstream: api}}");
    gateway.reload_text(&file(&addresses, "").replace(routes, &more));
    eventually("it is logged", || gateway.has_logged("routes are changed routes=1 which=\"never: it was not there"));
}

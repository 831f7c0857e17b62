//! The connections of proxies that ask for decisions: they are not limited like those of one client, and clients cannot use
//! up their number.

use super::http_door::forwarded;
use crate::support::http2::Http2Client;
use crate::support::{Client, Gateway, Upstream, eventually};

const LISTENERS: &str = "\
listeners:
  - {name: web, address: 127.0.0.1:0}
  - {name: edge, address: 127.0.0.1:0, decide: [http, ext_authz], original_request: x-forwarded, answer_within: 10s, clients: [127.0.0.0/8]}
";

fn is_answered(client: &mut Client) -> bool {
    forwarded(client, "GET", "https://a.test/", &[]).status == 200
}

#[test]
fn a_proxy_that_clients_names_has_no_bound_of_one_client() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).with(LISTENERS).with("limits: {connections_per_client: 3}").start();
    let mut clients: Vec<_> = (0..3).map(|_| gateway.client()).collect();
    assert!(clients.iter_mut().all(|client| client.get("/", &[]).status == 200));
    assert_eq!(gateway.client().response("GET").unwrap().status, 503);
    // The same address, as a proxy that asks.
    let mut edge: Vec<_> = (0..20).map(|_| Client::connect(gateway.listeners[1])).collect();
    assert!(edge.iter_mut().all(is_answered));
    // More calls at once than a client may have streams, none of which is whole, and one that is.
    const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
    let grpc = [("content-type", "application/grpc")];
    let mut envoy = Http2Client::connect(gateway.listeners[1]);
    let calls: Vec<_> = (0..50).map(|_| envoy.begin("POST", CHECK, &grpc, false)).collect();
    assert_eq!(envoy.send("POST", CHECK, &grpc, &[b"\0\0\0\0\0"]).status, 200);
    drop(calls);
    assert_eq!(clients[0].get("/", &[]).status, 200);
}

#[test]
fn no_number_of_clients_keeps_a_proxy_that_asks_from_connecting() {
    let upstream = Upstream::start();
    // The connections that may be open, and those that there are files for.
    for (shell, bounds) in
        [("ulimit -n 1024", "connections: 5"), ("ulimit -n 256", "connections_per_client: unlimited")]
    {
        let gateway =
            Gateway::before(&upstream).with(LISTENERS).with(&format!("limits: {{{bounds}}}")).shell(shell).start();
        let _many: Vec<_> = (0..150).map(|_| gateway.client()).collect();
        eventually("the rest is turned away", || gateway.has_logged("connections turned away"));
        let mut edge: Vec<_> = (0..5).map(|_| Client::connect(gateway.listeners[1])).collect();
        assert!(edge.iter_mut().all(is_answered), "{bounds}: {}", gateway.errors());
    }
}

#[test]
fn proxies_that_ask_leave_connections_for_clients() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).with(LISTENERS).with("limits: {connections: 5}").start();
    let mut edge: Vec<_> = (0..5).map(|_| Client::connect(gateway.listeners[1])).collect();
    assert!(edge.iter_mut().all(is_answered));
    // They are bounded too.
    assert_eq!(Client::connect(gateway.listeners[1]).response("GET").unwrap().status, 503);
    let mut clients: Vec<_> = (0..5).map(|_| gateway.client()).collect();
    assert!(clients.iter_mut().all(|client| client.get("/", &[]).status == 200));
}

//! Whom a request is charged to: what listeners, PROXY protocol and forwarding fields say of the client.

use crate::support::{Client, Gateway, Upstream};

/// Two requests a day for each client address.
const TWO_A_DAY: &str = "rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 2/day}}]";

#[test]
fn several_listeners_are_one_gateway() {
    let upstream = Upstream::start();
    let listeners = "listeners: [{address: 127.0.0.1:0}, {address: \"[::1]:0\"}, {address: 127.0.0.1:0}]";
    let gateway = Gateway::start(&upstream, &format!("{listeners}\n{TWO_A_DAY}"));
    assert_eq!(gateway.listeners.len(), 3);
    assert_eq!(gateway.listeners.iter().map(|address| address.is_ipv6()).collect::<Vec<_>>(), [false, true, false]);
    let mut clients: Vec<_> = gateway.listeners.iter().map(|address| Client::connect(*address)).collect();
    let mut code = |listener: usize| clients[listener].get("/", &[]).status;
    assert_eq!([code(0), code(1), code(2), code(0), code(2), code(1), code(1)], [200, 200, 200, 429, 429, 200, 429]);
    for address in &gateway.listeners {
        gateway.expect("tollgate_http_connections", &[&format!("listener=\"{address}\"")], 1.0);
    }
}

#[test]
fn the_connections_of_an_only_listener_are_counted_under_one_name() {
    let gateway = Gateway::start(&Upstream::start(), "listeners: [{address: 127.0.0.1:0}]");
    let _client = gateway.client();
    gateway.expect("tollgate_http_connections", &["listener=\"http\""], 1.0);
}

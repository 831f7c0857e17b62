//! Finds routes and upstreams to which no request goes, and upstreams that are the gateway itself.

use std::net::IpAddr;

use super::constraints::Constraints;
use super::file::File;
use super::location::{Finding, Location};
use crate::Endpoint;
use base::endpoint_address::EndpointAddress;
use rules::rule::Condition;

/// The largest number of routes that are examined, so that a long list does not take much time.
const TRIED: usize = 2_000;

/// Finds routes that never apply, because an earlier route matches all of their requests.
pub(super) fn unreachable_route(file: &File<'_>) -> Vec<Finding> {
    let routes = file.config.routes.routes();
    let mut found = Vec::new();
    for (index, late) in routes.iter().enumerate().take(TRIED) {
        let constraints = Constraints::of(&late.conditions);
        let implied = |conditions: &[Condition]| conditions.iter().all(|condition| constraints.implies(condition));
        let before = routes.iter().take(index).find(|first| implied(&first.conditions));
        if let Some(first) = before {
            let what = format!("never matches: whenever it would, `{}` before it does", first.name);
            let hint = format!("put it before `{}`, or remove it", first.name);
            found.push(file.root.key("routes").member(index).finding(what, hint));
        }
    }
    found
}

/// Finds upstreams that no route uses. If every listener decides for other proxies, no upstream is used.
pub(super) fn unused_upstream(file: &File<'_>) -> Vec<Finding> {
    if file.config.listeners.iter().all(|listener| listener.decide.is_some()) {
        let locations =
            ["upstream", "upstreams"].into_iter().filter(|key| file.root.has(key)).map(|key| file.root.key(key));
        let what = "has no effect: every listener decides for other proxies, and proxies nothing";
        let hint = "take it out, or add a listener without `decide`";
        return locations.map(|location| location.finding(what, hint)).collect();
    }
    let routes = file.config.routes.routes();
    let is_used = |index: usize| {
        routes.iter().any(|route| route.upstreams().iter().any(|upstream| usize::try_from(upstream.0) == Ok(index)))
    };
    let unused = (0..file.config.upstreams.len()).filter(|index| !is_used(*index));
    let finding = |index| {
        file.root
            .key("upstreams")
            .pair(index)
            .finding("gets no request: no route leads to it", "add a route, or remove it")
    };
    unused.map(finding).collect()
}

/// Finds endpoints that are addresses of this gateway. A request would be forwarded in a circle until a limit stops it.
pub(super) fn own_address(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (upstream, settings) in file.config.upstreams.iter().enumerate() {
        for (index, endpoint) in settings.endpoints.iter().enumerate() {
            if file.config.listeners.iter().any(|listener| is_own(endpoint, &listener.address)) {
                let what = "is an address of this gateway: its requests would come back to it";
                found.push(location(file, upstream, index).finding(what, "name the server that answers them"));
            }
        }
    }
    found
}

/// Returns the location of an endpoint's URL in the file.
fn location<'f>(file: &File<'f>, upstream: usize, endpoint: usize) -> Location<'f> {
    if file.root.has("upstream") {
        return file.root.key("upstream");
    }
    let location = file.root.key("upstreams").pair(upstream).key("endpoints").member(endpoint);
    if location.has("url") { location.key("url") } else { location }
}

/// Whether a name always stands for this host (RFC 6761, section 6.3).
fn is_local(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// Whether a connection to the endpoint certainly reaches this listener.
fn is_own(endpoint: &Endpoint, listener: &EndpointAddress) -> bool {
    let listener = match (&endpoint.socket, listener) {
        (Some(socket), EndpointAddress::Unix(path)) => return socket == path,
        (None, EndpointAddress::Inet(listener)) => listener,
        _ => return false,
    };
    // An endpoint with another port is never this listener. The port of a listener with port 0 is unknown here.
    if endpoint.port != listener.port() {
        return false;
    }
    let listened = listener.ip().to_canonical();
    match endpoint.host.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(address) if address == listened => true,
        // A connection to the unspecified address reaches this host.
        Ok(address) if address.is_unspecified() => listened.is_loopback() || listened.is_unspecified(),
        Ok(address) => listened.is_unspecified() && address.is_loopback(),
        Err(_) => is_local(&endpoint.host) && (listened.is_loopback() || listened.is_unspecified()),
    }
}

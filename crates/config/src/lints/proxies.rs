//! Finds networks that are so large that unknown hosts count as trusted proxies, or unknown clients as exempt.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::file::File;
use super::location::Finding;
use crate::keys::listeners::{HeaderSenders, Listener};
use request::attribute::Attribute;
use request::matcher::Expectation;
use rules::rule::Condition;

/// Networks that are not routed on the internet (RFC 6890), each with its prefix length.
const PRIVATE_V4: [(Ipv4Addr, u8); 10] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
];
const PRIVATE_V6: [(Ipv6Addr, u8); 4] = [
    (Ipv6Addr::LOCALHOST, 128),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
];
/// A network with a prefix of at most this length is too large to be the public network of a load balancer.
const WIDE_V4: u8 = 11;
const WIDE_V6: u8 = 19;

/// Finds very large networks of trusted proxies, and of peers that may ask for decisions. Each host in such a network
/// can claim any client address.
pub(super) fn trust_everyone(file: &File<'_>) -> Vec<Finding> {
    let location = file.root.key("client_ip").key("trusted_proxies");
    let wide = file.config.client_ip.trusted_proxies.iter().enumerate().filter(|(_, network)| is_wide(network));
    let finding = |(index, network): (usize, &IpNet)| {
        let what = match network.prefix_len() {
            0 => format!("{network} is everybody: any client can claim any address"),
            _ => format!("{network} has public addresses in it: a client with one can claim any address"),
        };
        location.member(index).finding(what, "name the addresses of your own proxies")
    };
    let mut found: Vec<Finding> = wide.map(finding).collect();
    for (index, listener) in file.config.listeners.iter().enumerate() {
        let location = file.root.key("listeners").member(index).key("clients");
        let clients = listener.decide.iter().filter_map(|decide| decide.clients.as_ref()).flatten();
        for (index, network) in clients.enumerate().filter(|(_, network)| is_wide(network)) {
            let what = format!("{network} has public addresses in it: a peer with one can claim to be any client");
            found.push(location.member(index).finding(what, "name the proxies that ask"));
        }
    }
    found
}

fn is_wide(network: &IpNet) -> bool {
    let private_v4 =
        PRIVATE_V4.iter().filter_map(|(address, length)| Ipv4Net::new(*address, *length).ok()).map(IpNet::V4);
    let private_v6 =
        PRIVATE_V6.iter().filter_map(|(address, length)| Ipv6Net::new(*address, *length).ok()).map(IpNet::V6);
    let private: Vec<IpNet> = private_v4.chain(private_v6).collect();
    let wide = match network {
        IpNet::V4(network) => network.prefix_len() <= WIDE_V4,
        IpNet::V6(network) => network.prefix_len() <= WIDE_V6,
    };
    // A network that contains a private network and other addresses was probably meant to be the private network.
    let more = private.iter().any(|inner| network.contains(inner));
    !private.iter().any(|outer| outer.contains(network)) && (wide || more)
}

/// Finds listeners that accept PROXY protocol headers from every peer or from a very large network. Each of these peers can
/// claim any client address.
pub(super) fn open_proxy_protocol(file: &File<'_>) -> Vec<Finding> {
    let hint = "name your load balancers: {from: [10.0.0.0/8]}";
    let mut found = Vec::new();
    for (index, listener) in file.config.listeners.iter().enumerate() {
        let location = file.root.key("listeners").member(index).key("proxy_protocol");
        match &listener.proxy_protocol {
            HeaderSenders::Nobody => {}
            HeaderSenders::Anyone => {
                found.push(location.finding(
                    "believes every peer: any host that reaches the address can claim to be any client",
                    hint,
                ));
            }
            HeaderSenders::Networks(networks) => {
                for (index, network) in networks.iter().enumerate().filter(|(_, network)| is_wide(network)) {
                    let what =
                        format!("{network} has public addresses in it: a peer with one can claim to be any client");
                    found.push(location.key("from").member(index).finding(what, hint));
                }
            }
        }
    }
    found
}

/// Finds exemptions that contain the address of a proxy. If this proxy forwards no client address, all of its clients
/// are exempt.
pub(super) fn exempt_proxy(file: &File<'_>) -> Vec<Finding> {
    let client_ip = &file.config.client_ip;
    // The peer is not the client if a PROXY protocol header, or the proxy that asks for a decision, names the client.
    let is_direct = |listener: &Listener| listener.proxy_protocol == HeaderSenders::Nobody && listener.decide.is_none();
    let is_local = |listener: &Listener| {
        let address = listener.address.inet();
        address.is_none_or(|address| address.ip().is_loopback()) && is_direct(listener)
    };
    let local = file.config.listeners.iter().all(is_local);
    let mut found = Vec::new();
    for (index, conditions) in file.exempt.iter().enumerate() {
        // An entry with further conditions exempts only some requests, so it is not examined.
        let Some(exempt) = networks(conditions) else { continue };
        let location = file.root.key("exempt").member(index);
        let proxy =
            client_ip.trusted_proxies.iter().find(|proxy| exempt.iter().any(|network| network.contains(*proxy)));
        if let Some(proxy) = proxy {
            let one = proxy.prefix_len() == proxy.max_prefix_len();
            let proxy = if one { proxy.addr().to_string() } else { proxy.to_string() };
            let what =
                format!("exempts {proxy}, a trusted proxy: what it forwards without X-Forwarded-For pays nothing");
            found.push(location.finding(what, "exempt the clients that are meant, without the proxies"));
            continue;
        }
        let loopback = exempt.iter().find(|network| network.addr().is_loopback());
        if let Some(network) = loopback.filter(|network| local && !client_ip.trusts(network.addr())) {
            let what = format!("exempts {network}, from where all requests come: every listener is on loopback");
            found.push(location.finding(what, "name the proxy on this machine in client_ip.trusted_proxies"));
        }
    }
    found
}

/// Returns the networks of clients that an entry exempts. `None` if the entry also has other conditions.
fn networks(conditions: &[Condition]) -> Option<Vec<IpNet>> {
    let mut networks = Vec::new();
    for condition in conditions {
        let (Attribute::Address, Expectation::Cidr(members)) = (&condition.attribute, &condition.expectation) else {
            return None;
        };
        networks.extend(members.iter().copied());
    }
    Some(networks)
}

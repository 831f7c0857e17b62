//! Reads `listeners`, or `listen` for a single one: the addresses on which requests arrive.

use std::net::SocketAddr;

use ipnet::IpNet;

use super::key::{Key, Mapping, SOCKET_ADDRESS, Type, networks, unconstrained};
use super::reader::{Field, Section, all};

/// An address on which requests arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    pub address: SocketAddr,
    pub proxy_protocol: HeaderSenders,
}

/// The peers whose connections have to begin with a PROXY protocol header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderSenders {
    /// No connection begins with a header.
    Nobody,
    /// Every peer, which so can claim any address.
    Anyone,
    /// The connections of other peers are closed.
    Networks(Vec<IpNet>),
}

static PROXY_PROTOCOL: Mapping = Mapping {
    heading: Some("key in `proxy_protocol`"),
    definition: None,
    keys: &[Key::required("from", networks(1), "The load balancers. The connections of other peers are closed.")],
    constraints: unconstrained,
};

pub static LISTENER: Mapping = Mapping {
    heading: Some("key of a listener"),
    definition: None,
    keys: &[
        Key::required(
            "address",
            SOCKET_ADDRESS,
            "Where requests arrive. Two listeners must not have the same address, unless its port is 0, which picks a free \
             one.",
        ),
        Key::default(
            "proxy_protocol",
            Type::Switch(&PROXY_PROTOCOL),
            "false",
            "Whether every connection begins with a PROXY protocol header, which names the client. `true` believes every \
             host that reaches this address.",
        ),
    ],
    constraints: unconstrained,
};

pub fn listeners(file: &Section<'_>) -> Option<Vec<Listener>> {
    let listen = file.value("listen", |field| field.socket_address());
    let listeners = file.optional("listeners", |field| several(&field));
    if file.has("listen") {
        file.unwanted("listeners", "must not stand beside `listen`, which is short for one listener");
    }
    match (listen?, listeners?) {
        (_, Some(_)) if file.has("listen") => None,
        (_, Some(listeners)) => Some(listeners),
        (address, None) => Some(vec![Listener { address, proxy_protocol: HeaderSenders::Nobody }]),
    }
}

fn several(field: &Field<'_>) -> Option<Vec<Listener>> {
    let members = field.list()?;
    if members.is_empty() {
        field.must("have at least one listener");
        return None;
    }
    let mut taken = Vec::new();
    all(members, |member| listener(member, &mut taken))
}

fn listener(field: Field<'_>, taken: &mut Vec<SocketAddr>) -> Option<Listener> {
    let section = field.section(&LISTENER)?;
    let address = section.need("address").and_then(|field| {
        let address = field.known_or("0.0.0.0:0", |field| field.socket_address())?;
        // Port 0 is another port each time.
        if address.port() != 0 && taken.contains(&address) {
            field.wrong(format_args!("must be unique, `{address}` is taken"), None);
            return None;
        }
        taken.push(address);
        Some(address)
    });
    let proxy_protocol = section.value("proxy_protocol", proxy_protocol);
    section.close();
    Some(Listener { address: address?, proxy_protocol: proxy_protocol? })
}

fn proxy_protocol(field: Field<'_>) -> Option<HeaderSenders> {
    if !field.is_map() {
        let on = field.boolean()?;
        return Some(if on { HeaderSenders::Anyone } else { HeaderSenders::Nobody });
    }
    let section = field.section(&PROXY_PROTOCOL)?;
    let from = section.need("from").and_then(|field| {
        let members = field.list()?;
        if members.is_empty() {
            field.must("have at least one network");
            return None;
        }
        all(members, |member| member.network())
    });
    section.close();
    Some(HeaderSenders::Networks(from?))
}

//! Reads `listeners`, or `listen` for a single one: the addresses on which requests arrive.

use std::net::SocketAddr;

use super::key::{BOOLEAN, Key, Mapping, SOCKET_ADDRESS, unconstrained};
use super::reader::{Field, Section, all};

/// An address on which requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    pub address: SocketAddr,
    /// Whether every connection begins with a PROXY protocol header.
    pub proxy_protocol: bool,
}

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
            BOOLEAN,
            "false",
            "Whether every connection begins with a PROXY protocol header, which names the client. Then only the load \
             balancer may be able to reach this address.",
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
        (address, None) => Some(vec![Listener { address, proxy_protocol: false }]),
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
        let address = field.socket_address()?;
        // Port 0 is another port each time.
        if address.port() != 0 && taken.contains(&address) {
            field.wrong(format_args!("must be unique, `{address}` is taken"), None);
            return None;
        }
        taken.push(address);
        Some(address)
    });
    let proxy_protocol = section.value("proxy_protocol", |field| field.boolean());
    section.close();
    Some(Listener { address: address?, proxy_protocol: proxy_protocol? })
}

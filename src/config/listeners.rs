//! Reads where requests come in: `listeners`, or `listen`, which is short for one of them.

use std::net::SocketAddr;

use super::Listener;
use super::document::{optional, or_default};
use super::reader::{Field, Section, all};

pub fn listeners(file: &Section<'_>) -> Option<Vec<Listener>> {
    let listen = optional(file.get("listen"), |field| field.socket_address());
    let listeners = optional(file.get("listeners"), |field| several(&field));
    if file.has("listen") {
        file.unwanted("listeners", "must not stand beside `listen`, which is short for one listener");
    }
    match (listen?, listeners?) {
        (None, Some(listeners)) => Some(listeners),
        (Some(_), Some(_)) => None,
        (address, None) => {
            let address = address.unwrap_or(([0, 0, 0, 0], 8080).into());
            Some(vec![Listener { address, proxy_protocol: false }])
        }
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
    let section = field.section()?;
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
    let proxy_protocol = or_default(section.get("proxy_protocol"), false, |field| field.boolean());
    section.close();
    Some(Listener { address: address?, proxy_protocol: proxy_protocol? })
}

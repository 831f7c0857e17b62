//! Bounds the open connections of each client, by the address that a connection has before any request is read.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::auth::client_ip::Settings as ClientIp;
use crate::config::Bounds;
use crate::limit::request::ClientAddress;

/// By client. There are no more entries than open connections.
#[derive(Debug, Default)]
pub struct PerClientConnections(Mutex<HashMap<IpAddr, usize>>);

/// Counts one connection of a client, until it is dropped.
#[derive(Debug)]
pub struct ClientGuard {
    clients: Arc<PerClientConnections>,
    client: IpAddr,
}

/// Whether a client has more connections than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    Within,
    Exceeded,
}

impl PerClientConnections {
    /// Counts a connection from `peer`, and says whether its client had fewer before than it may. A trusted proxy connects
    /// for many clients, and has no limit.
    pub fn count(
        self: &Arc<PerClientConnections>,
        peer: IpAddr,
        client_ip: &ClientIp,
        bounds: &Bounds,
    ) -> (ClientGuard, Share) {
        let (guard, before) = self.add(ClientAddress::new(peer, client_ip.ipv6_prefix));
        let is_beyond = bounds.connections_per_client.is_some_and(|most| before >= most);
        (guard, if is_beyond && !client_ip.trusts(peer) { Share::Exceeded } else { Share::Within })
    }

    /// Also returns how many connections the client had before.
    fn add(self: &Arc<PerClientConnections>, client: ClientAddress) -> (ClientGuard, usize) {
        let client = client.identity();
        let mut clients = self.0.lock();
        let open = clients.entry(client).or_default();
        let before = *open;
        *open += 1;
        (ClientGuard { clients: Arc::clone(self), client }, before)
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.clients.0.lock().entry(self.client) {
            match *open.get() {
                0 | 1 => drop(open.remove()),
                many => *open.get_mut() = many - 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_of_a_client_is_removed_with_its_last_connection() {
        let clients = Arc::new(PerClientConnections::default());
        let add = |address: &str| clients.add(ClientAddress::new(address.parse().unwrap(), 64));
        let (first, before) = add("2001:db8::1");
        assert_eq!(before, 0);
        let (second, before) = add("2001:db8::ffff");
        assert_eq!(before, 1, "one IPv6 network is one client");
        assert_eq!(add("2001:db8:0:1::1").1, 0);
        let (plain, before) = add("192.0.2.1");
        assert_eq!(before, 0);
        let (mapped, before) = add("::ffff:192.0.2.1");
        assert_eq!(before, 1, "an IPv4-mapped address is the same client");
        drop((first, plain));
        assert_eq!((add("2001:db8::2").1, add("192.0.2.1").1), (1, 1), "closed connections still count");
        drop((second, mapped));
        assert!(clients.0.lock().is_empty());
    }
}

//! Counts the open connections of each client, as far as a connection tells who that is.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::limit::request::ClientAddress;

/// No more of them than there are connections.
#[derive(Debug, Default)]
pub struct PerClientConnections(Mutex<HashMap<IpAddr, usize>>);

/// One connection of a client, until this goes.
#[derive(Debug)]
pub struct ClientGuard {
    clients: Arc<PerClientConnections>,
    identity: IpAddr,
}

impl PerClientConnections {
    /// And how many the client had before.
    pub fn add(self: &Arc<PerClientConnections>, client: ClientAddress) -> (ClientGuard, usize) {
        let identity = client.identity();
        let mut all = self.0.lock();
        let open = all.entry(identity).or_default();
        let before = *open;
        *open += 1;
        (ClientGuard { clients: Arc::clone(self), identity }, before)
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.clients.0.lock().entry(self.identity) {
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
    fn a_client_whose_connections_are_closed_is_forgotten() {
        let clients = Arc::new(PerClientConnections::default());
        let add = |address: &str| clients.add(ClientAddress::new(address.parse().unwrap(), 64));
        let (first, before) = add("2001:db8::1");
        assert_eq!(before, 0);
        let (second, before) = add("2001:db8::ffff");
        assert_eq!(before, 1, "one network is one client");
        assert_eq!(add("2001:db8:0:1::1").1, 0);
        let (plain, before) = add("192.0.2.1");
        assert_eq!(before, 0);
        let (mapped, before) = add("::ffff:192.0.2.1");
        assert_eq!(before, 1, "in IPv6 form it is the same");
        drop((first, plain));
        assert_eq!((add("2001:db8::2").1, add("192.0.2.1").1), (1, 1), "those that were closed are gone");
        drop((second, mapped));
        assert!(clients.0.lock().is_empty());
    }
}

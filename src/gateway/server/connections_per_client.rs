//! Bounds the open connections of each client address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::connection_guard::CountGuard;
use config::Bounds;
use request::client_address::ClientAddress;

use crate::gateway::runtime::response_buffers::HeldForClient;

/// The number of open connections of each client. Only clients with an open connection have an entry.
#[derive(Debug, Default)]
pub(super) struct PerClientConnections(Mutex<HashMap<IpAddr, Client>>);

#[derive(Debug, Default)]
struct Client {
    connections: usize,
    streams: Arc<AtomicUsize>,
    handshakes: Arc<AtomicUsize>,
    unread: HeldForClient,
}

/// Counts one connection of a client until the guard is dropped.
#[derive(Debug)]
pub struct ClientGuard {
    clients: Arc<PerClientConnections>,
    client: IpAddr,
    /// The number of streams on all connections of the client.
    streams: Arc<AtomicUsize>,
    /// The number of TLS handshakes with the client that are under way.
    handshakes: Arc<AtomicUsize>,
    /// The bytes of the client's responses that are held in memory.
    unread: HeldForClient,
}

/// Whether a client's connections, or its streams, are within the limit for one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    Within,
    Exceeded,
}

impl PerClientConnections {
    /// Counts a connection of `client`. Also returns whether the client already had as many connections as allowed.
    pub(super) fn count(
        self: &Arc<PerClientConnections>,
        client: ClientAddress,
        bounds: &Bounds,
    ) -> (ClientGuard, Share) {
        let (guard, before) = self.add(client);
        let is_beyond = bounds.connections_per_client.is_some_and(|most| before >= most);
        (guard, if is_beyond { Share::Exceeded } else { Share::Within })
    }

    /// Adds a connection. Also returns the number of connections that the client had before.
    fn add(self: &Arc<PerClientConnections>, client: ClientAddress) -> (ClientGuard, usize) {
        let client = client.identity();
        let mut clients = self.0.lock();
        let open = clients.entry(client).or_default();
        let before = open.connections;
        open.connections += 1;
        let (streams, handshakes) = (Arc::clone(&open.streams), Arc::clone(&open.handshakes));
        let unread = open.unread.clone();
        (ClientGuard { clients: Arc::clone(self), client, streams, handshakes, unread }, before)
    }
}

impl ClientGuard {
    /// Counts an HTTP/2 stream for the client, on any of its connections. Each call must be followed by
    /// [`ClientGuard::end_stream`].
    ///
    /// # Errors
    /// If the client already had `most` streams. The new stream is not counted then.
    pub fn begin_stream(&self, most: usize) -> Result<(), Share> {
        if self.streams.fetch_add(1, Ordering::Relaxed) < most {
            return Ok(());
        }
        self.end_stream();
        Err(Share::Exceeded)
    }

    /// Counts a TLS handshake with the client. `None` if `most` handshakes with the client are already under way.
    pub fn begin_handshake(&self, most: usize) -> Option<CountGuard> {
        CountGuard::new(&self.handshakes, most)
    }

    /// Returns the counter of response bytes that the client has not read, on all of its connections.
    pub fn unread(&self) -> &HeldForClient {
        &self.unread
    }

    pub fn end_stream(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.clients.0.lock().entry(self.client) {
            match open.get().connections {
                0 | 1 => drop(open.remove()),
                many => open.get_mut().connections = many - 1,
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
        let third = add("2001:db8::3").0;
        assert_eq!((second.begin_stream(2), third.begin_stream(2)), (Ok(()), Ok(())));
        assert_eq!(second.begin_stream(2), Err(Share::Exceeded), "streams of all its connections are one number");
        assert_eq!(mapped.begin_stream(2), Ok(()));
        third.end_stream();
        assert_eq!(second.begin_stream(2), Ok(()));
        drop((second, mapped, third));
        assert!(clients.0.lock().is_empty());
    }
}

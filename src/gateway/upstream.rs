//! Knows where the upstream is: its name, looked up again and again in the background, as addresses to connect to.
//!
//! Requests go to one address at a time. When it refuses a connection the next one is tried, and stays preferred.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora::upstreams::peer::{HttpPeer, PeerOptions};
use tokio::sync::watch;

use crate::config;

/// How often a name is looked up again.
const REFRESH: Duration = Duration::from_secs(30);
/// How soon, as long as it has never been found.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Upstream {
    host: String,
    port: u16,
    timeouts: config::UpstreamTimeouts,
    peers: ArcSwap<Vec<HttpPeer>>,
    /// Counts up; the remainder is the place of the address in use.
    preferred: AtomicUsize,
    /// Whether the first look-up has ended, well or not.
    looked_up: watch::Sender<bool>,
}

impl Upstream {
    pub fn new(upstream: &config::Upstream, timeouts: config::UpstreamTimeouts) -> Upstream {
        let (looked_up, _) = watch::channel(false);
        let new = Upstream {
            host: upstream.host.clone(),
            port: upstream.port,
            timeouts,
            peers: ArcSwap::default(),
            preferred: AtomicUsize::new(0),
            looked_up,
        };
        if let Ok(address) = upstream.host.parse::<IpAddr>() {
            new.settle(&[SocketAddr::new(address, upstream.port)]);
        }
        new
    }

    /// An address to connect to, and how many there are.
    pub fn known_peer(&self) -> Option<(Box<HttpPeer>, usize)> {
        let peers = self.peers.load();
        let place = self.preferred.load(Ordering::Relaxed).checked_rem(peers.len())?;
        Some((Box::new(peers.get(place)?.clone()), peers.len()))
    }

    /// Waits for the first look-up, if that is still under way.
    pub async fn first_peer(&self) -> Option<(Box<HttpPeer>, usize)> {
        let mut looked_up = self.looked_up.subscribe();
        let first = looked_up.wait_for(|done| *done);
        let _ = pingora::time::timeout(self.timeouts.connect.into(), first).await;
        self.known_peer()
    }

    /// Prefers the address behind `peer`, which could not be connected to.
    pub fn avoid(&self, peer: &HttpPeer) {
        let peers = self.peers.load();
        let preferred = self.preferred.load(Ordering::Relaxed);
        let current = preferred.checked_rem(peers.len()).and_then(|place| peers.get(place));
        // Of many requests that meet the same refusal, one moves on.
        if current.is_some_and(|current| current._address == peer._address) {
            let next = preferred.wrapping_add(1);
            let _ = self.preferred.compare_exchange(preferred, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Looks the name up for ever; returns at once for an address.
    pub async fn keep_looking_up(&self) {
        if self.host.parse::<IpAddr>().is_ok() {
            return;
        }
        let mut known: Vec<SocketAddr> = Vec::new();
        loop {
            match tokio::net::lookup_host((&*self.host, self.port)).await {
                Ok(found) => {
                    let mut found: Vec<_> = found.collect();
                    found.dedup();
                    // Resolvers turn the order around at will; which address is in use stays.
                    let same = found.len() == known.len() && found.iter().all(|address| known.contains(address));
                    if !found.is_empty() && !same {
                        log::info!(host = self.host, addresses:? = found; "upstream resolved");
                        self.settle(&found);
                        known = found;
                    }
                }
                // The last good addresses stay.
                Err(error) => log::warn!(host = self.host, error:% = error; "upstream not resolved"),
            }
            self.looked_up.send_replace(true);
            tokio::time::sleep(if known.is_empty() { RETRY } else { REFRESH }).await;
        }
    }

    fn settle(&self, addresses: &[SocketAddr]) {
        let peer = |address: &SocketAddr| {
            let mut peer = HttpPeer::new(address, false, String::new());
            peer.options = self.options();
            peer
        };
        self.peers.store(Arc::new(addresses.iter().map(peer).collect()));
    }

    fn options(&self) -> PeerOptions {
        let mut options = PeerOptions::new();
        options.connection_timeout = Some(self.timeouts.connect.into());
        options.total_connection_timeout = Some(self.timeouts.connect.into());
        options.read_timeout = Some(self.timeouts.read.into());
        options.write_timeout = Some(self.timeouts.write.into());
        options.idle_timeout = Some(self.timeouts.idle.into());
        options
    }
}

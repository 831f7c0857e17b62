//! Knows where the upstream is: its name, looked up again and again in the background, as addresses to connect to.
//!
//! Requests go to one address at a time. When it refuses a connection the next one is tried, and stays preferred.

pub mod read_timeout;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora::upstreams::peer::{HttpPeer, PeerOptions};
use tokio::sync::watch;

use crate::base::time;
use crate::config;

/// How often a name is looked up again.
const REFRESH: Duration = Duration::from_secs(30);
/// How soon, as long as it has never been found.
const RETRY: Duration = Duration::from_secs(1);
/// What a narrow connection may have received that was not read; the kernel doubles it for what it needs itself.
const NARROW: usize = 8 << 10;

/// How much of an answer may come before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// As much as the kernel finds good.
    Whole,
    /// Little, so that an answer which nobody takes is not read far ahead. Slow over a distance.
    Narrow,
}

#[derive(Debug)]
pub struct Upstream {
    wanted: config::Upstream,
    timeouts: config::UpstreamTimeouts,
    known: ArcSwap<Known>,
    /// Counts up; the remainder is the place of the address in use.
    preferred: AtomicUsize,
    /// Whether the first look-up has ended, well or not.
    looked_up: watch::Sender<bool>,
    /// Whether somebody keeps looking it up, or nobody needs to.
    begun: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    addresses: Vec<SocketAddr>,
    /// One for each address, and its twin whose connections are narrow.
    peers: Vec<(HttpPeer, HttpPeer)>,
}

impl Upstream {
    pub fn new(upstream: &config::Upstream, timeouts: config::UpstreamTimeouts) -> Upstream {
        let (looked_up, _) = watch::channel(false);
        let new = Upstream {
            wanted: upstream.clone(),
            timeouts,
            known: ArcSwap::default(),
            preferred: AtomicUsize::new(0),
            looked_up,
            begun: AtomicBool::new(false),
        };
        if let Ok(address) = upstream.host.parse::<IpAddr>() {
            new.settle(vec![SocketAddr::new(address, upstream.port)]);
            new.begun.store(true, Ordering::Relaxed);
        }
        new
    }

    /// What to use from here on: the same where nothing has changed. What is known of a name stays known.
    pub fn changed(
        self: &Arc<Upstream>,
        upstream: &config::Upstream,
        timeouts: config::UpstreamTimeouts,
    ) -> Arc<Upstream> {
        if self.wanted == *upstream && self.timeouts == timeouts {
            return Arc::clone(self);
        }
        let new = Upstream::new(upstream, timeouts);
        let addresses = &self.known.load().addresses;
        if self.wanted == *upstream && !addresses.is_empty() {
            new.settle(addresses.clone());
            new.preferred.store(self.preferred.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Arc::new(new)
    }

    /// The host name or address of the configuration.
    pub fn host(&self) -> &str {
        &self.wanted.host
    }

    pub fn port(&self) -> u16 {
        self.wanted.port
    }

    /// Whether this needs somebody who keeps looking it up. That is said once.
    pub fn begin(&self) -> bool {
        !self.begun.swap(true, Ordering::Relaxed)
    }

    /// An address to connect to, and how many there are.
    pub fn known_peer(&self, window: Window) -> Option<(Box<HttpPeer>, usize)> {
        let peers = &self.known.load().peers;
        let place = self.preferred.load(Ordering::Relaxed).checked_rem(peers.len())?;
        let (whole, narrow) = peers.get(place)?;
        let peer = match window {
            Window::Whole => whole,
            Window::Narrow => narrow,
        };
        Some((Box::new(peer.clone()), peers.len()))
    }

    /// Waits for the first look-up, if that is still under way.
    pub async fn first_peer(&self, window: Window) -> Option<(Box<HttpPeer>, usize)> {
        let mut looked_up = self.looked_up.subscribe();
        let first = looked_up.wait_for(|done| *done);
        let _ = time::timeout(self.timeouts.connect.into(), first).await;
        self.known_peer(window)
    }

    /// Prefers the address behind `peer`, which could not be connected to.
    pub fn avoid(&self, peer: &HttpPeer) {
        let peers = &self.known.load().peers;
        let preferred = self.preferred.load(Ordering::Relaxed);
        let current = preferred.checked_rem(peers.len()).and_then(|place| peers.get(place));
        // Of many requests that meet the same refusal, one moves on.
        if current.is_some_and(|(current, _)| current._address == peer._address) {
            let next = preferred.wrapping_add(1);
            let _ = self.preferred.compare_exchange(preferred, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Goes on with what a look-up has found. How long to wait before the next one.
    fn take_up(&self, found: io::Result<Vec<SocketAddr>>) -> Duration {
        let host = &self.wanted.host;
        match found {
            Ok(mut found) => {
                found.dedup();
                let known = self.known.load();
                // Resolvers turn the order around at will; which address is in use stays.
                let same =
                    found.len() == known.addresses.len() && found.iter().all(|one| known.addresses.contains(one));
                if !found.is_empty() && !same {
                    log::info!(host, addresses:? = found; "upstream resolved");
                    self.settle(found);
                }
            }
            // The last good addresses stay.
            Err(error) => log::warn!(host, error:% = error; "upstream not resolved"),
        }
        self.looked_up.send_replace(true);
        if self.known.load().addresses.is_empty() { RETRY } else { REFRESH }
    }

    fn settle(&self, addresses: Vec<SocketAddr>) {
        let peer = |address: &SocketAddr| {
            let mut peer = HttpPeer::new(address, false, String::new());
            peer.options = self.options();
            let mut narrow = peer.clone();
            narrow.options.tcp_recv_buf = Some(NARROW);
            // In a pool of their own: none is used again once the others are.
            narrow.group_key = 1;
            (peer, narrow)
        };
        let peers = addresses.iter().map(peer).collect();
        self.known.store(Arc::new(Known { addresses, peers }));
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

/// Looks a name up again and again, for as long as anybody uses it.
pub async fn keep_looking_up(upstream: Weak<Upstream>) {
    while let Some(known) = upstream.upgrade() {
        let found = tokio::net::lookup_host((&*known.wanted.host, known.wanted.port)).await;
        let pause = known.take_up(found.map(Iterator::collect));
        drop(known);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_name_leads_to_is_followed_and_kept_when_it_leads_nowhere() {
        let wanted = config::Upstream { host: "name".to_owned(), port: 80 };
        let second = time::Micros(1_000_000);
        let timeouts = config::UpstreamTimeouts { connect: second, read: second, write: second, idle: second };
        let upstream = Upstream::new(&wanted, timeouts);
        let address = |last: u8| SocketAddr::from(([192, 0, 2, last], 80));
        let in_use = || upstream.known_peer(Window::Whole).map(|(peer, _)| peer._address.to_string());
        let nowhere = || Err(io::Error::other("no such name"));
        assert_eq!((upstream.take_up(nowhere()), in_use()), (RETRY, None));
        assert_eq!((upstream.take_up(Ok(Vec::new())), in_use()), (RETRY, None));
        assert_eq!(upstream.take_up(Ok(vec![address(1), address(2)])), REFRESH);
        assert_eq!(in_use().as_deref(), Some("192.0.2.1:80"));
        // The one in use refuses; the other stays in use, in whatever order they are found again.
        upstream.avoid(&upstream.known_peer(Window::Whole).unwrap().0);
        for order in [[1, 2], [2, 1]] {
            assert_eq!(upstream.take_up(Ok(order.map(address).to_vec())), REFRESH);
            assert_eq!(in_use().as_deref(), Some("192.0.2.2:80"));
        }
        for lost in [nowhere(), Ok(Vec::new())] {
            assert_eq!((upstream.take_up(lost), in_use().as_deref()), (REFRESH, Some("192.0.2.2:80")));
        }
        upstream.take_up(Ok(vec![address(3)]));
        assert_eq!(in_use().as_deref(), Some("192.0.2.3:80"));
    }
}

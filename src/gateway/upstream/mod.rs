//! The upstream: its name, resolved again and again in the background, and the addresses that it has.
//!
//! Requests go to one address at a time. If it refuses a connection, the next one is tried, and stays preferred.

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

/// The interval between look-ups of a name.
const REFRESH: Duration = Duration::from_secs(30);
/// The interval while the name has never been resolved.
const RETRY: Duration = Duration::from_secs(1);
/// The receive buffer of a narrow connection, in bytes; the kernel doubles it for its own overhead.
const NARROW: usize = 8 << 10;

/// How much of a response the kernel may receive before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// As much as the kernel chooses.
    Whole,
    /// Little, so that little is held of a response whose client does not read it. Slow over a long distance.
    Narrow,
}

#[derive(Debug)]
pub struct Upstream {
    settings: config::Upstream,
    resolved: ArcSwap<Addresses>,
    /// Counts up; its remainder by the number of addresses is the index of the one in use.
    preferred: AtomicUsize,
    /// Whether the first look-up has ended, successfully or not.
    looked_up: watch::Sender<bool>,
    /// Whether a task keeps resolving the name, or none is needed.
    has_resolver: AtomicBool,
}

#[derive(Debug, Default)]
struct Addresses {
    addresses: Vec<SocketAddr>,
    /// For each address: a peer, and the same with narrow connections.
    peers: Vec<(HttpPeer, HttpPeer)>,
}

impl Upstream {
    pub fn new(upstream: &config::Upstream) -> Upstream {
        let (looked_up, _) = watch::channel(false);
        let new = Upstream {
            settings: upstream.clone(),
            resolved: ArcSwap::default(),
            preferred: AtomicUsize::new(0),
            looked_up,
            has_resolver: AtomicBool::new(false),
        };
        if let Ok(address) = upstream.endpoint.host.parse::<IpAddr>() {
            new.set_addresses(vec![SocketAddr::new(address, upstream.endpoint.port)]);
            new.has_resolver.store(true, Ordering::Relaxed);
        }
        new
    }

    /// The upstream for new settings: the same if nothing has changed. The addresses of an unchanged name are kept.
    pub fn reconfigured(self: &Arc<Upstream>, upstream: &config::Upstream) -> Arc<Upstream> {
        if self.settings == *upstream {
            return Arc::clone(self);
        }
        let new = Upstream::new(upstream);
        let addresses = &self.resolved.load().addresses;
        if self.settings.endpoint == upstream.endpoint && !addresses.is_empty() {
            new.set_addresses(addresses.clone());
            new.preferred.store(self.preferred.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Arc::new(new)
    }

    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// The host name or address of the configuration.
    pub fn host(&self) -> &str {
        &self.settings.endpoint.host
    }

    pub fn port(&self) -> u16 {
        self.settings.endpoint.port
    }

    /// What `Host` is in a request to it, without the port if that is the usual one.
    pub fn authority(&self) -> String {
        let config::Endpoint { host, port } = &self.settings.endpoint;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        if *port == 80 { host } else { format!("{host}:{port}") }
    }

    /// Whether the caller has to start a task that keeps resolving the name. `true` at most once.
    pub fn needs_resolver(&self) -> bool {
        !self.has_resolver.swap(true, Ordering::Relaxed)
    }

    /// An address to connect to, and how many there are; `None` before the name has been resolved.
    pub fn resolved_peer(&self, window: Window) -> Option<(Box<HttpPeer>, usize)> {
        let peers = &self.resolved.load().peers;
        let index = self.preferred.load(Ordering::Relaxed).checked_rem(peers.len())?;
        let (whole, narrow) = peers.get(index)?;
        let peer = match window {
            Window::Whole => whole,
            Window::Narrow => narrow,
        };
        Some((Box::new(peer.clone()), peers.len()))
    }

    /// Waits for the first look-up if that has not ended yet, for at most the connection timeout.
    pub async fn first_peer(&self, window: Window) -> Option<(Box<HttpPeer>, usize)> {
        let mut looked_up = self.looked_up.subscribe();
        let first = looked_up.wait_for(|done| *done);
        let _ = time::timeout(self.settings.timeouts.connect.into(), first).await;
        self.resolved_peer(window)
    }

    /// Prefers the address after that of `peer`, which could not be connected to.
    pub fn avoid(&self, peer: &HttpPeer) {
        let peers = &self.resolved.load().peers;
        let preferred = self.preferred.load(Ordering::Relaxed);
        let current = preferred.checked_rem(peers.len()).and_then(|index| peers.get(index));
        // Of many requests that fail to connect at the same time, one moves on.
        if current.is_some_and(|(current, _)| current._address == peer._address) {
            let next = preferred.wrapping_add(1);
            let _ = self.preferred.compare_exchange(preferred, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Uses the result of a look-up. Returns how long to wait before the next one.
    fn apply_lookup(&self, found: io::Result<Vec<SocketAddr>>) -> Duration {
        let host = self.host();
        match found {
            Ok(mut found) => {
                found.dedup();
                let resolved = self.resolved.load();
                // Resolvers rotate the order; the address in use stays in use.
                let same = found.len() == resolved.addresses.len()
                    && found.iter().all(|address| resolved.addresses.contains(address));
                if !found.is_empty() && !same {
                    log::info!(host, addresses:? = found; "upstream resolved");
                    self.set_addresses(found);
                }
            }
            // The addresses that were resolved last stay in use.
            Err(error) => log::warn!(host, error:% = error; "upstream not resolved"),
        }
        self.looked_up.send_replace(true);
        if self.resolved.load().addresses.is_empty() { RETRY } else { REFRESH }
    }

    fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        let peer = |address: &SocketAddr| {
            let mut peer = HttpPeer::new(address, false, String::new());
            peer.options = self.options();
            let mut narrow = peer.clone();
            narrow.options.tcp_recv_buf = Some(NARROW);
            // In a pool of its own: a narrow connection is not reused for a wide one.
            narrow.group_key = 1;
            (peer, narrow)
        };
        let peers = addresses.iter().map(peer).collect();
        self.resolved.store(Arc::new(Addresses { addresses, peers }));
    }

    fn options(&self) -> PeerOptions {
        let mut options = PeerOptions::new();
        options.connection_timeout = Some(self.settings.timeouts.connect.into());
        options.total_connection_timeout = Some(self.settings.timeouts.connect.into());
        options.read_timeout = Some(self.settings.timeouts.read.into());
        options.write_timeout = Some(self.settings.timeouts.write.into());
        options.idle_timeout = Some(self.settings.timeouts.idle.into());
        options
    }
}

/// Resolves the name of `upstream` again and again, until it is dropped.
pub async fn keep_resolving(weak: Weak<Upstream>) {
    keep_resolving_with(weak, async |host, port| Ok(tokio::net::lookup_host((host, port)).await?.collect())).await;
}

/// As [`keep_resolving`], by `look_up`.
async fn keep_resolving_with(weak: Weak<Upstream>, look_up: impl AsyncFn(&str, u16) -> io::Result<Vec<SocketAddr>>) {
    while let Some(upstream) = weak.upgrade() {
        let found = look_up(upstream.host(), upstream.port()).await;
        let pause = upstream.apply_lookup(found);
        drop(upstream);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    fn settings(host: &str, port: u16) -> config::Upstream {
        let second = time::Micros(1_000_000);
        config::Upstream {
            name: "default".to_owned(),
            endpoint: config::Endpoint { host: host.to_owned(), port },
            timeouts: config::UpstreamTimeouts { connect: second, read: second, write: second, idle: second },
        }
    }

    #[test]
    fn an_authority_is_written_as_in_a_url() {
        for (host, port, authority) in [
            ("a", 80, "a"),
            ("a", 81, "a:81"),
            ("192.0.2.1", 9000, "192.0.2.1:9000"),
            ("::1", 80, "[::1]"),
            ("::1", 81, "[::1]:81"),
        ] {
            let upstream = Upstream::new(&settings(host, port));
            assert_eq!(upstream.authority(), authority);
        }
    }

    #[test]
    fn addresses_follow_the_name_and_stay_when_it_cannot_be_resolved() {
        let upstream = Upstream::new(&settings("name", 80));
        let address = |last: u8| SocketAddr::from(([192, 0, 2, last], 80));
        let in_use = || upstream.resolved_peer(Window::Whole).map(|(peer, _)| peer._address.to_string());
        let failed = || Err(io::Error::other("no such name"));
        assert_eq!((upstream.apply_lookup(failed()), in_use()), (RETRY, None));
        assert_eq!((upstream.apply_lookup(Ok(Vec::new())), in_use()), (RETRY, None));
        assert_eq!(upstream.apply_lookup(Ok(vec![address(1), address(2)])), REFRESH);
        assert_eq!(in_use().as_deref(), Some("192.0.2.1:80"));
        // The one in use refuses connections; the other is used from then on, in whatever order they are resolved again.
        upstream.avoid(&upstream.resolved_peer(Window::Whole).unwrap().0);
        for order in [[1, 2], [2, 1]] {
            assert_eq!(upstream.apply_lookup(Ok(order.map(address).to_vec())), REFRESH);
            assert_eq!(in_use().as_deref(), Some("192.0.2.2:80"));
        }
        for unresolved in [failed(), Ok(Vec::new())] {
            assert_eq!((upstream.apply_lookup(unresolved), in_use().as_deref()), (REFRESH, Some("192.0.2.2:80")));
        }
        upstream.apply_lookup(Ok(vec![address(3)]));
        assert_eq!(in_use().as_deref(), Some("192.0.2.3:80"));
    }
    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_every_thirty_seconds_and_every_second_until_it_has_been_resolved() {
        let upstream = Arc::new(Upstream::new(&settings("name", 80)));
        let in_use = || upstream.resolved_peer(Window::Whole).map(|(peer, _)| peer._address.to_string());
        let (begun, lookups) = (tokio::time::Instant::now(), Mutex::new(Vec::new()));
        let look_up = async |host: &str, port: u16| {
            let mut lookups = lookups.lock();
            lookups.push((begun.elapsed().as_secs(), in_use()));
            // The third and the fifth are answered.
            match lookups.len() {
                number @ (3 | 5) => Ok(vec![SocketAddr::from(([192, 0, 2, u8::try_from(number).unwrap()], port))]),
                _ => Err(io::Error::other(format!("no such name: {host}"))),
            }
        };
        let keep = keep_resolving_with(Arc::downgrade(&upstream), look_up);
        assert!(tokio::time::timeout(Duration::from_secs(100), keep).await.is_err());
        let [third, fifth] = [3, 5].map(|last| Some(format!("192.0.2.{last}:80")));
        let expected = [(0, None), (1, None), (2, None), (32, third.clone()), (62, third), (92, fifth)];
        assert_eq!(*lookups.lock(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn the_name_of_an_unused_upstream_is_not_resolved() {
        let upstream = Mutex::new(Some(Arc::new(Upstream::new(&settings("name", 80)))));
        let weak = Arc::downgrade(upstream.lock().as_ref().unwrap());
        let look_up = async |_: &str, _| {
            // As a reload does.
            drop(upstream.lock().take());
            Err(io::Error::other("no such name"))
        };
        tokio::time::timeout(Duration::from_secs(60), keep_resolving_with(weak, look_up)).await.unwrap();
    }
}

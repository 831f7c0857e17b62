//! Resolves the names of an upstream's endpoints repeatedly.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Upstream;
use super::endpoint::WeightedAddress;
use super::join_all::join_all;
use base::endpoint_address::EndpointAddress;
use base::interval::fixed_interval;

/// The interval between look-ups of a name.
const REFRESH: Duration = Duration::from_secs(30);
/// The interval between look-ups while a name of the upstream has not been resolved yet.
const RETRY: Duration = Duration::from_secs(1);

/// The number of shares of one endpoint's weight. Up to 12 addresses can share this number without a remainder.
const SHARES: u64 = 27_720;

/// The known addresses of an upstream, for each endpoint of its configuration.
#[derive(Debug)]
pub(super) struct Addresses(Vec<EndpointAddresses>);

#[derive(Debug)]
struct EndpointAddresses {
    settings: config::Endpoint,
    is_name: bool,
    /// The known addresses. They are sorted, because a resolver may return the same addresses in another order. Empty
    /// before the name has been resolved.
    known: Vec<EndpointAddress>,
}

impl Addresses {
    /// Makes the addresses for new settings. Host names that were resolved for `before`, the previous upstream, keep their
    /// addresses.
    pub(super) fn new(settings: &config::Upstream, before: Option<&Upstream>) -> Addresses {
        let endpoint = |endpoint: &config::Endpoint| {
            let address = match &endpoint.socket {
                Some(path) => Some(EndpointAddress::Unix(Arc::clone(path))),
                None => endpoint.host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, endpoint.port).into()),
            };
            let resolved = before.map(|before| before.addresses.lock().of(&endpoint.host, endpoint.port));
            EndpointAddresses {
                settings: endpoint.clone(),
                is_name: address.is_none(),
                known: address.map_or_else(|| resolved.unwrap_or_default(), |address| vec![address]),
            }
        };
        Addresses(settings.endpoints.iter().map(endpoint).collect())
    }

    pub(super) fn needs_no_resolver(&self) -> bool {
        self.0.iter().all(|one| !one.is_name)
    }

    /// Returns the known addresses of a name.
    fn of(&self, host: &str, port: u16) -> Vec<EndpointAddress> {
        let is_same = |one: &&EndpointAddresses| one.is_name && one.settings.host == host && one.settings.port == port;
        let same = self.0.iter().find(is_same);
        same.map(|one| one.known.clone()).unwrap_or_default()
    }

    /// Returns each address once, with its weight. The addresses of an endpoint share the endpoint's weight equally. If several
    /// endpoints have the same address, their shares are added.
    pub(super) fn weighted(&self) -> Vec<WeightedAddress> {
        let mut weighted: Vec<WeightedAddress> = Vec::new();
        for one in &self.0 {
            let count = u64::try_from(one.known.len()).unwrap_or(u64::MAX).max(1);
            let share = (u64::from(one.settings.weight) * SHARES / count).max(1);
            for address in &one.known {
                match weighted.iter_mut().find(|known| known.address == *address) {
                    Some(known) => known.weight += share,
                    None => weighted.push(WeightedAddress {
                        address: address.clone(),
                        scheme: one.settings.scheme,
                        host: one.settings.host.clone(),
                        weight: share,
                    }),
                }
            }
        }
        weighted
    }
}

impl Upstream {
    /// Returns the names to resolve: the index of the endpoint in the configuration, the host and the port.
    fn names(&self) -> Vec<(usize, String, u16)> {
        let addresses = self.addresses.lock();
        let named = addresses.0.iter().enumerate().filter(|(_, one)| one.is_name);
        named.map(|(index, one)| (index, one.settings.host.clone(), one.settings.port)).collect()
    }

    fn apply_lookup(&self, index: usize, found: io::Result<Vec<SocketAddr>>) {
        let mut addresses = self.addresses.lock();
        let Some(one) = addresses.0.get_mut(index) else { return };
        let (upstream, host) = (self.name(), &*one.settings.host);
        match found {
            Ok(mut found) => {
                found.sort_unstable();
                found.dedup();
                let known: Vec<EndpointAddress> = found.iter().copied().map(EndpointAddress::Inet).collect();
                if !found.is_empty() && known != one.known {
                    log::info!(upstream, host, addresses:? = found; "upstream resolved");
                    one.known = known;
                    drop(addresses);
                    self.rebuild(&self.pool.load());
                }
            }
            // The addresses of the last successful lookup stay in use.
            Err(error) => log::warn!(upstream, host, error:% = error; "upstream not resolved"),
        }
    }

    /// Notes that all names have been looked up. Returns how long to wait before the next lookups.
    fn end_lookups(&self) -> Duration {
        self.looked_up.send_replace(true);
        if self.addresses.lock().0.iter().any(|one| one.known.is_empty()) {
            RETRY
        } else {
            fixed_interval("resolve", REFRESH)
        }
    }
}

/// Resolves the host names of an upstream repeatedly, until the upstream is dropped. Logs a warning if a name resolves to one
/// of `listeners`.
pub(super) async fn keep_resolving(weak: Weak<Upstream>, listeners: Vec<SocketAddr>) {
    keep_resolving_with(weak, &listeners, async |host, port| {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    })
    .await;
}

/// Warns if a name leads to one of the gateway's own listeners.
fn warn_of_own_listener(host: &str, found: &[SocketAddr], listeners: &[SocketAddr]) {
    if let Some(address) = found.iter().find(|address| listeners.iter().any(|own| is_own(**address, *own))) {
        let hint = "its requests would come back: let the name lead to the server that answers them";
        log::warn!(host, address:%, hint; "name of an upstream leads to this gateway");
    }
}

/// Whether a connection to `address` arrives at a listener.
fn is_own(address: SocketAddr, listener: SocketAddr) -> bool {
    let (ip, listened) = (address.ip().to_canonical(), listener.ip().to_canonical());
    // A socket can be bound only to an address of this host.
    let is_of_this_host = || UdpSocket::bind((ip, 0)).is_ok();
    address.port() == listener.port() && (ip == listened || listened.is_unspecified() && is_of_this_host())
}

/// Does the work of [`keep_resolving`] with the resolver `look_up`.
async fn keep_resolving_with(
    weak: Weak<Upstream>,
    listeners: &[SocketAddr],
    look_up: impl AsyncFn(&str, u16) -> io::Result<Vec<SocketAddr>>,
) {
    while let Some(upstream) = weak.upgrade() {
        let names = upstream.names();
        let lookups: Vec<_> = names.iter().map(|(_, host, port)| look_up(host, *port)).collect();
        // All lookups run at the same time, so that a DNS server that does not answer delays only its own names.
        let found = join_all(lookups).await;
        for ((index, host, _), found) in names.into_iter().zip(found) {
            warn_of_own_listener(&host, found.as_deref().unwrap_or_default(), listeners);
            upstream.apply_lookup(index, found);
        }
        let pause = upstream.end_lookups();
        drop(upstream);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::super::{Choice, Turn};
    use super::*;
    use base::time::{Micros, Timestamp};
    use config::{Balance, Retries, UpstreamTimeouts};

    fn endpoint(host: &str, port: u16, weight: u32) -> config::Endpoint {
        config::Endpoint { scheme: config::Scheme::Http, host: host.to_owned(), port, socket: None, weight }
    }

    fn settings(endpoints: Vec<config::Endpoint>) -> config::Upstream {
        let second = Micros(1_000_000);
        config::Upstream {
            name: "default".to_owned(),
            endpoints,
            protocol: config::Protocol::Http1,
            tls: None,
            balance: Balance::RoundRobin,
            timeouts: UpstreamTimeouts {
                connect: second,
                first_byte: None,
                read: second,
                write: second,
                idle: second,
                total: None,
            },
            retries: Retries::DEFAULT,
            ejection: None,
            health: None,
            panic_below: 0,
            max_connections: None,
        }
    }

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 80))
    }

    /// Selects an endpoint for each of `requests` requests. Returns the last byte of each selected address, sorted.
    fn used(upstream: &Upstream, requests: usize) -> Vec<u8> {
        let one = |_| {
            let selected = upstream.select(Choice { turn: Turn::Next, key: None }, |_| false, || Timestamp(1)).ok()?;
            match selected.endpoint.address.inet()?.ip() {
                IpAddr::V4(address) => Some(address.octets()[3]),
                IpAddr::V6(_) => None,
            }
        };
        let mut used: Vec<u8> = (0..requests).filter_map(one).collect();
        used.sort_unstable();
        used
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
            assert_eq!(Upstream::new(&settings(vec![endpoint(host, port, 1)])).authority(), authority);
        }
    }

    #[test]
    fn every_address_of_a_name_is_an_endpoint_and_they_share_the_weight_of_its_line() {
        let upstream = Upstream::new(&settings(vec![endpoint("name", 80, 2), endpoint("192.0.2.9", 80, 1)]));
        assert_eq!(used(&upstream, 2), [9, 9]);
        upstream.apply_lookup(0, Ok(vec![address(2), address(1), address(2)]));
        assert_eq!(used(&upstream, 6), [1, 1, 2, 2, 9, 9]);
        // An address that occurs in two endpoints has the sum of their weights.
        upstream.apply_lookup(0, Ok(vec![address(9)]));
        assert_eq!(upstream.known_addresses(), [address(9)]);
        upstream.apply_lookup(0, Ok((1..=4).map(address).collect()));
        assert_eq!(used(&upstream, 12), [1, 1, 2, 2, 3, 3, 4, 4, 9, 9, 9, 9]);
    }

    #[test]
    fn addresses_follow_the_name_and_stay_when_it_cannot_be_resolved() {
        let upstream = Upstream::new(&settings(vec![endpoint("name", 80, 1)]));
        let failed = || Err(io::Error::other("no such name"));
        upstream.apply_lookup(0, failed());
        assert_eq!((used(&upstream, 1), upstream.end_lookups()), (vec![], RETRY));
        upstream.apply_lookup(0, Ok(Vec::new()));
        assert_eq!((used(&upstream, 1), upstream.end_lookups()), (vec![], RETRY));
        for order in [[1, 2], [2, 1]] {
            upstream.apply_lookup(0, Ok(order.map(address).to_vec()));
            assert_eq!((used(&upstream, 2), upstream.end_lookups()), (vec![1, 2], REFRESH));
        }
        for unresolved in [failed(), Ok(Vec::new())] {
            upstream.apply_lookup(0, unresolved);
            assert_eq!((used(&upstream, 2), upstream.end_lookups()), (vec![1, 2], REFRESH));
        }
        upstream.apply_lookup(0, Ok(vec![address(3)]));
        assert_eq!(used(&upstream, 2), [3, 3]);
    }

    #[test]
    fn a_reload_keeps_the_addresses_of_a_name_and_what_is_known_of_them() {
        let first = Arc::new(Upstream::new(&settings(vec![endpoint("name", 80, 1)])));
        first.apply_lookup(0, Ok(vec![address(1)]));
        assert!(Arc::ptr_eq(&first, &first.reconfigured(&settings(vec![endpoint("name", 80, 1)]))));
        let condition = |upstream: &Upstream| Arc::clone(&upstream.pool.load().endpoints[0].condition);
        let second = first.reconfigured(&settings(vec![endpoint("name", 80, 1), endpoint("192.0.2.7", 80, 1)]));
        assert_eq!(used(&second, 2), [1, 7]);
        assert!(Arc::ptr_eq(&condition(&first), &condition(&second)));
        assert!(second.needs_resolver() && !second.needs_resolver());
        let third = second.reconfigured(&settings(vec![endpoint("192.0.2.7", 80, 1)]));
        assert_eq!(used(&third, 2), [7, 7]);
        assert!(!third.needs_resolver());
    }

    #[test]
    fn an_address_of_this_host_is_a_listener_on_all_addresses() {
        let own = |address: &str, listener: &str| is_own(address.parse().unwrap(), listener.parse().unwrap());
        assert!(own("127.0.0.1:80", "127.0.0.1:80") && own("127.0.0.1:80", "0.0.0.0:80"));
        assert!(!own("127.0.0.1:81", "127.0.0.1:80") && !own("127.0.0.1:80", "127.0.0.2:80"));
        // 192.0.2.1 is an address for documentation (RFC 5737), which no host has.
        assert!(!own("192.0.2.1:80", "0.0.0.0:80") && own("192.0.2.1:80", "192.0.2.1:80"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_every_thirty_seconds_and_every_second_until_it_has_been_resolved() {
        let upstream = Arc::new(Upstream::new(&settings(vec![endpoint("name", 80, 1)])));
        let (begun, lookups) = (tokio::time::Instant::now(), Mutex::new(Vec::new()));
        let look_up = async |host: &str, port: u16| {
            let mut lookups = lookups.lock();
            lookups.push((begun.elapsed().as_secs(), used(&upstream, 1)));
            // The third and the fifth lookup succeed.
            match lookups.len() {
                number @ (3 | 5) => Ok(vec![SocketAddr::from(([192, 0, 2, u8::try_from(number).unwrap()], port))]),
                _ => Err(io::Error::other(format!("no such name: {host}"))),
            }
        };
        let keep = keep_resolving_with(Arc::downgrade(&upstream), &[], look_up);
        assert!(tokio::time::timeout(Duration::from_secs(100), keep).await.is_err());
        let expected = [(0, vec![]), (1, vec![]), (2, vec![]), (32, vec![3]), (62, vec![3]), (92, vec![5])];
        assert_eq!(*lookups.lock(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_slow_to_resolve_does_not_delay_the_others() {
        let upstream = Arc::new(Upstream::new(&settings(vec![endpoint("slow", 80, 1), endpoint("quick", 80, 1)])));
        let look_up = async |host: &str, _| {
            let slow = host == "slow";
            tokio::time::sleep(Duration::from_secs(if slow { 4 } else { 3 })).await;
            Ok(vec![address(u8::from(slow))])
        };
        let keep = keep_resolving_with(Arc::downgrade(&upstream), &[], look_up);
        assert!(tokio::time::timeout(Duration::from_secs(5), keep).await.is_err());
        assert_eq!(used(&upstream, 2), [0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_name_of_an_unused_upstream_is_not_resolved() {
        let upstream = Mutex::new(Some(Arc::new(Upstream::new(&settings(vec![endpoint("name", 80, 1)])))));
        let weak = Arc::downgrade(upstream.lock().as_ref().unwrap());
        let look_up = async |_: &str, _| {
            // Drops the upstream, as a reload does.
            drop(upstream.lock().take());
            Err(io::Error::other("no such name"))
        };
        tokio::time::timeout(Duration::from_secs(60), keep_resolving_with(weak, &[], look_up)).await.unwrap();
    }
}

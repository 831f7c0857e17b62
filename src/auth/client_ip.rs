//! Finds the client's address: the TCP peer, unless that is a proxy which we trust to say on whose behalf it asks.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use ipnet::IpNet;

use crate::limit::request::ClientAddress;

/// Whose word counts, and how much of an IPv6 address is one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub trusted_proxies: Vec<IpNet>,
    pub ipv6_prefix: u8,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { trusted_proxies: Vec::new(), ipv6_prefix: 64 }
    }
}

/// More hops than any honest chain has.
const MAX_HOPS: usize = 32;

impl Settings {
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&address))
    }

    /// From a trusted peer, the right-most address in `X-Forwarded-For` that is not itself trusted. Every hop was written
    /// by the one to its right, so what stands left of something that is no address, or beyond 32 hops, is hearsay: then
    /// it is the last trusted hop that asks.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> ClientAddress {
        ClientAddress::new(self.find(peer, headers), self.ipv6_prefix)
    }

    fn find(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if self.trusted_proxies.is_empty() || !self.trusts(peer) {
            return peer;
        }
        let lines: Vec<&[u8]> = headers.get_all("x-forwarded-for").iter().map(|line| line.as_bytes()).collect();
        let hops = lines.iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b','));
        let mut last = peer;
        for hop in hops.take(MAX_HOPS) {
            match parse_hop(hop) {
                Some(address) if self.trusts(address) => last = address,
                Some(address) => return address,
                None => break,
            }
        }
        last
    }
}

/// `203.0.113.7`, `203.0.113.7:1234`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:1234`.
fn parse_hop(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop.trim_ascii()).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who asks, when 10.0.0.0/8 and fd00::/8 are trusted.
    #[track_caller]
    fn check(peer: &str, forwarded: &[&str], client: &str) {
        let trusted_proxies = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let settings = Settings { trusted_proxies, ipv6_prefix: 64 };
        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append("x-forwarded-for", line.parse().unwrap());
        }
        assert_eq!(settings.find(peer.parse().unwrap(), &headers).to_string(), client, "{peer} {forwarded:?}");
    }

    #[test]
    fn an_untrusted_peer_speaks_for_itself_only() {
        check("203.0.113.7", &[], "203.0.113.7");
        check("203.0.113.7", &["198.51.100.1"], "203.0.113.7");
    }

    #[test]
    fn the_right_most_untrusted_hop_asks() {
        check("10.0.0.1", &["198.51.100.1"], "198.51.100.1");
        check("10.0.0.1", &["1.1.1.1, 198.51.100.1, 10.0.0.2"], "198.51.100.1");
        check("10.0.0.1", &["1.1.1.1", "198.51.100.1", "10.0.0.2,10.0.0.3"], "198.51.100.1");
        check("::ffff:10.0.0.1", &["198.51.100.1"], "198.51.100.1");
        check("fd00::1", &["[2001:db8::1]:443"], "2001:db8::1");
        check("10.0.0.1", &["198.51.100.1:1234"], "198.51.100.1");
        check("10.0.0.1", &["2001:db8::1"], "2001:db8::1");
    }

    #[test]
    fn where_the_chain_breaks_the_last_trusted_hop_asks() {
        check("10.0.0.1", &[], "10.0.0.1");
        check("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3");
        check("10.0.0.1", &["198.51.100.1, unknown"], "10.0.0.1");
        check("10.0.0.1", &["198.51.100.1, unknown, 10.0.0.2"], "10.0.0.2");
        check("10.0.0.1", &[""], "10.0.0.1");
        check("10.0.0.1", &["fe80::1%eth0"], "10.0.0.1");
        check("10.0.0.1", &["999.1.1.1"], "10.0.0.1");
        let long = format!("198.51.100.1{}", ", 10.0.0.9".repeat(32));
        check("10.0.0.1", &[&long], "10.0.0.9");
    }
}

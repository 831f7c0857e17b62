//! Finds the client's address: the TCP peer, or the address that a trusted proxy forwards.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use ipnet::IpNet;

use request::client_address::ClientAddress;

/// The trusted proxies, and the length of the IPv6 prefix that identifies one client.
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

/// The largest number of hops that are read. No honest chain is longer.
const MAX_HOPS: usize = 32;

impl Settings {
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&address))
    }

    /// Returns the address of the client. For a trusted peer, this is the right-most address in `X-Forwarded-For` that
    /// is not itself trusted. Addresses to the left of an invalid address, or beyond the last 32 addresses, are not
    /// used. If all usable addresses are trusted, the client is the last trusted proxy.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> ClientAddress {
        ClientAddress::new(self.find(peer, headers), self.ipv6_prefix)
    }

    /// Returns the address of the client as `client` does, but trusts the peer in any case.
    pub fn client_of_trusted(&self, peer: IpAddr, headers: &HeaderMap) -> ClientAddress {
        ClientAddress::new(self.find_untrusted(peer, headers), self.ipv6_prefix)
    }

    fn find(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if self.trusted_proxies.is_empty() || !self.trusts(peer) {
            return peer;
        }
        self.find_untrusted(peer, headers)
    }

    fn find_untrusted(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
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

/// Whether the last entry of `X-Forwarded-For` is an address. If so, the last proxy has named its client.
pub fn ends_with_address(headers: &HeaderMap) -> bool {
    let line = headers.get_all("x-forwarded-for").iter().next_back();
    let hop = line.and_then(|line| line.as_bytes().rsplit(|byte| *byte == b',').next());
    hop.and_then(parse_hop).is_some()
}

/// Parses a hop: `203.0.113.7`, `203.0.113.7:1234`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:1234`.
///
/// An empty hop is invalid, although RFC 9110 (section 5.6.1) allows it. A proxy that adds an empty address cannot
/// confirm the addresses to its left.
fn parse_hop(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop.trim_ascii()).ok()?;
    // An address with a zone (`fe80::1%eth0`) is invalid, because a zone has a meaning only on one machine.
    if text.contains('%') {
        return None;
    }
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(bracketed) => bracketed.parse().ok().map(IpAddr::V6),
        None => text.parse().ok().or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the client's address, with 10.0.0.0/8 and fd00::/8 trusted.
    #[track_caller]
    fn check(peer: &str, forwarded: &[&str], client: &str) {
        let trusted_proxies = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let settings = Settings { trusted_proxies, ipv6_prefix: 64 };
        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append("x-forwarded-for", http::HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        let found = settings.client(peer.parse().unwrap(), &headers).address();
        assert_eq!(found.to_string(), client, "{peer} {forwarded:?}");
    }

    #[test]
    fn an_untrusted_peer_is_the_client_whatever_it_forwards() {
        check("203.0.113.7", &[], "203.0.113.7");
        check("203.0.113.7", &["198.51.100.1"], "203.0.113.7");
        check("203.0.113.7", &["198.51.100.1, 10.0.0.1"], "203.0.113.7");
        check("::ffff:203.0.113.7", &["198.51.100.1"], "203.0.113.7");
        check("2001:db8::7", &["198.51.100.1"], "2001:db8::7");
        let nobody = Settings::default();
        let headers = HeaderMap::from_iter([(http::header::FORWARDED, "for=198.51.100.1".parse().unwrap())]);
        let peer = "10.0.0.1".parse().unwrap();
        assert_eq!(nobody.client(peer, &headers).address(), peer);
    }

    #[test]
    fn the_right_most_untrusted_hop_is_the_client() {
        check("10.0.0.1", &["198.51.100.1"], "198.51.100.1");
        check("10.0.0.1", &["1.1.1.1, 198.51.100.1"], "198.51.100.1");
        check("10.0.0.1", &["1.1.1.1, 198.51.100.1, 10.0.0.2"], "198.51.100.1");
        check("10.0.0.1", &["10.9.9.9, 198.51.100.1, 10.0.0.2"], "198.51.100.1");
        check("fd00::1", &["2001:db8::1, fd00::2, 10.0.0.2"], "2001:db8::1");
        check("10.0.0.1", &["garbage, 198.51.100.1, 10.0.0.2"], "198.51.100.1");
        check("10.0.0.1", &[", ,198.51.100.1\t,   10.0.0.2"], "198.51.100.1");
    }

    #[test]
    fn a_peer_may_be_trusted_although_no_network_names_it() {
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("x-forwarded-for"),
            "203.0.113.9, 198.51.100.1".parse().unwrap(),
        )]);
        let (settings, peer) = (Settings::default(), "10.0.0.1".parse().unwrap());
        assert_eq!(settings.client(peer, &headers).text(), "10.0.0.1");
        assert_eq!(settings.client_of_trusted(peer, &headers).text(), "198.51.100.1");
    }

    #[test]
    fn several_lines_are_one_list() {
        check("10.0.0.1", &["1.1.1.1", "198.51.100.1", "10.0.0.2,10.0.0.3"], "198.51.100.1");
        check("10.0.0.1", &["198.51.100.1, 10.0.0.2", "10.0.0.3"], "198.51.100.1");
        check("10.0.0.1", &["198.51.100.1", "10.0.0.2, garbage"], "10.0.0.1");
        check("10.0.0.1", &["198.51.100.1, garbage", "10.0.0.2"], "10.0.0.2");
        let lines = vec!["10.0.0.9"; 31];
        check("10.0.0.1", &[&["198.51.100.1"], &lines[..]].concat(), "198.51.100.1");
        check("10.0.0.1", &[&["198.51.100.1"], &lines[..], &["10.0.0.8"]].concat(), "10.0.0.9");
    }

    #[test]
    fn a_hop_may_have_a_port_and_brackets() {
        check("10.0.0.1", &["198.51.100.1:1234"], "198.51.100.1");
        check("10.0.0.1", &["198.51.100.1, 10.0.0.2:443"], "198.51.100.1");
        check("10.0.0.1", &["2001:db8::1"], "2001:db8::1");
        check("10.0.0.1", &["[2001:db8::1]"], "2001:db8::1");
        check("fd00::1", &["[2001:db8::1]:443"], "2001:db8::1");
        check("fd00::1", &["2001:DB8:0:0::1, [fd00::2]:443"], "2001:db8::1");
        // Without brackets, the last part is not a port.
        check("10.0.0.1", &["2001:db8::1:443"], "2001:db8::1:443");
    }

    #[test]
    fn an_ipv4_address_in_ipv6_form_is_that_address_by_its_bits() {
        for mapped in ["::ffff:198.51.100.1", "::ffff:c633:6401", "0:0:0:0:0:FFFF:C633:6401", "[::ffff:198.51.100.1]:1"]
        {
            check("10.0.0.1", &[mapped], "198.51.100.1");
        }
        for trusted in ["::ffff:10.0.0.2", "::ffff:a00:2", "[::ffff:a00:2]:80"] {
            check("10.0.0.1", &[&format!("198.51.100.1, {trusted}")], "198.51.100.1");
        }
        check("::ffff:10.0.0.1", &["198.51.100.1"], "198.51.100.1");
        check("::ffff:a00:1", &["::ffff:10.0.0.3, 10.0.0.2"], "10.0.0.3");
        // A NAT64 address, an IPv4-compatible address, and an address that is only written with dots. None of these
        // addresses counts as IPv4.
        check("10.0.0.1", &["64:ff9b::10.0.0.2"], "64:ff9b::a00:2");
        check("10.0.0.1", &["::10.0.0.2"], "::a00:2");
        check("10.0.0.1", &["2001:db8::10.0.0.2"], "2001:db8::a00:2");
    }

    #[test]
    fn an_unreadable_hop_makes_the_last_trusted_hop_the_client() {
        check("10.0.0.1", &[], "10.0.0.1");
        check("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3");
        check("10.0.0.1", &["198.51.100.1, unknown, 10.0.0.3, 10.0.0.2"], "10.0.0.3");
        let none = [
            "",
            " ",
            "unknown",
            "_obf",
            "_hidden:_port",
            "unix:",
            "localhost",
            "-",
            "*",
            "999.1.1.1",
            "198.51.100",
            // nginx reads these zeros as decimal, but other programs read them as octal.
            "198.51.100.01",
            "3325256705",
            "0xc6336401",
            "198.51.100.1/32",
            "198.51.100.1:",
            "198.51.100.1:x",
            "198.51.100.1:65536",
            "198.51.100.1:80:80",
            "[198.51.100.1]",
            "[198.51.100.1]:80",
            "198.51.100.1]",
            "fe80::1%eth0",
            "[fe80::1%eth0]:80",
            "[fe80::1%1]",
            "[fe80::1%1]:80",
            "[2001:db8::1",
            "2001:db8::1]",
            "[2001:db8::1]80",
            "[2001:db8::1]:",
            "[2001:db8::1]:65536",
            "[2001:db8::1]:+80",
            "198.51.100.1:+80",
            "[[2001:db8::1]]",
            "2001:db8:::1",
            "for=198.51.100.1",
            "\"198.51.100.1\"",
            "198.51.100.1;x",
            "198.51.100.1 203.0.113.9",
            "198.51.100.1\u{e9}",
        ];
        for hop in none {
            check("10.0.0.1", &[hop], "10.0.0.1");
            check("10.0.0.1", &[&format!("203.0.113.9, {hop}, 10.0.0.2")], "10.0.0.2");
            check("10.0.0.1", &["203.0.113.9", hop, "10.0.0.2"], "10.0.0.2");
        }
    }

    #[test]
    fn an_ipv6_client_is_one_client_within_its_prefix() {
        let settings = Settings { trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()], ipv6_prefix: 64 };
        for number in 0..10_000u64 {
            let address = std::net::Ipv6Addr::from((0x2001_0db8_u128 << 96) | u128::from(number * 0x1234_5678_9abc));
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static("x-forwarded-for"),
                address.to_string().parse().unwrap(),
            )]);
            assert_eq!(settings.client("10.0.0.1".parse().unwrap(), &headers).text(), "2001:db8::/64");
        }
    }

    #[test]
    fn at_most_thirty_two_hops_are_read() {
        let chain = |trusted: usize| format!("198.51.100.1{}", ", 10.0.0.9".repeat(trusted));
        check("10.0.0.1", &[&chain(31)], "198.51.100.1");
        check("10.0.0.1", &[&chain(32)], "10.0.0.9");
        check("10.0.0.1", &[&chain(10_000)], "10.0.0.9");
        check("10.0.0.1", &[&"198.51.100.1, ".repeat(10_000)], "10.0.0.1");
        check("10.0.0.1", &[&",".repeat(10_000)], "10.0.0.1");
    }
}

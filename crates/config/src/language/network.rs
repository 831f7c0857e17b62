//! Parses networks like `10.0.0.0/8`.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// Parses a network, such as `10.0.0.0/8`. An IP address alone is a network with one address. `None` if the text is neither.
pub(crate) fn parse(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => Some(IpNet::from(address)),
        Err(_) => text.parse().ok(),
    };
    network.map(canonical)
}

/// Converts a network of IPv4-mapped addresses to IPv4, like addresses of clients.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else { return network };
    let inner = mapped.addr().to_ipv4_mapped().zip(mapped.prefix_len().checked_sub(96));
    inner.and_then(|(address, length)| Ipv4Net::new(address, length).ok()).map_or(network, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_mapped_addresses_is_one_of_ipv4() {
        for (text, network) in [
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:a00:1/128", "10.0.0.1/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8::/96", "2001:db8::/96"),
            ("10.0.0.0/8", "10.0.0.0/8"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), network);
        }
    }
}

//! Defines the address of a client: an IPv4 address, or the prefix of an IPv6 address (`client_ip.ipv6_prefix`).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The address of a client, with the length of the IPv6 prefix that identifies one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    /// An IPv4-mapped IPv6 address is stored as IPv4.
    address: IpAddr,
    ipv6_prefix: u8,
}

impl ClientAddress {
    /// Makes a client address. `ipv6_prefix` is in bits, from 1 to 128.
    pub fn new(address: IpAddr, ipv6_prefix: u8) -> ClientAddress {
        ClientAddress { address: address.to_canonical(), ipv6_prefix }
    }

    /// Returns the whole address, to compare it with networks.
    pub fn address(self) -> IpAddr {
        self.address
    }
}

/// Displays the client as one identity: a whole IPv4 address, or the prefix of an IPv6 address.
impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl ClientAddress {
    /// Returns the same text as `Display`, but takes less time.
    pub fn text(self) -> String {
        match self.identity() {
            IpAddr::V6(address) if self.ipv6_prefix < 128 => format!("{address}/{}", self.ipv6_prefix),
            address => address_text(address),
        }
    }

    /// Returns the address with only the bits that identify one client. The other bits are zero.
    pub fn identity(self) -> IpAddr {
        match self.address {
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.ipv6_prefix)).unwrap_or(0);
                Ipv6Addr::from(u128::from(address) & mask).into()
            }
            address => address,
        }
    }
}

/// Returns the usual text form of an address.
pub fn address_text(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else { return address.to_string() };
    let mut text = String::with_capacity(15);
    let mut digits = itoa::Buffer::new();
    for octet in address.octets() {
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(digits.format(octet));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(address: &str, prefix: u8, identity: &str) {
        assert_eq!(ClientAddress::new(address.parse().unwrap(), prefix).to_string(), identity);
    }

    #[test]
    fn an_ipv6_client_is_its_prefix_and_a_mapped_one_is_ipv4() {
        check("203.0.113.7", 64, "203.0.113.7");
        check("2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64");
        check("2001:db8:1:2:3:4:5:6", 48, "2001:db8:1::/48");
        check("2001:db8:1:2:3:4:5:6", 128, "2001:db8:1:2:3:4:5:6");
        check("::ffff:203.0.113.7", 64, "203.0.113.7");
        check("::ffff:cb00:7107", 64, "203.0.113.7");
    }
}

//! Authentication: client addresses, tokens and API keys.

mod api_keys;
mod client_address;
mod hanging_issuer;
mod jwt_attacks;
mod key_files;
mod key_places;
mod key_sets;
mod proxy_protocol;
mod tokens;

use crate::support::{Client, Gateway};

/// Two requests a day for each client address.
const TWO_A_DAY: &str = "rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 2/day}}]";

const PROXIED: &str = "listeners: [{address: 127.0.0.1:0, proxy_protocol: true}]";

/// Returns a PROXY protocol header of version 1.
fn v1(source: &str) -> Vec<u8> {
    let (family, destination) = if source.contains(':') { ("TCP6", "::1") } else { ("TCP4", "192.0.2.1") };
    format!("PROXY {family} {source} {destination} 56324 443\r\n").into_bytes()
}

/// Returns a PROXY protocol header of version 2.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &length, rest].concat()
}

/// Returns a header of version 2 for an IPv4 or IPv6 client, with additional data after the addresses, as load balancers send
/// it.
fn v2_of(source: &str) -> Vec<u8> {
    let ports_and_more = [0xdc, 0x04, 0x01, 0xbb, 0x03, 0x00, 0x04, 1, 2, 3, 4];
    match source.parse().unwrap() {
        std::net::IpAddr::V4(source) => {
            v2(0x21, 0x11, &[&source.octets()[..], &[192, 0, 2, 1], &ports_and_more].concat())
        }
        std::net::IpAddr::V6(source) => v2(0x21, 0x21, &[&source.octets()[..], &[0; 16], &ports_and_more].concat()),
    }
}

/// Opens a connection as a load balancer does, with this header.
fn proxied(gateway: &Gateway, header: &[u8]) -> Client {
    let mut client = gateway.client();
    client.write_bytes(header).unwrap();
    client
}

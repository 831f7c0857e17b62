//! Finds a listener that has the same address as an earlier listener. The gateway could not bind the second listener.

use crate::language::reader::Field;
use base::endpoint_address::EndpointAddress;
use base::position::Position;

/// The addresses of the listeners that have been read so far. Used to find two listeners with the same address.
#[derive(Debug, Default)]
pub(crate) struct TakenAddresses(Vec<TakenAddress>);

#[derive(Debug)]
struct TakenAddress {
    address: EndpointAddress,
    /// The path of the address's key in the file.
    path: String,
    /// The position of the address in the file. `None` for the default of a missing key.
    position: Option<Position>,
}

impl TakenAddresses {
    /// Adds the address that the value `field` names. `None` after reporting that another listener already has the address.
    pub(crate) fn take(&mut self, field: &Field<'_>, address: &EndpointAddress) -> Option<()> {
        let first = self.0.iter().find(|taken| share(&taken.address, address));
        if let Some(TakenAddress { address: known, path, position }) = first {
            let known = if known == address { "it".to_owned() } else { format!("`{known}`") };
            let place = match position {
                Some(position) => format!("already (line {})", position.line),
                None => "by default".to_owned(),
            };
            field.must(format_args!("be an address of its own, `{path}` has {known} {place}"));
            return None;
        }
        let (address, path) = (address.clone(), field.path().to_owned());
        self.0.push(TakenAddress { address, path, position: Some(field.position()) });
        Some(())
    }

    /// Adds the address that is the default of a missing key.
    pub(crate) fn take_default(&mut self, key: &str, address: &EndpointAddress) {
        self.0.push(TakenAddress { address: address.clone(), path: key.to_owned(), position: None });
    }
}

/// Whether no machine can bind sockets to both addresses. `false` for `[::]` and an IPv4 address, because some machines
/// can.
fn share(one: &EndpointAddress, other: &EndpointAddress) -> bool {
    match (one, other) {
        // With port 0, the kernel chooses a free port, so both sockets can be bound.
        (EndpointAddress::Inet(one), EndpointAddress::Inet(other)) if one.port() == 0 || one.port() != other.port() => {
            false
        }
        (EndpointAddress::Inet(one), EndpointAddress::Inet(other)) => {
            let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
            one == other || (is_any && one.is_ipv4() == other.is_ipv4())
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shared_with_all_addresses_of_its_family() {
        let inet = |text: &str| EndpointAddress::Inet(text.parse().unwrap());
        for (one, other, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("[::]:80", "[::1]:80", true),
            ("[::]:80", "0.0.0.0:80", false),
            ("0.0.0.0:0", "0.0.0.0:0", false),
        ] {
            assert_eq!(share(&inet(one), &inet(other)), expected, "{one} {other}");
            assert_eq!(share(&inet(other), &inet(one)), expected, "{other} {one}");
        }
    }
}

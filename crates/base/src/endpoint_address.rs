//! The address of a listener or an upstream: an IP address with a port, or the path of a Unix domain socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The address of a listener, or of an endpoint of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointAddress {
    Inet(SocketAddr),
    Unix(Arc<Path>),
}

/// The prefix in the text of a Unix domain socket's address. No other address begins with this prefix.
const UNIX: &str = "unix:";

impl EndpointAddress {
    /// Returns the IP address and port. `None` for a Unix domain socket.
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            EndpointAddress::Inet(address) => Some(*address),
            EndpointAddress::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for EndpointAddress {
    fn from(address: SocketAddr) -> EndpointAddress {
        EndpointAddress::Inet(address)
    }
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndpointAddress::Inet(address) => address.fmt(f),
            EndpointAddress::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Serialize for EndpointAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EndpointAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<EndpointAddress, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        match text.strip_prefix(UNIX) {
            Some(path) => Ok(EndpointAddress::Unix(Path::new(path).into())),
            None => text.parse().map(EndpointAddress::Inet).map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in ["\"127.0.0.1:80\"", "\"[::1]:80\"", "\"unix:/run/a.sock\""] {
            let address: EndpointAddress = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&address).unwrap(), text);
        }
        assert!(serde_json::from_str::<EndpointAddress>("\"/run/a.sock\"").is_err());
    }
}

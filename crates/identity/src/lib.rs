//! Authentication: the address of the client, and the identity that its API key or token proves.
//!
//! ```
//! use http::{HeaderMap, HeaderValue};
//! use identity::client_ip::Settings;
//!
//! let settings = Settings { trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()], ..Settings::default() };
//! let mut headers = HeaderMap::new();
//! headers.insert("x-forwarded-for", HeaderValue::from_static("192.0.2.1, 203.0.113.7"));
//! let client = |peer: [u8; 4]| settings.client(peer.into(), &headers).text();
//! assert_eq!(client([10, 1, 2, 3]), "203.0.113.7");
//! // The field of a peer that is not trusted is ignored.
//! assert_eq!(client([198, 51, 100, 9]), "198.51.100.9");
//! ```

pub mod address_limit;
pub mod api_key_file;
pub mod api_keys;
pub mod client_ip;
pub mod jwt;
mod on_invalid;
pub mod proxy_protocol;
pub mod token_auth;

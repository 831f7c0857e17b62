//! Reads the keys that determine who a client is: `jwt`, `api_keys` and `client_ip`.

pub(crate) mod api_keys;
pub(crate) mod client_ip;
pub(crate) mod jwt;
pub(crate) mod jwt_keys;

//! Authentication: the address of a client, its token, its API key.

mod api_keys;
mod client_address;
mod hanging_issuer;
mod jwt_attacks;
mod tokens;

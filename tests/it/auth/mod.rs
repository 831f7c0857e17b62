//! Who a client is: its address, token or API key.

mod api_keys;
mod client_address;
mod jwt_attacks;
mod tokens;

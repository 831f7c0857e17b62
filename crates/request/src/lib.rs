//! Reads one request in one way: its attributes, and the path, query, cookies and fields that they come from.
//!
//! Nothing here does I/O, reads a clock or logs.

pub mod attribute;
pub mod attribute_value;
pub mod claim_list;
pub mod client_certificate_field;
pub mod cookie;
pub mod door;
mod folded_name;
pub mod grpc_timeout;
pub mod identity;
pub mod list_file;
pub mod matcher;
pub mod path;
pub mod percent;
pub mod query;
pub mod request;
pub mod scheme;
pub mod sent_descriptor;

//! Reads a request's path, query, cookies and fields, and its attributes from them, always in the same way.
//!
//! ```
//! use request::attribute::Attribute;
//! use request::client_address::ClientAddress;
//! use request::request::Request;
//!
//! let (head, ()) = http::Request::get("/search?q=a%20b").header("x-team", "blue").body(()).unwrap().into_parts();
//! let request = Request::new(&head, ClientAddress::new([203, 0, 113, 7].into(), 64));
//! let read = |attribute: &str| Attribute::parse(attribute).unwrap().resolve(&request);
//! assert_eq!(read("header:x-team").as_deref(), Some(&b"blue"[..]));
//! assert_eq!(read("query:q").as_deref(), Some(&b"a b"[..]));
//! assert_eq!(read("cookie:session"), None);
//! ```
//!
//! The code in this crate does no I/O, reads no clock and writes no log.

pub mod asked_request;
pub mod attribute;
pub mod attribute_value;
pub mod body_reading;
pub mod body_values;
pub mod claim_list;
pub mod client_address;
mod client_certificate_field;
pub mod cookie;
pub mod door;
mod folded_name;
pub mod grpc_timeout;
pub mod identity;
pub mod key_places;
pub mod list_file;
pub mod llm_model;
pub mod matcher;
pub mod model_request;
pub mod path;
pub mod percent_encoding;
pub mod query;
pub mod request;
pub mod scheme;
pub mod sent_descriptor;

//! The status page, and the documents that it loads.

pub mod document;
mod events;
mod last_hour;
mod other_gateways;
pub mod page;
mod page_sections;
mod top_refused;

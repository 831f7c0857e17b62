//! WHAT WOULD HAVE BEEN: access logs run through the rules, on their own time.

pub mod asked;
pub mod combined;
pub mod fields;
pub mod lines;
pub mod moment;

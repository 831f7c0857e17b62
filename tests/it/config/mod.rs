//! gateway.yaml: errors, warnings and the schema.

mod bad_files;
mod lints;
mod mistakes;
mod reference;
mod schema;

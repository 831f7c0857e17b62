//! Reads JSON (RFC 8259) in pieces, strictly and in bounded memory: values at pointers, and lengths of text.
//!
//! Only the requested values of a body are kept.

mod error;
mod grammar;
mod number;
mod pointer;
mod pointer_set;
mod scanner;
mod text;
mod text_below;
mod value;

pub use error::JsonError;
pub use pointer::{InvalidPointer, Pointer};
pub use pointer_set::{Interest, PointerSet};
pub use scanner::{JsonScanner, Lookup};
pub use value::{Number, Value};

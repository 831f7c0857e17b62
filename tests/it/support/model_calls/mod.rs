//! Calls of language models: an upstream that answers them and keeps its own books, and clients that finish them or leave.

mod call;
mod client;
mod model;

pub(crate) use call::{Api, Call, CallShape, End};
pub(crate) use client::{CallResult, make};
pub(crate) use model::{Model, Sent};

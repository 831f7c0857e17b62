//! Reads `threads`: the number of threads that serve requests.

use crate::language::shape::Shape;
use crate::language::value_kind::{ParseText, ValueKind};

/// The number of threads that proxy requests. Each thread has its own runtime, and its own socket for every listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread for each core that this process may use.
    Auto,
    Exactly(usize),
}

pub(crate) const THREADS: ValueKind<ParseText<Threads>> =
    ValueKind::new("`auto`, or 1 to 256", Shape::either(&[Shape::Words(&["auto"]), Shape::whole(1, 256)]), |text| {
        match text {
            "auto" => Some(Threads::Auto),
            threads => threads.parse().ok().map(Threads::Exactly),
        }
    });

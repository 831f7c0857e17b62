//! The answer to the question whether a request may be sent again.

/// Whether the same request may be sent again, after a part of it was sent or may have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeatable {
    Yes,
    No,
}

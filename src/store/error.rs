//! Why a store gave no answer.

/// Why a store gave no answer. The embedded store always answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// No connection can be made.
    Unreachable,
    /// The user or the password is wrong.
    Unauthorized,
    /// The user lacks a permission.
    Forbidden,
    /// It is not the one that may be written to.
    Replica,
    /// It is still reading its data.
    Loading,
    /// It may not keep more than it does.
    OutOfMemory,
    /// It is kept by a script of somebody else's.
    Busy,
    /// It refused for a reason of its own.
    Refused,
    /// No answer in time. Whether it took the charge is not known.
    Timeout,
    /// The connection ended before the answer came. Whether it took the charge is not known.
    Closed,
    /// More requests wait for it than it can answer in time. It has not been asked.
    Backlog,
    /// It answered something else than what was asked.
    UnexpectedReply,
    /// It has failed so often that it is not asked for a while.
    BreakerOpen,
}

impl StoreError {
    pub const ALL: [StoreError; 13] = [
        StoreError::Unreachable,
        StoreError::Unauthorized,
        StoreError::Forbidden,
        StoreError::Replica,
        StoreError::Loading,
        StoreError::OutOfMemory,
        StoreError::Busy,
        StoreError::Refused,
        StoreError::Timeout,
        StoreError::Closed,
        StoreError::Backlog,
        StoreError::UnexpectedReply,
        StoreError::BreakerOpen,
    ];

    /// The word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            StoreError::Unreachable => "unreachable",
            StoreError::Unauthorized => "unauthorized",
            StoreError::Forbidden => "forbidden",
            StoreError::Replica => "replica",
            StoreError::Loading => "loading",
            StoreError::OutOfMemory => "out_of_memory",
            StoreError::Busy => "busy",
            StoreError::Refused => "refused",
            StoreError::Timeout => "timeout",
            StoreError::Closed => "closed",
            StoreError::Backlog => "backlog",
            StoreError::UnexpectedReply => "garbled",
            StoreError::BreakerOpen => "breaker_open",
        }
    }
}

/// What went wrong: what is counted, and what an operator is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub error: StoreError,
    pub detail: String,
}

impl Fault {
    pub fn new(error: StoreError, detail: impl Into<String>) -> Fault {
        Fault { error, detail: detail.into() }
    }
}

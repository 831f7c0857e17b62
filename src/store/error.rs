//! Why a store gave no answer.

/// Why a store gave no answer. The embedded store always answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// No connection can be made.
    Unreachable,
    /// A file with the password or a certificate cannot be read or used.
    UnusableFile,
    /// The user or the password is wrong.
    Unauthorized,
    /// The user lacks a permission.
    Forbidden,
    /// The server accepts no writes: it is a replica, or read-only.
    Replica,
    /// The server is still loading its data.
    Loading,
    /// The server has no memory or disk left.
    OutOfMemory,
    /// The server is busy: with another script, with other transactions, or with too many connections.
    Busy,
    /// The tables are missing, or not those of this version and these settings.
    WrongSchema,
    /// The server returned any other error.
    Refused,
    /// No answer in time. Whether the plan was charged is unknown.
    Timeout,
    /// Another server has taken the place of the one that was connected to. Whether the plan was charged is unknown.
    Moved,
    /// The connection ended before the answer came. Whether the plan was charged is unknown.
    Closed,
    /// More requests are queued than can be answered in time. Nothing was sent.
    Backlog,
    /// The reply is not one that the call can have.
    UnexpectedReply,
    /// The server's time was twice outside of the periods that the call named. Nothing was charged.
    OutsidePeriod,
    /// The circuit breaker is open after repeated errors. Nothing was sent.
    BreakerOpen,
}

impl StoreError {
    pub const ALL: [StoreError; 17] = [
        StoreError::Unreachable,
        StoreError::UnusableFile,
        StoreError::Unauthorized,
        StoreError::Forbidden,
        StoreError::Replica,
        StoreError::Loading,
        StoreError::OutOfMemory,
        StoreError::Busy,
        StoreError::WrongSchema,
        StoreError::Refused,
        StoreError::Timeout,
        StoreError::Moved,
        StoreError::Closed,
        StoreError::Backlog,
        StoreError::UnexpectedReply,
        StoreError::OutsidePeriod,
        StoreError::BreakerOpen,
    ];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            StoreError::Unreachable => "unreachable",
            StoreError::UnusableFile => "unusable_file",
            StoreError::Unauthorized => "unauthorized",
            StoreError::Forbidden => "forbidden",
            StoreError::Replica => "replica",
            StoreError::Loading => "loading",
            StoreError::OutOfMemory => "out_of_memory",
            StoreError::Busy => "busy",
            StoreError::WrongSchema => "wrong_schema",
            StoreError::Refused => "refused",
            StoreError::Timeout => "timeout",
            StoreError::Moved => "moved",
            StoreError::Closed => "closed",
            StoreError::Backlog => "backlog",
            StoreError::UnexpectedReply => "garbled",
            StoreError::OutsidePeriod => "outside_period",
            StoreError::BreakerOpen => "breaker_open",
        }
    }
}

/// An error with its detail: the first is counted, the second is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub error: StoreError,
    pub detail: String,
}

impl Fault {
    /// Whether the connection is of no more use. Otherwise it is the server's state, which a new connection would find
    /// unchanged.
    pub fn ends_connection(&self) -> bool {
        !matches!(self.error, StoreError::OutOfMemory | StoreError::Busy | StoreError::Refused)
    }

    pub fn new(error: StoreError, detail: impl Into<String>) -> Fault {
        Fault { error, detail: detail.into() }
    }
}

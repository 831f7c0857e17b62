//! Lists the reasons for which a store gives no answer.

use std::sync::Arc;

/// The reason why a store gave no answer. The memory store always answers.
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
    /// The deadline passed before the request could be sent, because earlier calls took too long. Nothing was charged.
    Unsent,
    /// Another server has replaced the connected one. Whether the plan was charged is unknown.
    Moved,
    /// The connection ended before the answer came. Whether the plan was charged is unknown.
    Closed,
    /// More requests are queued than can be answered in time. Nothing was sent.
    Backlog,
    /// The reply is not a valid one for the call.
    UnexpectedReply,
    /// The server's time was outside of the periods that the call named, twice. Nothing was charged.
    OutsidePeriod,
    /// Another node of the cluster has the bucket now. Nothing ran.
    SlotMoved,
    /// The bucket may be on the node to which its slot is moving. Nothing ran.
    SlotMoving,
    /// The buckets are on two nodes while their slot is moving. Nothing ran.
    TryAgain,
    /// The cluster does not serve the slot: it has no master, or the node is cut off. Nothing ran.
    ClusterDown,
    /// The circuit breaker is open after repeated errors. Nothing was sent.
    BreakerOpen,
}

impl StoreError {
    pub const ALL: [StoreError; 22] = [
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
        StoreError::Unsent,
        StoreError::Moved,
        StoreError::Closed,
        StoreError::Backlog,
        StoreError::UnexpectedReply,
        StoreError::OutsidePeriod,
        StoreError::SlotMoved,
        StoreError::SlotMoving,
        StoreError::TryAgain,
        StoreError::ClusterDown,
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
            StoreError::Unsent => "unsent",
            StoreError::Moved => "moved",
            StoreError::Closed => "closed",
            StoreError::Backlog => "backlog",
            StoreError::UnexpectedReply => "garbled",
            StoreError::OutsidePeriod => "outside_period",
            StoreError::SlotMoved => "slot_moved",
            StoreError::SlotMoving => "slot_moving",
            StoreError::TryAgain => "try_again",
            StoreError::ClusterDown => "cluster_down",
            StoreError::BreakerOpen => "breaker_open",
        }
    }
}

impl StoreError {
    /// Whether a node of a cluster has shown that the call did not run and may be sent again, to the node that now has the
    /// bucket.
    pub(crate) fn is_redirection(self) -> bool {
        matches!(self, StoreError::SlotMoved | StoreError::SlotMoving | StoreError::TryAgain)
    }

    /// Whether the server works although it has not decided: it has named another server, told its time, or said that its
    /// cluster does not serve the slot.
    pub fn is_answer(self) -> bool {
        self.is_redirection() || matches!(self, StoreError::OutsidePeriod | StoreError::ClusterDown)
    }

    /// Whether the server works, but has refused the call because of its state: a row that other transactions hold, or full
    /// memory. Such an error does not open the breaker, which would block requests that the server can decide.
    pub fn is_refusal(self) -> bool {
        matches!(self, StoreError::Busy | StoreError::OutOfMemory)
    }
}

/// An error with its details: the error is counted, the details are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub error: StoreError,
    pub detail: String,
    /// The address of the server, if the store has several.
    pub node: Option<Arc<str>>,
}

impl Fault {
    /// Whether the connection must be closed. If not, the error comes from the state of the server, and would be the same on a
    /// new connection.
    pub(crate) fn ends_connection(&self) -> bool {
        let stays = matches!(
            self.error,
            StoreError::OutOfMemory | StoreError::Busy | StoreError::Refused | StoreError::ClusterDown
        );
        !stays && !self.error.is_redirection()
    }

    pub fn new(error: StoreError, detail: impl Into<String>) -> Fault {
        Fault { error, detail: detail.into(), node: None }
    }
}

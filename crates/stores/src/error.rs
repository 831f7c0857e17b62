//! Lists the reasons for which a store gives no answer.

use std::sync::Arc;

/// The reason why a store gave no answer. The memory store always answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// No connection to the server can be made.
    Unreachable,
    /// A file with the password or a certificate cannot be read or used.
    UnusableFile,
    /// The user or the password is wrong.
    Unauthorized,
    /// The user lacks a permission.
    Forbidden,
    /// The server accepts no writes, because it is a replica or read-only.
    Replica,
    /// The server is still loading its data.
    Loading,
    /// The server has no memory or disk left.
    OutOfMemory,
    /// The server is busy: with another script, with other transactions, or with too many connections.
    Busy,
    /// The tables in the database are missing, or do not fit this version of Tollgate and its settings.
    WrongSchema,
    /// The server returned any other error.
    Refused,
    /// The answer did not come in time. Whether the plan was charged is unknown.
    Timeout,
    /// The deadline passed before the request could be sent. Nothing was charged.
    Unsent,
    /// Another server has taken the place of the connected server. Whether the plan was charged is unknown.
    Moved,
    /// The connection ended before the answer came. Whether the plan was charged is unknown.
    Closed,
    /// The queue of the connection is too long to answer the request in time. Nothing was sent.
    Backlog,
    /// The server's reply is not valid for the call.
    UnexpectedReply,
    /// The server's time was not in the calendar periods that the call named, in two attempts. Nothing was charged.
    OutsidePeriod,
    /// The call asks for slots, but a later call of this worker has reached the server first, so the server has ignored
    /// the reports of this call. Charges of other buckets stay.
    OldReport,
    /// The call asks for a timed hold, and a live gateway of an older version would find the states of its buckets invalid. Nothing
    /// was sent.
    OlderGateway,
    /// Another node of the cluster has the hash slot of the bucket now. The call did not run.
    SlotMoved,
    /// The bucket may be on the node to which its hash slot is moving. The call did not run.
    SlotMoving,
    /// The buckets are on two nodes while their hash slot is moving. The call did not run.
    TryAgain,
    /// The hash slot has no master, or its node is cut off. The call did not run.
    ClusterDown,
    /// The circuit breaker is open after repeated errors. Nothing was sent.
    BreakerOpen,
}

impl StoreError {
    pub const ALL: [StoreError; 24] = [
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
        StoreError::OldReport,
        StoreError::OlderGateway,
        StoreError::SlotMoved,
        StoreError::SlotMoving,
        StoreError::TryAgain,
        StoreError::ClusterDown,
        StoreError::BreakerOpen,
    ];

    /// Returns the name of the error, which is its label in metrics.
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
            StoreError::OldReport => "old_report",
            StoreError::OlderGateway => "older_gateway",
            StoreError::SlotMoved => "slot_moved",
            StoreError::SlotMoving => "slot_moving",
            StoreError::TryAgain => "try_again",
            StoreError::ClusterDown => "cluster_down",
            StoreError::BreakerOpen => "breaker_open",
        }
    }
}

impl StoreError {
    /// Whether the error is a redirection: the call did not run, and may be sent to another node of the cluster.
    pub(crate) fn is_redirection(self) -> bool {
        matches!(self, StoreError::SlotMoved | StoreError::SlotMoving | StoreError::TryAgain)
    }

    /// Whether the error proves that the call did not run.
    pub(crate) fn did_not_run(self) -> bool {
        self.is_redirection() || matches!(self, StoreError::Replica | StoreError::ClusterDown)
    }

    /// Whether the error shows that the server works, although it has not decided.
    pub fn is_answer(self) -> bool {
        self.is_redirection()
            || matches!(self, StoreError::OutsidePeriod | StoreError::OldReport | StoreError::ClusterDown)
    }

    /// Whether only the answer may be lost: it did not come in time, or the connection has ended.
    pub(crate) fn is_lost_answer(self) -> bool {
        matches!(
            self,
            StoreError::Timeout | StoreError::Unsent | StoreError::Closed | StoreError::Moved | StoreError::Replica
        )
    }

    /// Whether a working server has refused the call, such as for lack of memory. Such an error does not open the
    /// breaker.
    pub fn is_refusal(self) -> bool {
        matches!(self, StoreError::Busy | StoreError::OutOfMemory)
    }
}

/// An error of a store: its kind for metrics, and a text for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub error: StoreError,
    pub detail: String,
    /// The address of the server with the error. `None` if the store has only one server.
    pub node: Option<Arc<str>>,
    /// Whether it is proved that the server rolls the call back.
    pub is_rolled_back: bool,
    /// Whether no call was made, because the store is known to be away.
    pub is_unsent: bool,
}

impl Fault {
    /// Whether the connection must be closed after this error.
    pub(crate) fn ends_connection(&self) -> bool {
        let stays = matches!(
            self.error,
            StoreError::OutOfMemory | StoreError::Busy | StoreError::Refused | StoreError::ClusterDown
        );
        !stays && !self.error.is_redirection()
    }

    pub fn new(error: StoreError, detail: impl Into<String>) -> Fault {
        Fault { error, detail: detail.into(), node: None, is_rolled_back: false, is_unsent: false }
    }

    /// Returns the fault of a call that is not made.
    pub(crate) fn unsent(error: StoreError, detail: impl Into<String>) -> Fault {
        Fault { is_unsent: true, ..Fault::new(error, detail) }
    }

    /// Returns the fault of a call that the server rolls back.
    #[must_use]
    pub(crate) fn rolled_back(self) -> Fault {
        Fault { is_rolled_back: true, ..self }
    }

    /// Whether it is proved that the call has no effect: it did not run, or was rolled back.
    pub(crate) fn proves_no_effect(&self) -> bool {
        self.is_rolled_back || self.error.did_not_run()
    }
}

//! Defines the simulated decision about a logged request, and the cause of a refusal.

use ledger::charge::LimitId;

/// The decision that the simulated file would have made about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedResult {
    Allowed,
    Refused,
    /// The log lacks an attribute on which the decision depends, and no other rule refuses the request.
    Undecided,
}

/// The reason why a simulated file refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// A limit refuses the request. If several limits refuse, this is the limit that the response names.
    Limit(LimitId),
    /// A rule denies the request, or the policy's `otherwise: deny` if `rule` is `None`. Both fields are indexes.
    Deny { policy: usize, rule: Option<usize> },
    /// The log records that the request was denied, but not by which rule.
    DenyInLog,
    /// The request can be read in more than one way. The gateway answers 400 before it checks any rule.
    Ambiguous,
    /// The request matches no route. The gateway answers 404 before it checks any rule.
    NoRoute,
}

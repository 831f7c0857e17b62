//! Defines the decision of a simulated file about a request, and its cause.

use ledger::charge::LimitId;

/// The decision that a file would have made about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedResult {
    Allowed,
    Refused,
    /// The log lacks an attribute on which the decision depends, and no decidable part of the rules refuses the request.
    Undecided,
}

/// The cause of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The limit that determines the refusal.
    Limit(LimitId),
    /// The indexes of a policy and of its rule; a `rule` of `None` is the policy's `otherwise`.
    Deny { policy: usize, rule: Option<usize> },
    /// A `deny` that the log records, without its rule.
    DenyInLog,
    /// The request has more than one reading: 400, before any rule.
    Ambiguous,
    /// The request matches no route: 404, before any rule.
    NoRoute,
}

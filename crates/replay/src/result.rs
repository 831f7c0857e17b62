//! The decision of a simulated file about a request, and its reason.

use ledger::charge::LimitId;

/// What a file would have decided about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedResult {
    Allowed,
    Refused,
    /// The log lacks something on which the decision depends, and what it has refuses nothing.
    Undecided,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The limit that speaks for those that refused.
    Limit(LimitId),
    /// The indexes of a policy and of its rule; a `rule` of `None` is the policy's `otherwise`.
    Deny { policy: usize, rule: Option<usize> },
    /// A `deny`, according to the log, which does not say which one.
    DenyInLog,
    /// The request has more than one reading: 400, before any rule.
    Ambiguous,
    /// The request matches no route: 404, before any rule.
    NoRoute,
}

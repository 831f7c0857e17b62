//! The rules and policies that deny requests: each refusal by `deny` is one of theirs.

use smallvec::SmallVec;

use super::rule::Mode;

/// An index into [`super::rule_set::RuleSet::deniers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DenierId(pub u32);

/// Those that denied one request.
pub type DenierIds = SmallVec<[DenierId; 2]>;

/// A rule with `action: deny`, or a policy with `otherwise: deny`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denier {
    pub policy: String,
    /// `None`: the policy's `otherwise`.
    pub rule: Option<String>,
    pub mode: Mode,
}

impl Denier {
    /// The name of the rule; empty for a policy's `otherwise`, as a label of metrics that is absent.
    pub fn rule_name(&self) -> &str {
        self.rule.as_deref().unwrap_or_default()
    }
}

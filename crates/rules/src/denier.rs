//! Lists the rules and policies that deny requests, so that denials can be counted for each.

use smallvec::SmallVec;

use super::rule::Mode;

/// Identifies a rule or policy that denies requests. The number is an index into [`super::rule_set::RuleSet::deniers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DenierId(pub u32);

/// The rules and policies that deny one request, or that would deny the request if they were not dry runs.
pub(crate) type DenierIds = SmallVec<[DenierId; 2]>;

/// A rule with `action: deny`, or a policy with `otherwise: deny`. Denied requests are counted for each denier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denier {
    pub policy: String,
    /// The name of the rule; `None` for the policy's `otherwise`.
    pub rule: Option<String>,
    pub mode: Mode,
}

impl Denier {
    /// Returns the name of the rule as a label of metrics. For a policy's `otherwise` the name is empty, which means no
    /// label.
    pub fn rule_name(&self) -> &str {
        self.rule.as_deref().unwrap_or_default()
    }
}

//! Finds the questions about rules that a log cannot answer, because it lacks an attribute.

use smallvec::SmallVec;

use request::attribute::Attribute;
use rules::explanation::{Exemption, Explanation, PolicyOutcome, RuleOutcome};
use rules::rule::{Mode, RuleSource};

/// A question about a request that the log cannot answer, because the log lacks an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpenQuestion {
    /// Whether the request is exempt, by the setting `exempt` in gateway.yaml.
    Exemption,
    /// Whether a policy takes part in the decision. If `rule` is set, whether this rule applies. Both fields are
    /// indexes.
    Rules { policy: usize, rule: Option<usize> },
}

impl OpenQuestion {
    /// Whether the question is about rules of this policy.
    pub(crate) fn is_of(self, of: usize) -> bool {
        matches!(self, OpenQuestion::Rules { policy, .. } if policy == of)
    }
}

/// A question that the log leaves open about one request, with the rules that depend on the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenPart<'e> {
    pub question: OpenQuestion,
    /// The attributes that would answer the question and that the log lacks.
    pub attributes: &'e [&'e Attribute],
    /// The rules of the policy that may have charged the request. Which of them charged it depends on the answer.
    pub rules: RuleRange,
    /// The mode of the rules in question. Only rules in the mode `Enforce` leave the decision about the request open.
    pub mode: Mode,
}

impl OpenPart<'_> {
    /// Returns all attributes that may be needed to answer the question. The log lacks some of them, and the rules or
    /// exemptions in question read the others. An attribute may occur twice.
    pub(crate) fn readable<'r>(&'r self, source: &'r RuleSource) -> impl Iterator<Item = &'r Attribute> {
        let rules = match self.question {
            OpenQuestion::Exemption => None,
            OpenQuestion::Rules { policy, .. } => source.policies.get(policy).map(|policy| policy.rules.iter()),
        };
        let rules = rules.into_iter().flatten().enumerate();
        let rules = rules.filter(|(index, _)| self.rules.contains(*index)).map(|(_, rule)| rule);
        let of_rules = rules.flat_map(|rule| {
            let keys = rule.keys.iter().flat_map(|key| &key.alternatives);
            rule.conditions.iter().map(|condition| &condition.attribute).chain(keys)
        });
        let exempt = if self.question == OpenQuestion::Exemption { source.exempt.as_slice() } else { &[] };
        let of_exemptions = exempt.iter().flatten().map(|condition| &condition.attribute);
        self.attributes.iter().copied().chain(of_rules).chain(of_exemptions)
    }
}

/// A selection of the rules of a policy: all rules from an index on, or only the rule with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleRange {
    From(usize),
    Only(usize),
}

impl RuleRange {
    pub(crate) fn contains(self, index: usize) -> bool {
        match self {
            RuleRange::From(first) => index >= first,
            RuleRange::Only(only) => index == only,
        }
    }
}

/// Returns the questions that the explanation of a request leaves open.
pub(crate) fn open_parts<'e>(explanation: &'e Explanation<'_>) -> SmallVec<[OpenPart<'e>; 1]> {
    let mut open = SmallVec::new();
    for (policy, explained) in explanation.policies.iter().enumerate() {
        let mode = explained.policy.mode;
        if let PolicyOutcome::Undecidable(attributes) = &explained.part {
            let question = OpenQuestion::Rules { policy, rule: None };
            open.push(OpenPart { question, attributes, rules: RuleRange::From(0), mode });
        }
        for (rule, explained) in explained.rules.iter().enumerate() {
            if let RuleOutcome::Undecidable(attributes) = &explained.outcome {
                // In an enforced policy, a shadow rule does not affect the rules after it.
                let alone = mode == Mode::Enforce && explained.mode == Mode::Shadow;
                let rules = if alone { RuleRange::Only(rule) } else { RuleRange::From(rule) };
                let question = OpenQuestion::Rules { policy, rule: Some(rule) };
                open.push(OpenPart { question, attributes, rules, mode: explained.mode });
            }
        }
    }
    if let Exemption::Undecidable(attributes) = &explanation.exemption {
        let (question, rules) = (OpenQuestion::Exemption, RuleRange::From(0));
        open.push(OpenPart { question, attributes, rules, mode: Mode::Enforce });
    }
    open
}

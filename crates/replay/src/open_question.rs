//! Finds the parts of the rules that a log cannot decide, because it lacks an attribute.

use smallvec::SmallVec;

use request::attribute::Attribute;
use rules::explanation::{Exemption, Explanation, PolicyOutcome, RuleOutcome};
use rules::rule::{Mode, RuleSource};

/// A question that the log leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpenQuestion {
    /// Whether the request is exempt.
    Exemption,
    /// Whether a policy takes part or, if `rule` is set, whether that rule of the policy applies; both are indexes.
    Rules { policy: usize, rule: Option<usize> },
}

/// An open question about one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenPart<'e> {
    pub question: OpenQuestion,
    /// The attributes that the log lacks and that would answer the question.
    pub attributes: &'e [&'e Attribute],
    /// The rules of the policy that may have charged.
    pub rules: RuleRange,
    /// The mode of the rules in question. The decision about the request is open only if it is `Enforce`.
    pub mode: Mode,
}

impl OpenPart<'_> {
    /// The attributes that are read to answer the question, if all earlier ones are known. An attribute may occur twice.
    pub(crate) fn readable<'r>(&'r self, source: &'r RuleSource) -> impl Iterator<Item = &'r Attribute> {
        let rules = match self.question {
            OpenQuestion::Exemption => None,
            OpenQuestion::Rules { policy, .. } => source.policies.get(policy).map(|policy| policy.rules.iter()),
        };
        let rules = rules.into_iter().flatten().enumerate();
        let rules = rules.filter(|(index, _)| self.rules.contains(*index)).map(|(_, rule)| rule);
        let of_rules = rules.flat_map(|rule| {
            let keys = rule.keys.iter().flat_map(|key| &key.alternatives).map(|part| &part.attribute);
            rule.conditions.iter().map(|condition| &condition.attribute).chain(keys)
        });
        let exempt = if self.question == OpenQuestion::Exemption { source.exempt.as_slice() } else { &[] };
        let of_exemptions = exempt.iter().flatten().map(|condition| &condition.attribute);
        self.attributes.iter().copied().chain(of_rules).chain(of_exemptions)
    }
}

/// Some rules of a policy, by their indexes.
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

/// The open questions of an explained request.
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
                // A shadow rule changes nothing for the rules after it; in a shadow policy they are all shadows.
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

//! Notes which buckets a rule charges if it applies, and how much.

use super::facts::{PartialFacts, PickedKeys};
use super::parts::{ExplainedCharge, ExplainedNumber, PickedKey, RuleCharges};
use crate::claimed_numbers::{ClaimedAmount, ClaimedNumber};
use crate::compiled_limit::CompiledLimit;
use crate::compiled_rule::Slot;
use crate::partial_evaluation::{Knowledge, Observation};
use crate::policy_walk::Observer;
use crate::rule::Rule;
use crate::rule_set::RuleSet;
use ledger::charge::{Charge, LimitId};
use request::attribute::Attribute;

/// Collects the charges of one rule for an explanation.
#[derive(Default)]
pub(super) struct ChargeNotes<'a> {
    pub charges: RuleCharges<'a>,
    /// The settings of the next charge that come from credentials.
    numbers: Vec<ExplainedNumber<'a>>,
}

impl<'a, 'w> Observer<'a, PartialFacts<'a, 'w>> for ChargeNotes<'a> {
    fn number(
        &mut self,
        facts: &mut PartialFacts<'a, 'w>,
        slot: Slot,
        number: &'a ClaimedNumber,
        ClaimedAmount { amount, result }: ClaimedAmount,
    ) {
        self.numbers.push(ExplainedNumber { number, found: facts.look(slot), amount, result });
    }

    fn charge(&mut self, limit: &'a CompiledLimit, charge: &Charge) {
        self.charges.charged.push(ExplainedCharge {
            name: &limit.name,
            mode: limit.mode,
            meter: limit.meter.as_deref(),
            settled: limit.settled_price(),
            charge: charge.clone(),
            claimed: std::mem::take(&mut self.numbers),
        });
    }

    fn unlimited(&mut self, limit: &'a CompiledLimit) {
        self.charges.unlimited.push(&limit.name);
    }

    fn not_at_door(&mut self, limit: &'a CompiledLimit) {
        self.charges.not_at_door.push(&limit.name);
    }
}

impl RuleSet {
    /// Returns the compiled limits of a rule of this set. A limit's `candidate`, tried in shadow mode, follows the limit.
    pub fn compiled(&self, rule: &Rule) -> &[CompiledLimit] {
        let index = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        let first = index(self.before(rule));
        self.limits().get(first..first.saturating_add(index(rule.limit_count()))).unwrap_or_default()
    }

    /// Returns the number of limits in all rules that come before this rule in the set.
    fn before(&self, rule: &Rule) -> u32 {
        let rules = self.source().policies.iter().flat_map(|policy| &policy.rules);
        rules.take_while(|one| !std::ptr::eq(*one, rule)).map(Rule::limit_count).sum()
    }

    /// Returns the charges of a rule for these values of its limit keys. The cost is that of a request that names no
    /// cost.
    pub fn buckets_of<'a>(&'a self, rule: &'a Rule, picked: &[PickedKey<'a>], known: Knowledge<'a>) -> RuleCharges<'a> {
        // A price that depends on the request is replaced by its default, because there is no request.
        let mut see = |_: &Attribute| Observation::Missing;
        let mut facts = PartialFacts { rules: self, see: &mut see, known };
        let mut keys = PickedKeys::default();
        picked.iter().for_each(|one| keys.push(one.clone(), known.issuer));
        let first = self.before(rule);
        let limits = (first..first.saturating_add(rule.limit_count())).map(LimitId);
        let mut notes = ChargeNotes::default();
        self.walk_limits(limits, &keys, &mut facts, &mut notes);
        notes.charges
    }
}

//! Determines which buckets a rule that applies charges, and how much.

use super::parts::{ExplainedCharge, ExplainedNumber, PickedKey, RuleCharges};
use crate::claimed_numbers::{ClaimedAmount, ClaimedNumbers};
use crate::partial::{Knowledge, Observation};
use crate::rule::{Action, Limit, Mode, Override, Price, Rule};
use crate::rule_set::{CompiledLimit, RuleSet};
use ledger::algorithm::Algorithm;
use ledger::bucket_key::Descriptor;
use ledger::charge::{Charge, ChargePurpose, LimitId, Plan};
use ledger::cost::{Cost, requested_cost};
use request::attribute::Attribute;

/// The walk through the rules of a file, for one request.
pub struct Walk<'a, 'w> {
    pub rules: &'a RuleSet,
    pub see: &'w mut dyn FnMut(&'a Attribute) -> Observation<'a>,
    pub known: Knowledge<'a>,
    /// All charges so far.
    pub plan: Plan,
    /// The first limit of the next rule.
    pub next: LimitId,
}

impl<'a> Walk<'a, '_> {
    /// Charges the limits of one rule, the first of which is `first`.
    ///
    /// # Errors
    /// Returns the attribute on which a price or a number depends and which is not known.
    pub fn charges(
        &mut self,
        limits: &'a [Limit],
        first: LimitId,
        picked: &[PickedKey<'a>],
    ) -> Result<RuleCharges<'a>, &'a Attribute> {
        let mut priced = Vec::with_capacity(limits.len());
        let mut id = first;
        for limit in limits {
            let cost = self.price(&limit.price)?;
            let variant = self.variant(limit, id, picked);
            id.0 += 1 + u32::from(limit.candidate.is_some());
            let own = limit.claimed.as_ref().filter(|_| variant == 0);
            priced.push((cost, variant, self.claims(own)?));
            if limit.candidate.is_some() {
                priced.push((cost, 0, self.claims(limit.candidate_claimed.as_ref())?));
            }
        }
        let descriptor = self.describe(picked);
        let mut charges = RuleCharges::default();
        for (id, (cost, variant, claimed)) in (first.0..).map(LimitId).zip(priced) {
            match self.rules.limit(id) {
                Some(limit) if limit.is_unlimited(variant) => charges.unlimited.push(&limit.name),
                _ => charges.charged.extend(self.charge(id, &descriptor, cost, variant, claimed)),
            }
        }
        Ok(charges)
    }

    fn charge(
        &mut self,
        id: LimitId,
        descriptor: &Descriptor,
        cost: Cost,
        variant: u32,
        claimed: Option<NumbersOfRequest<'a>>,
    ) -> Option<ExplainedCharge<'a>> {
        let limit = self.rules.limit(id)?;
        let (algorithm, claimed) = match claimed {
            Some(NumbersOfRequest { algorithm, numbers }) => (algorithm, numbers),
            None => (*limit.variants.get(usize::try_from(variant).ok()?)?, Vec::new()),
        };
        let (key, tag) = (limit.bucket(descriptor), limit.tag(variant));
        let charge = Charge { key, algorithm, cost, limit: id, variant, tag, purpose: ChargePurpose::Spend };
        match limit.mode {
            Mode::Enforce => self.plan.enforce(charge.clone()),
            Mode::Shadow => self.plan.shadow.push(charge.clone()),
        }
        Some(ExplainedCharge { name: &limit.name, mode: limit.mode, meter: limit.meter.as_deref(), charge, claimed })
    }

    /// The numbers of the request, if the limit reads such. The error is an attribute that is not known.
    fn claims(&mut self, claimed: Option<&'a ClaimedNumbers>) -> Result<Option<NumbersOfRequest<'a>>, &'a Attribute> {
        let Some(claimed) = claimed else { return Ok(None) };
        let mut numbers = Vec::with_capacity(claimed.numbers.len());
        for number in &claimed.numbers {
            let found = (self.see)(&number.from);
            let ClaimedAmount { amount, result } = match &found {
                Observation::Value(text) => number.amount(Some(text)),
                Observation::Missing => number.amount(None),
                // A list is no number.
                Observation::List(_) => number.amount(Some(b"")),
                Observation::Named(_) | Observation::Unknown => return Err(&number.from),
            };
            numbers.push(ExplainedNumber { number, found, amount, result });
        }
        let mut amounts = numbers.iter().map(|number| number.amount);
        let algorithm = claimed.with(|number| amounts.next().unwrap_or(number.default));
        Ok(Some(NumbersOfRequest { algorithm, numbers }))
    }

    fn price(&mut self, price: &'a Price) -> Result<Cost, &'a Attribute> {
        let (attribute, default, min, max) = match price {
            Price::Fixed(cost) => return Ok(*cost),
            Price::FromRequest { attribute, default, min, max } => (attribute, *default, *min, *max),
        };
        match (self.see)(attribute) {
            Observation::Value(text) => Ok(requested_cost(Some(&text), default, min, max)),
            Observation::Missing | Observation::List(_) => Ok(default),
            Observation::Named(_) | Observation::Unknown => Err(attribute),
        }
    }

    /// The index of an override among the limit's variants; 0 if none is for the picked values.
    fn variant(&self, limit: &Limit, id: LimitId, picked: &[PickedKey<'_>]) -> u32 {
        let compiled = self.rules.limit(id);
        let variants = picked.iter().filter_map(|PickedKey { part, value, .. }| match value {
            Observation::Value(value) => compiled?.overrides.of_value(part, value),
            Observation::Named(name) => {
                let attribute = part.attribute.to_string();
                // There may be too many in a file to compute a pseudonym for each: those of its values are resolved before.
                let is = |one: &Override| {
                    one.index != Override::IN_FILE
                        && *one.part == **part
                        && self.known.names.value(&attribute, one.value.as_bytes()) == *name
                };
                (1..).zip(&limit.overrides).find(|(_, one)| is(one)).map(|(variant, _)| variant)
            }
            Observation::Missing | Observation::List(_) | Observation::Unknown => None,
        });
        variants.min().unwrap_or(0)
    }

    /// The descriptor of the picked values. A pseudonym takes the place of an unknown value: the bucket is not the gateway's
    /// then, but still distinguishes clients.
    fn describe(&self, picked: &[PickedKey<'_>]) -> Descriptor {
        let mut descriptor = Descriptor::default();
        for PickedKey { alternative, part, value, .. } in picked {
            let mut push = |value: &[u8]| {
                descriptor.push_value(*alternative, &part.attribute, self.known.issuer, value);
            };
            match value {
                Observation::Value(value) => push(value),
                Observation::Named(name) => push(name.to_string().as_bytes()),
                Observation::Missing | Observation::List(_) | Observation::Unknown => {}
            }
        }
        descriptor
    }
}

/// The numbers of a limit for one request.
struct NumbersOfRequest<'a> {
    algorithm: Algorithm,
    /// The numbers from the request.
    numbers: Vec<ExplainedNumber<'a>>,
}

impl RuleSet {
    /// The limits to which one rule was compiled: its own and, where they have one, their candidates.
    pub fn compiled(&self, rule: &Rule) -> &[CompiledLimit] {
        let index = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        let first = index(self.before(rule));
        self.limits().get(first..first.saturating_add(index(rule.limit_count()))).unwrap_or_default()
    }

    /// The number of limits before those of a rule of this set.
    fn before(&self, rule: &Rule) -> u32 {
        let rules = self.source().policies.iter().flat_map(|policy| &policy.rules);
        rules.take_while(|one| !std::ptr::eq(*one, rule)).map(Rule::limit_count).sum()
    }

    /// The buckets of one rule for these picked values, each with the cost of a request that names none.
    pub fn buckets_of<'a>(&'a self, rule: &'a Rule, picked: &[PickedKey<'a>], known: Knowledge<'a>) -> RuleCharges<'a> {
        let mut see = |_: &Attribute| Observation::Missing;
        let mut walk = Walk { rules: self, see: &mut see, known, plan: Plan::default(), next: LimitId(0) };
        match &rule.action {
            Action::Allow | Action::Deny => RuleCharges::default(),
            // A price that depends on the request is its default, since the request names none.
            Action::Charge(limits) => walk.charges(limits, LimitId(self.before(rule)), picked).unwrap_or_default(),
        }
    }
}

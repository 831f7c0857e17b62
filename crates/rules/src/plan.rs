//! Plans the charges of a request: [`RuleSet::plan`].

use std::convert::Infallible;

use smallvec::SmallVec;

use super::compiled_limit::CompiledLimit;
use super::compiled_rule::{CompiledCondition, CompiledRule, Slot};
use super::index::{Index, Indices};
use super::policy_walk::{Facts, Finding};
use super::resolved::{BodyRules, Values};
use super::rule_set::RuleSet;
use super::ruling::Ruling;
use super::settled_price::LearnedCosts;
use base::time::Timestamp;
use ledger::bucket_key::Descriptor;
use request::door::Door;
use request::identity::Claims;
use request::model_request::{ModelBody, ModelRequest};
use request::request::Request;

impl RuleSet {
    /// Determines what a request has to pay, or that the request is exempt or denied. `at` is the time for calendars
    /// and for rules that expire. The costs of earlier requests are treated as unknown.
    pub fn plan(&self, request: &Request<'_>, at: Timestamp) -> Ruling {
        self.walk(&mut Values::new(self.attributes(), request, at), &mut ())
    }

    /// Determines what a request would have to pay, as [`RuleSet::plan`] does, if nothing is known of its body. Rules,
    /// policies and exemptions that read the body do not apply.
    pub fn plan_without_body(&self, request: &Request<'_>, at: Timestamp) -> Ruling {
        let mut values = Values::new(self.attributes(), request, at);
        values.body_rules = BodyRules::LeftOut;
        self.walk(&mut values, &mut ())
    }
}

/// The descriptor that a rule has picked from a request, and the alternative that each limit key has used.
#[derive(Default)]
pub(crate) struct RuleDescriptor {
    descriptor: Descriptor,
    picked: SmallVec<[u8; 8]>,
}

impl Values<'_, '_> {
    /// Adds the values of the rule's limit keys. `None` if one of the keys has no value.
    fn describe(&mut self, rule: &CompiledRule, described: &mut RuleDescriptor) -> Option<()> {
        let issuer = self.request.claims.and_then(Claims::issuer);
        for key in &rule.keys {
            if self.leaves_out(key.parts.iter().copied()) {
                return None;
            }
            let (number, slot) = (0u8..).zip(&key.parts).find(|(_, slot)| self.of(**slot).is_some())?;
            let attribute = self.attribute(*slot);
            let value = self.of(*slot)?;
            described.descriptor.push_value(number, attribute, issuer, value);
            described.picked.push(number);
        }
        Some(())
    }
}

impl<'s> Facts<'s> for Values<'s, '_> {
    type Match = ();
    type Failure = ();
    type Unknown = Infallible;
    type Picked = RuleDescriptor;

    fn at(&self) -> Timestamp {
        self.at
    }

    fn is_forwarded(&mut self) -> bool {
        self.request.door == Door::Proxy
    }

    fn is_held(&mut self) -> bool {
        self.request.is_held
    }

    fn find(&mut self, index: &Index) -> Option<Indices> {
        Some(Values::find(self, index))
    }

    fn conditions(&mut self, conditions: &'s [CompiledCondition]) -> Finding<(), (), Infallible> {
        if self.hold(conditions) { Finding::Holds(()) } else { Finding::Fails(()) }
    }

    fn pick(&mut self, rule: &'s CompiledRule, picked: &mut RuleDescriptor) -> Finding<(), (), Infallible> {
        self.describe(rule, picked).map_or(Finding::Fails(()), Finding::Holds)
    }

    fn descriptor(picked: &RuleDescriptor) -> &Descriptor {
        &picked.descriptor
    }

    fn check_costs(
        &mut self,
        _: impl Iterator<Item = &'s CompiledLimit>,
        _: &RuleDescriptor,
    ) -> Result<(), Infallible> {
        Ok(())
    }

    fn variant(&mut self, limit: &'s CompiledLimit, RuleDescriptor { picked, .. }: &RuleDescriptor) -> u32 {
        let mut found = None;
        for part in limit.overrides.of_picked(|key| picked.get(key).copied()) {
            let Some(value) = self.of(part.slot) else { continue };
            found = found.into_iter().chain(part.variant(value)).min();
        }
        found.unwrap_or(0)
    }

    fn with_text<R>(&mut self, slot: Slot, read: impl FnOnce(Option<&[u8]>) -> R) -> R {
        read(self.of(slot))
    }

    fn learned_costs(&self) -> Option<&'s dyn LearnedCosts> {
        self.learned
    }

    fn model_request(&self) -> Option<&'s ModelRequest> {
        match self.request.model() {
            ModelBody::Read(request) => Some(request),
            ModelBody::Unread | ModelBody::Other => None,
        }
    }

    fn join(never: Infallible, _: Infallible) -> Infallible {
        never
    }
}

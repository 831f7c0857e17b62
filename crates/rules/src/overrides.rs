//! Chooses the numbers of a limit by the values of its limit keys.

use std::collections::HashMap;
use std::sync::Arc;

use super::compiled_rule::Slot;
use super::rule::{Override, OverrideNumbers, Rule};
use request::attribute::Attribute;

/// The overrides of one limit, compiled. Most limits have no overrides.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompiledOverrides {
    parts: Vec<PartOverrides>,
    /// The numbers of the overrides (the variants) that charge nothing, in ascending order.
    unlimited: Vec<u32>,
}

/// The overrides for the values of one alternative of a limit key.
#[derive(Clone, Debug)]
pub(crate) struct PartOverrides {
    /// The index of the limit key, in the order of the limit keys in a bucket's identity.
    pub key: usize,
    alternative: u8,
    pub slot: Slot,
    variants: HashMap<Arc<[u8]>, u32>,
    /// The values of the overrides in the rule itself. Overrides in a separate file are left out.
    in_rule: Vec<Arc<str>>,
}

impl PartOverrides {
    /// Returns the variant for a value: the number of its override, from 1. `None` if the value has no override.
    pub(crate) fn variant(&self, value: &[u8]) -> Option<u32> {
        self.variants.get(value).copied()
    }

    /// Returns the variant for the first overridden value for which `is_it` returns true. Values in a separate file are
    /// left out.
    pub(crate) fn variant_where(&self, mut is_it: impl FnMut(&[u8]) -> bool) -> Option<u32> {
        self.variant(self.in_rule.iter().find(|value| is_it(value.as_bytes()))?.as_bytes())
    }
}

impl CompiledOverrides {
    /// Compiles the overrides of a limit. `slot` returns the slot (index) of an attribute.
    pub(crate) fn compile(
        overrides: &[Override],
        rule: &Rule,
        mut slot: impl FnMut(&Attribute) -> Slot,
    ) -> CompiledOverrides {
        let mut compiled = Vec::new();
        for (key, limit_key) in rule.sorted_keys().into_iter().enumerate() {
            for (alternative, part) in (0u8..).zip(&limit_key.alternatives) {
                let (mut variants, mut in_rule) = (HashMap::new(), Vec::new());
                for (variant, one) in (1..).zip(overrides).filter(|(_, one)| *one.part == *part) {
                    variants.entry(Arc::clone(&one.value).into()).or_insert(variant);
                    in_rule.extend((one.index != Override::IN_FILE).then(|| Arc::clone(&one.value)));
                }
                if !variants.is_empty() {
                    compiled.push(PartOverrides { key, alternative, slot: slot(part), variants, in_rule });
                }
            }
        }
        let numbered = (1..).zip(overrides);
        let unlimited = numbered.filter(|(_, one)| one.numbers == OverrideNumbers::Unlimited);
        CompiledOverrides { parts: compiled, unlimited: unlimited.map(|(variant, _)| variant).collect() }
    }

    /// Returns whether both limits have overrides for the same values. `are_same` compares the variants for a value.
    pub(crate) fn are_alike(&self, other: &CompiledOverrides, are_same: impl Fn(u32, u32) -> bool) -> bool {
        let is_alike = |ours: &PartOverrides| {
            let theirs =
                other.parts.iter().find(|theirs| (theirs.key, theirs.alternative) == (ours.key, ours.alternative));
            theirs.is_some_and(|theirs| {
                let same = |(value, variant): (&Arc<[u8]>, &u32)| {
                    theirs.variants.get(value).is_some_and(|other| are_same(*variant, *other))
                };
                ours.variants.len() == theirs.variants.len() && ours.variants.iter().all(same)
            })
        };
        self.parts.len() == other.parts.len() && self.parts.iter().all(is_alike)
    }

    /// Returns whether this variant is an override that charges nothing.
    pub(crate) fn is_unlimited(&self, variant: u32) -> bool {
        !self.unlimited.is_empty() && self.unlimited.binary_search(&variant).is_ok()
    }

    /// Returns the overrides for the alternatives that the limit keys have used. `alternative` returns the index of the
    /// used alternative of a limit key.
    pub(crate) fn of_picked(&self, alternative: impl Fn(usize) -> Option<u8>) -> impl Iterator<Item = &PartOverrides> {
        self.parts.iter().filter(move |part| alternative(part.key) == Some(part.alternative))
    }
}

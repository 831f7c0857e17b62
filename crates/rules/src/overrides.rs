//! Chooses the numbers of a limit by the values of its limit keys.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::resolved::{Slot, Values};
use super::rule::{Fold, KeyPart, Override, OverrideNumbers, Rule};
use request::attribute::Attribute;

/// The overrides of one limit; most have none.
#[derive(Clone, Debug, Default)]
pub struct CompiledOverrides {
    parts: Vec<PartOverrides>,
    /// The variants that charge nothing, in order.
    unlimited: Vec<u32>,
}

/// The overrides for the values of one alternative of a limit key.
#[derive(Clone, Debug)]
struct PartOverrides {
    /// The index of the limit key, in the order of the bucket's identity.
    key: usize,
    alternative: u8,
    slot: Slot,
    part: KeyPart,
    variants: HashMap<Arc<[u8]>, u32>,
}

impl CompiledOverrides {
    /// Compiles overrides; `slot` returns the slot of an attribute.
    pub fn compile(overrides: &[Override], rule: &Rule, mut slot: impl FnMut(&Attribute) -> Slot) -> CompiledOverrides {
        let mut compiled = Vec::new();
        for (key, limit_key) in rule.sorted_keys().into_iter().enumerate() {
            for (alternative, part) in (0u8..).zip(&limit_key.alternatives) {
                let mut variants = HashMap::new();
                for (variant, one) in (1..).zip(overrides).filter(|(_, one)| *one.part == *part) {
                    variants.entry(Arc::clone(&one.value).into()).or_insert(variant);
                }
                if !variants.is_empty() {
                    compiled.push(PartOverrides {
                        key,
                        alternative,
                        slot: slot(&part.attribute),
                        part: part.clone(),
                        variants,
                    });
                }
            }
        }
        let numbered = (1..).zip(overrides);
        let unlimited = numbered.filter(|(_, one)| one.numbers == OverrideNumbers::Unlimited);
        CompiledOverrides { parts: compiled, unlimited: unlimited.map(|(variant, _)| variant).collect() }
    }

    /// Whether both have overrides for the same values. `are_same` compares two variants.
    pub fn are_alike(&self, other: &CompiledOverrides, are_same: impl Fn(u32, u32) -> bool) -> bool {
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

    /// Whether nothing is charged under this variant.
    pub fn is_unlimited(&self, variant: u32) -> bool {
        !self.unlimited.is_empty() && self.unlimited.binary_search(&variant).is_ok()
    }

    /// The override for a value, folded, of this attribute; `None` without one.
    pub fn of_value(&self, part: &KeyPart, value: &[u8]) -> Option<u32> {
        let mut of_part = self.parts.iter().filter(|overrides| overrides.part == *part);
        of_part.find_map(|overrides| overrides.variants.get(value).copied())
    }

    /// The variant for a request: the first override of the file that fits, or 0 without one. `picked` has the index of the
    /// alternative that had a value, for each limit key.
    pub fn variant(&self, picked: &[u8], values: &mut Values<'_, '_>) -> u32 {
        let mut found = None;
        for PartOverrides { key, alternative, slot, part, variants } in &self.parts {
            if picked.get(*key) != Some(alternative) {
                continue;
            }
            let Some(value) = values.of(*slot) else { continue };
            let value = match part.fold {
                Fold::Exact => Cow::Borrowed(value),
                Fold::Lower => Cow::Owned(value.to_ascii_lowercase()),
            };
            found = found.into_iter().chain(variants.get(&value[..]).copied()).min();
        }
        found.unwrap_or(0)
    }
}

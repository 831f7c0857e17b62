//! One limit of a rule, compiled: its numbers, its price, and how its buckets are named.

use std::collections::HashMap;

use super::claimed_numbers::ClaimedNumbers;
use super::compiled_rule::Slot;
use super::overrides::CompiledOverrides;
use super::rule::{Expose, Mode, OnStoreFailure, RefusalStatus};
use ledger::algorithm::Algorithm;
use ledger::bucket_key::{BucketKey, Descriptor, KeySeed, LimitTag};
use ledger::cost::Cost;
use request::attribute::Attribute;

/// One limit, with everything that responses and metrics need.
#[derive(Clone, Debug)]
pub struct CompiledLimit {
    pub policy: String,
    /// The name of the rule; `rule.limit` if the rule has several limits.
    pub name: String,
    pub mode: Mode,
    /// The meter, whose buckets the limit shares with other limits; a shadow has its own buckets.
    pub meter: Option<String>,
    /// The limit keys as they are printed; sorted, because their order does not matter.
    pub keys: Vec<String>,
    pub expose: Expose,
    pub refusal: RefusalStatus,
    pub on_store_failure: OnStoreFailure,
    /// The limit's own numbers, then those of its overrides. An override that charges nothing has the limit's own numbers.
    pub variants: Vec<Algorithm>,
    /// The numbers that come from credentials, if any; the numbers of overrides are fixed.
    pub claimed: Option<CompiledNumbers>,
    pub(super) price: CompiledPrice,
    pub(super) seed: KeySeed,
    pub(super) overrides: CompiledOverrides,
}

impl CompiledLimit {
    /// The identity of the limit's buckets: equal for two limits that charge the same buckets.
    pub fn identity(&self) -> BucketKey {
        self.bucket(&Descriptor::default())
    }

    /// The key of the bucket for a descriptor.
    pub fn bucket(&self, descriptor: &Descriptor) -> BucketKey {
        self.seed.key(descriptor)
    }

    /// The tag of a variant, by which its buckets are evicted.
    pub fn tag(&self, variant: u32) -> LimitTag {
        self.seed.tag().of_variant(variant)
    }

    /// Whether nothing is charged under this variant.
    pub(crate) fn is_unlimited(&self, variant: u32) -> bool {
        self.overrides.is_unlimited(variant)
    }

    /// Whether the overrides of both limits give the same numbers to the same values, in any order.
    pub(crate) fn has_overrides_of(&self, other: &CompiledLimit) -> bool {
        let numbers = |limit: &CompiledLimit, variant: u32| {
            let limited = !limit.is_unlimited(variant);
            limited.then(|| limit.variants.get(usize::try_from(variant).ok()?).copied()).flatten()
        };
        let same = |ours, theirs| {
            self.is_unlimited(ours) == other.is_unlimited(theirs) && numbers(self, ours) == numbers(other, theirs)
        };
        self.overrides.are_alike(&other.overrides, same)
    }

    pub(crate) fn algorithm_name(&self) -> &'static str {
        self.variants.first().map_or("", Algorithm::name)
    }

    /// The limit's own numbers as text, with the sources of those that come from credentials.
    pub fn numbers_text(&self) -> String {
        let numbers = self.variants.first().map(ToString::to_string).unwrap_or_default();
        self.claimed_text().map_or(numbers.clone(), |claimed| format!("{numbers}; {claimed}"))
    }

    /// The sources of the numbers that come from credentials, as text.
    pub fn claimed_text(&self) -> Option<String> {
        self.claimed.as_ref().map(|claimed| claimed.claimed.to_string())
    }

    /// Whether a request can cost more than a full bucket of the limit, or of one of its overrides.
    pub fn may_be_too_large(&self) -> bool {
        let most = match self.price {
            CompiledPrice::Fixed(cost) => Some(cost),
            CompiledPrice::FromRequest { default, min, max, .. } => max.map(|max| max.max(min).max(default)),
        };
        // A number that is claimed may be 0.
        self.claimed.is_some() || most.is_none_or(|most| self.variants.iter().any(|numbers| most > numbers.ceiling()))
    }
}

/// Combines the numbers of limits that share buckets, because any of these limits may charge each bucket.
pub(crate) fn combine_meters(limits: &mut [CompiledLimit]) {
    let mut combined: HashMap<BucketKey, Algorithm> = HashMap::new();
    for limit in limits.iter().filter(|limit| limit.meter.is_some()) {
        let most = limit.claimed.as_ref().map(|claimed| claimed.claimed.base);
        for numbers in limit.variants.iter().chain(&most) {
            let all = combined.entry(limit.identity()).or_insert(*numbers);
            *all = all.alongside(numbers);
        }
    }
    for limit in limits.iter_mut().filter(|limit| limit.meter.is_some()) {
        let Some(all) = combined.get(&limit.identity()) else { continue };
        let claimed = limit.claimed.as_mut().map(|claimed| &mut claimed.claimed.base);
        limit.variants.iter_mut().chain(claimed).for_each(|numbers| *numbers = numbers.alongside(all));
    }
}

/// The price of a request, compiled.
#[derive(Clone, Debug)]
pub(crate) enum CompiledPrice {
    Fixed(Cost),
    FromRequest { slot: Slot, default: Cost, min: Cost, max: Option<Cost> },
}

/// The numbers of a limit, some of which come from credentials, compiled.
#[derive(Clone, Debug)]
pub struct CompiledNumbers {
    pub claimed: ClaimedNumbers,
    /// The slots of the attributes that supply the numbers, in the order of the numbers.
    pub slots: Vec<Slot>,
}

impl CompiledNumbers {
    /// Compiles the numbers; `slot` returns the slot of an attribute.
    pub fn compile(claimed: &ClaimedNumbers, mut slot: impl FnMut(&Attribute) -> Slot) -> CompiledNumbers {
        let slots = claimed.numbers.iter().map(|number| slot(&number.from)).collect();
        CompiledNumbers { claimed: claimed.clone(), slots }
    }
}

//! Defines a limit of a rule after compilation: its numbers, its price, and the seed of its bucket keys.

use std::collections::HashMap;
use std::slice;
use std::sync::Arc;

use super::claimed_numbers::ClaimedNumbers;
use super::compiled_rule::Slot;
use super::overrides::CompiledOverrides;
use super::rule::{BanStatus, Expose, Mode, OnStoreFailure, RefusalStatus};
use super::settled_price::{SettledPrice, Unit};
use ledger::algorithm::Algorithm;
use ledger::algorithm::lease::Purse;
use ledger::bucket_key::{BucketKey, Descriptor, KeySeed, LimitTag};
use ledger::cost::Cost;
use request::attribute::Attribute;
use smallvec::SmallVec;

/// A limit of a rule, compiled: with its settings, its price and the identity of its buckets.
#[derive(Clone, Debug)]
pub struct CompiledLimit {
    pub policy: String,
    /// The name of the rule; `rule.limit` if the rule has several limits.
    pub name: String,
    pub mode: Mode,
    /// The name of the meter whose buckets the limit shares with other limits. `None` if the limit has its own buckets.
    /// A limit in shadow mode (a dry run) always has its own buckets.
    pub meter: Option<String>,
    /// The limit keys in their printed form, sorted, because their order in the file does not matter.
    pub keys: Vec<String>,
    pub expose: Expose,
    pub refusal: RefusalStatus,
    pub ban_status: BanStatus,
    pub on_store_failure: OnStoreFailure,
    /// The limit's own settings, and after them the settings of each override. For an override that charges nothing,
    /// these are the limit's own settings.
    pub variants: Vec<Algorithm>,
    /// The settings that come from credentials; `None` if all settings are fixed. The settings of overrides are always
    /// fixed.
    pub claimed: Option<CompiledNumbers>,
    pub(super) price: CompiledPrice,
    pub(super) seed: KeySeed,
    pub(super) overrides: CompiledOverrides,
}

impl CompiledLimit {
    /// Returns a key that identifies the limit's buckets. Two limits that charge the same buckets have the same key.
    pub fn identity(&self) -> BucketKey {
        self.bucket(&Descriptor::default())
    }

    /// Returns the key of the limit's bucket for a descriptor. For a limit over several regions, that is the bucket at home.
    pub fn bucket(&self, descriptor: &Descriptor) -> BucketKey {
        self.seed.key(descriptor)
    }

    /// Returns the key of the bucket that a request with these numbers charges: for a limit over several regions, the purse.
    pub fn charged_bucket(&self, descriptor: &Descriptor, numbers: &Algorithm) -> BucketKey {
        match numbers {
            Algorithm::Purse(purse) => self.bucket(descriptor).across(purse),
            _ => self.bucket(descriptor),
        }
    }

    /// Returns the purses of a limit that holds over several regions. `None` for any other limit.
    pub fn purse(&self) -> Option<&Purse> {
        match self.variants.first() {
            Some(Algorithm::Purse(purse)) => Some(purse),
            _ => None,
        }
    }

    /// Makes the limit hold in one region alone.
    pub(crate) fn set_in_one_region(&mut self) {
        let claimed = self.claimed.as_mut().map(|claimed| &mut claimed.claimed.base);
        self.variants.iter_mut().chain(claimed).for_each(|numbers| *numbers = numbers.in_one_region());
    }

    /// Returns whether the bucket with this key is one of this limit, which must have bans.
    pub fn has_bucket(&self, key: &BucketKey) -> bool {
        self.seed.has(key)
    }

    /// Returns the tag of the buckets with the settings of this variant. A store that evicts buckets groups them by
    /// tag. `variant` is 0 for the limit's own settings, and the number of an override for its settings.
    pub fn tag(&self, variant: u32) -> LimitTag {
        self.seed.tag().of_variant(variant)
    }

    /// Returns the price of a budget, whose costs are known only when a request has ended. `None` for all other limits.
    pub fn settled_price(&self) -> Option<&SettledPrice> {
        self.shared_price().map(AsRef::as_ref)
    }

    /// Returns the same price as [`CompiledLimit::settled_price`], for a request that must keep it.
    pub fn shared_price(&self) -> Option<&Arc<SettledPrice>> {
        match &self.price {
            CompiledPrice::Settled { price, .. } => Some(price),
            CompiledPrice::Fixed(_) | CompiledPrice::FromRequest { .. } => None,
        }
    }

    /// Returns whether the limit counts the tokens of language models, or their cost in money.
    pub fn counts_models(&self) -> bool {
        self.settled_price().is_some_and(|price| price.source.is_llm())
    }

    pub fn unit(&self) -> Unit {
        self.settled_price().map_or(Unit::Requests, SettledPrice::unit)
    }

    /// Returns the source of the costs as text. `None` if the costs are known before the response.
    pub(crate) fn settled_source(&self) -> Option<String> {
        self.settled_price().map(|price| price.source.to_string())
    }

    /// Returns the slots of the attributes that name the cost or the settings of this limit.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + use<'_> {
        let claimed = self.claimed.iter().flat_map(|claimed| claimed.slots.iter());
        self.price.slots().iter().chain(claimed).copied()
    }

    /// Returns whether this variant is an override that charges nothing.
    pub(crate) fn is_unlimited(&self, variant: u32) -> bool {
        self.overrides.is_unlimited(variant)
    }

    /// Returns whether the overrides of both limits give the same settings to the same values, in any order. What a region leases of
    /// them is no setting of an override.
    pub(crate) fn has_overrides_of(&self, other: &CompiledLimit) -> bool {
        let numbers = |limit: &CompiledLimit, variant: u32| {
            let limited = !limit.is_unlimited(variant);
            limited.then(|| Some(limit.variants.get(usize::try_from(variant).ok()?)?.in_one_region())).flatten()
        };
        let same = |ours, theirs| {
            self.is_unlimited(ours) == other.is_unlimited(theirs) && numbers(self, ours) == numbers(other, theirs)
        };
        self.overrides.are_alike(&other.overrides, same)
    }

    /// Returns whether a request beyond the limit begins a ban.
    pub fn bans(&self) -> bool {
        self.variants.first().is_some_and(|numbers| numbers.ban().is_some())
    }

    /// Returns whether the end of a request can also forget what was spent.
    pub(crate) fn resets(&self) -> bool {
        self.settled_price().is_some_and(|price| price.source.resets())
    }

    pub(crate) fn algorithm_name(&self) -> &'static str {
        self.variants.first().map_or("", Algorithm::name)
    }

    /// Returns the limit's own settings as text. The text names the sources of settings that come from credentials, and
    /// of the costs of a budget.
    pub fn numbers_text(&self) -> String {
        let numbers = |numbers: &Algorithm| numbers.display(self.unit().format()).to_string();
        let numbers = self.variants.first().map(numbers).unwrap_or_default();
        let claimed = self.claimed_text();
        let settled = self.settled_price().map(ToString::to_string);
        [Some(numbers), claimed, settled].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Returns the sources of the settings that come from credentials, as text. `None` if all settings are fixed.
    pub fn claimed_text(&self) -> Option<String> {
        self.claimed.as_ref().map(|claimed| claimed.claimed.to_string())
    }

    /// Returns whether a request can cost more than a full bucket of the limit, or of one of its overrides, holds.
    pub fn may_be_too_large(&self) -> bool {
        let most = match &self.price {
            CompiledPrice::Fixed(cost) => Some(*cost),
            CompiledPrice::FromRequest { default, min, max, .. } => max.map(|max| max.max(*min).max(*default)),
            CompiledPrice::Settled { price, .. } => price.reserve.most(),
        };
        // A number from credentials may be 0, and then every cost is too large.
        self.claimed.is_some() || most.is_none_or(|most| self.variants.iter().any(|numbers| most > numbers.ceiling()))
    }
}

/// Adjusts the settings of limits that share the buckets of a meter, because each of them may charge these buckets.
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

/// The cost of a request, compiled: fixed, or read from the attribute with the index `slot`.
#[derive(Clone, Debug)]
pub(crate) enum CompiledPrice {
    Fixed(Cost),
    FromRequest {
        slot: Slot,
        default: Cost,
        min: Cost,
        max: Option<Cost>,
    },
    Settled {
        price: Arc<SettledPrice>,
        /// The slots of the attributes that the reserve reads, in their order.
        slots: SmallVec<[Slot; 1]>,
    },
}

impl CompiledPrice {
    /// Returns the slots of the attributes that the price reads.
    pub(crate) fn slots(&self) -> &[Slot] {
        match self {
            CompiledPrice::Fixed(_) => &[],
            CompiledPrice::FromRequest { slot, .. } => slice::from_ref(slot),
            CompiledPrice::Settled { slots, .. } => slots,
        }
    }
}

/// The settings of a limit, of which some come from credentials.
#[derive(Clone, Debug)]
pub struct CompiledNumbers {
    pub claimed: ClaimedNumbers,
    /// The slots (indexes) of the attributes from which the settings are read, in the order of the settings.
    pub slots: Vec<Slot>,
}

impl CompiledNumbers {
    /// Compiles settings that come from credentials. `slot` returns the slot (index) of an attribute.
    pub fn compile(claimed: &ClaimedNumbers, mut slot: impl FnMut(&Attribute) -> Slot) -> CompiledNumbers {
        let slots = claimed.numbers.iter().map(|number| slot(&number.from)).collect();
        CompiledNumbers { claimed: claimed.clone(), slots }
    }
}

//! Finds the subjects of the buckets of a meter: those that this gateway has charged, and those of which other gateways have told the
//! store.

use std::collections::BTreeMap;

use super::bucket_lookup::LookupError;
use super::bucket_query::Buckets;
use crate::gateway::telemetry::records::IndexedSubject;
use base::time::Timestamp;
use ledger::algorithm::Algorithm;
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use rules::claimed_numbers::NumberKind;
use rules::rule::Mode;
use rules::rule_set::CompiledLimit;
use stores::{SubjectName, SubjectNames};

/// The subjects of the buckets of some meters.
#[derive(Debug)]
pub(super) struct KnownSubjects<'c> {
    pub by_bucket: BTreeMap<BucketKey, KnownSubject<'c>>,
    /// Whether all subjects are there. The index of a meter is bounded.
    pub are_all: bool,
}

/// The subject of a bucket.
#[derive(Clone, Debug)]
pub(super) struct KnownSubject<'c> {
    /// The attribute that names the subject, and its value.
    pub attribute: String,
    pub value: Vec<u8>,
    /// The limit for which the bucket was last charged, and its numbers.
    pub limit: &'c CompiledLimit,
    pub algorithm: Algorithm,
    is_shared: bool,
    /// When the bucket was last charged, by the clock of the store.
    charged: Timestamp,
}

impl<'c> KnownSubjects<'c> {
    /// Finds the subjects of these meters. A bucket that several subjects share has none.
    ///
    /// # Errors
    /// When the store does not answer.
    pub(super) fn of_meters(buckets: &Buckets<'c>, meters: &[String]) -> Result<KnownSubjects<'c>, LookupError> {
        let (gateway, config) = (buckets.gateway, &buckets.snapshot.config);
        let Some(records) = config.records.as_ref().filter(|records| {
            // Subjects are only known of meters that are recorded.
            meters.iter().any(|meter| records.meters.contains(meter))
        }) else {
            return Ok(KnownSubjects { by_bucket: BTreeMap::new(), are_all: true });
        };
        let is_chosen = |limit: &&CompiledLimit| {
            limit.mode == Mode::Enforce && limit.meter.as_ref().is_some_and(|meter| meters.contains(meter))
        };
        let limits: Vec<&'c CompiledLimit> = config.rules.limits().iter().filter(is_chosen).collect();
        let limit_of = |policy: &str, name: &str| {
            limits.iter().copied().find(|limit| limit.policy == policy && limit.name == name)
        };
        let is_one = |policy: &str, name: &str| limit_of(policy, name).is_some();
        let own = gateway.records.subjects.of_limits(is_one, gateway.clock.now());
        let own = own.into_iter().filter_map(
            |(key, IndexedSubject { attribute, value, algorithm, limit, is_shared, charged, .. })| {
                let charged = gateway.store.clock_at(charged);
                let (attribute, value, limit) =
                    (attribute.into_string(), value.into_vec(), limit_of(&limit.0, &limit.1)?);
                Some((key, KnownSubject { attribute, value, limit, algorithm, is_shared, charged }))
            },
        );
        let SubjectNames { names, is_full } = told(buckets, meters)?;
        let others = names.into_iter().filter_map(|name| {
            let SubjectName { bucket, policy, limit, attribute, value, ceiling, is_shared, charged, .. } = name;
            let limit = limit_of(&policy, &limit)?;
            let algorithm = numbers(limit, ceiling)?;
            Some((bucket, KnownSubject { attribute, value, limit, algorithm, is_shared, charged }))
        });
        let mut by_bucket: BTreeMap<BucketKey, KnownSubject<'c>> = BTreeMap::new();
        for (key, known) in own.chain(others) {
            match by_bucket.get_mut(&key) {
                Some(other) => other.join(known),
                None => drop(by_bucket.insert(key, known)),
            }
        }
        // A reload may have taken an attribute off the list.
        by_bucket.retain(|_, known| !known.is_shared && records.names(&known.attribute));
        Ok(KnownSubjects { by_bucket, are_all: !is_full })
    }
}

impl KnownSubject<'_> {
    /// Returns the attribute and its value, in the form of an argument of `tollgate bucket`.
    pub(super) fn text(&self) -> String {
        format!("{}={}", self.attribute, String::from_utf8_lossy(&self.value))
    }

    /// Adds what is known of the same bucket from elsewhere.
    fn join(&mut self, other: Self) {
        let is_shared = self.is_shared || other.is_shared || self.value != other.value;
        if other.charged > self.charged {
            *self = other;
        }
        self.is_shared = is_shared;
    }
}

/// Reads the names of which gateways have told the store. None for buckets in memory.
fn told(buckets: &Buckets<'_>, meters: &[String]) -> Result<SubjectNames, LookupError> {
    let mut all = SubjectNames::default();
    if buckets.memory.is_some() {
        return Ok(all);
    }
    buckets.inspect(async |look| {
        for meter in meters {
            let SubjectNames { names, is_full } = look.subjects(meter).await?;
            all.names.extend(names);
            all.is_full |= is_full;
        }
        Ok(())
    })?;
    Ok(all)
}

/// Returns the numbers of a limit with this burst or limit: its own, those of an override, or those that credentials have set.
fn numbers(limit: &CompiledLimit, ceiling: Cost) -> Option<Algorithm> {
    let fixed = limit.variants.iter().find(|numbers| numbers.ceiling() == ceiling).copied();
    let claimed = || {
        let claimed = &limit.claimed.as_ref()?.claimed;
        Some(claimed.with(|number| match number.kind {
            NumberKind::Rps => number.default,
            NumberKind::Burst | NumberKind::Limit => ceiling,
        }))
    };
    fixed.or_else(claimed).or_else(|| limit.variants.first().copied())
}

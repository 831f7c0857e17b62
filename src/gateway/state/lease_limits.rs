//! Counts what a keeper of leases has done, at the limit to which the purses belong.

use std::collections::HashSet;
use std::sync::Arc;

use super::snapshot::Snapshot;
use crate::gateway::telemetry::lease_health::LeaseHealth;
use crate::gateway::telemetry::metrics::LeaseMetrics;
use config::Home;
use ledger::algorithm::Algorithm;
use ledger::algorithm::lease::Purse;
use ledger::bucket_key::LimitTag;
use ledger::cost::Cost;
use rules::rule_set::CompiledLimit;
use rules::settled_price::Unit;
use stores::{KeeperSettings, LeaseEvent};

/// The variants of a limit whose buckets have different tags: its own numbers, and those of its overrides.
const VARIANTS: [u32; 2] = [0, 1];

/// Returns the settings of the keeper of leases.
pub(crate) fn keeper_settings(home: &Home) -> KeeperSettings {
    let regions = u64::try_from(home.regions.len()).unwrap_or(u64::MAX);
    KeeperSettings { region: Arc::from(&*home.region), regions, timeout: home.timeout }
}

/// Returns the purses of limits with the numbers in the file, with the tags of their buckets. Those from credentials are not in the
/// file.
pub(crate) fn purses(snapshot: &Snapshot) -> impl Iterator<Item = (LimitTag, Purse)> {
    let of_limit = |limit: &CompiledLimit| {
        let tagged = (0..).zip(&limit.variants).map(|(variant, numbers)| (limit.tag(variant), numbers));
        let purse = |(tag, numbers): (LimitTag, &Algorithm)| match numbers {
            Algorithm::Purse(purse) => Some((tag, *purse)),
            _ => None,
        };
        tagged.filter_map(purse).collect::<Vec<_>>()
    };
    snapshot.config.rules.limits().iter().flat_map(of_limit)
}

/// Returns the tags of the buckets of limits over several regions whose numbers may come from credentials.
pub(crate) fn claimed_purses(snapshot: &Snapshot) -> HashSet<LimitTag> {
    let limits = snapshot.config.rules.limits().iter();
    let claimed = limits.filter(|limit| limit.claimed.is_some() && limit.purse().is_some());
    claimed.flat_map(|limit| (0..).zip(&limit.variants).map(|(variant, _)| limit.tag(variant))).collect()
}

/// Counts an event of the keeper of leases.
pub(crate) fn count_lease_event(health: &LeaseHealth, snapshot: &Snapshot, event: LeaseEvent) {
    match event {
        LeaseEvent::Called { words, took, healed, fault } => {
            health.record_call(words, took, fault.as_ref());
            health.record_healed(healed);
        }
        LeaseEvent::Leased { tag, amount } => of_limit(snapshot, tag, |metrics| metrics.leased.add(amount)),
        LeaseEvent::Returned { tag, amount } => of_limit(snapshot, tag, |metrics| metrics.returned.add(amount)),
        LeaseEvent::Stranded { tag, amount } => of_limit(snapshot, tag, |metrics| metrics.stranded.add(amount)),
        LeaseEvent::Held(held) => {
            for (limit, metrics) in snapshot.all_limits() {
                if let Some(leases) = &metrics.leases {
                    let of_variants = VARIANTS.iter().filter_map(|variant| held.get(&limit.tag(*variant)));
                    leases.held.set(number(of_variants.fold(Cost::default(), |sum, held| sum.plus(*held))));
                }
            }
        }
    }
}

fn number(amount: Cost) -> f64 {
    Unit::Requests.number(amount)
}

/// Calls `count` with the metrics of the limit whose buckets have this tag. A limit that a reload has removed has none.
fn of_limit(snapshot: &Snapshot, tag: LimitTag, count: impl FnOnce(&LeaseMetrics)) {
    let found = snapshot
        .all_limits()
        .find(|(limit, metrics)| metrics.leases.is_some() && VARIANTS.iter().any(|variant| limit.tag(*variant) == tag));
    if let Some(metrics) = found.and_then(|(_, metrics)| metrics.leases.as_ref()) {
        count(metrics);
    }
}

//! Finds what lets limits over several regions grant more than their numbers, or refuse what they should grant.

use super::doors::{doors_of, lacks};
use super::file::File;
use super::location::Finding;
use crate::keys::rules::scope::HomeFailure;
use crate::language::duration;
use ledger::algorithm::Algorithm;
use request::door::Door;
use rules::rule::{Action, Limit, OnStoreFailure};
use stores::postgres::Durability;

/// Finds a region whose buckets are in the memory of its gateways. Two gateways of the region then speak at home as one, although each
/// has a purse of its own.
pub(super) fn region_in_memory(file: &File<'_>) -> Vec<Finding> {
    if file.config.home.is_none() || file.config.store.is_shared() {
        return Vec::new();
    }
    let what = "has its purses in the memory of one gateway: a second gateway of this region, or an upgrade, can pass more \
                than a limit with `scope: global` allows";
    let location = file.root.key("store").key("home").key("region");
    vec![location.finding(what, "take `redis` or `postgres` as the store of the region")]
}

/// Finds a home on PostgreSQL that can forget what it has acknowledged.
pub(super) fn home_durability(file: &File<'_>) -> Vec<Finding> {
    let durability = file.config.home.as_ref().and_then(|home| home.store.durability());
    let Some(durability) = durability.filter(|durability| *durability != Durability::Sync) else { return Vec::new() };
    let is = durability.name();
    let what = format!(
        "is {is}: after a crash or failover of home, all regions together can pass again what it has forgotten"
    );
    let location = file.root.key("store").key("home").key("postgres").key("durability");
    vec![location.finding(what, "set `durability: sync`")]
}

/// Finds a home without which each region decides by its share, beside what others have leased.
pub(super) fn home_local(file: &File<'_>) -> Vec<Finding> {
    let Some(home) = file.config.home.as_ref().filter(|home| home.on_failure == HomeFailure::Local) else {
        return Vec::new();
    };
    let regions = home.regions.len();
    if regions < 2 {
        return Vec::new();
    }
    let what = format!(
        "is local: while home is away, {} of {regions} regions can pass their shares beside what another has leased: up to {} % \
         more than a limit in a period",
        regions - 1,
        (100 * (regions - 1)).div_ceil(regions)
    );
    let location = file.root.key("store").key("home").key("on_failure");
    vec![location.finding(what, "take `deny` if the limits must hold")]
}

/// Finds limits over several regions that grant something while the store of a region gives no answer.
pub(super) fn global_without_store(file: &File<'_>) -> Vec<Finding> {
    let rules = file.rules().filter(|located| located.is_enforced());
    let found = rules.filter_map(|located| {
        let Action::Charge(limits) = &located.rule.action else { return None };
        let is_global = |limit: &&Limit| matches!(limit.algorithm, Algorithm::Purse(_));
        let what = match limits.iter().find(is_global)?.on_store_failure {
            OnStoreFailure::Deny => return None,
            OnStoreFailure::Local => "lets each region pass one more lease in each outage of its store",
            OnStoreFailure::Allow => "lets a region pass everything in an outage of its store",
        };
        let what = format!("{what}: the limit over all regions can be exceeded");
        let hint = "leave it out: a limit with `scope: global` then answers 503";
        Some(located.location.key("on_store_failure").finding(what, hint))
    });
    found.collect()
}

/// Finds doors at which a decision ends before home can answer. Requests that have to wait for home are then refused, although home
/// would grant them.
pub(super) fn short_answer(file: &File<'_>) -> Vec<Finding> {
    let Some(home) = &file.config.home else { return Vec::new() };
    let is_global = |limit: &Limit| matches!(limit.algorithm, Algorithm::Purse(_));
    let has_purse = |action: &Action| matches!(action, Action::Charge(limits) if limits.iter().any(is_global));
    let global = file.rules().filter(|located| located.is_enforced() && has_purse(&located.rule.action));
    let global = global.collect::<Vec<_>>();
    let deciding = file.config.listeners.iter().enumerate();
    let found = deciding.filter_map(|(index, listener)| {
        let decide = listener.decide.as_ref()?;
        let hurried = |door: &Door| decide.answer_within_at(*door).is_some_and(|most| most < home.timeout);
        let (rule, door) = global.iter().find_map(|located| {
            let mut doors = doors_of(listener, located).into_iter();
            let door = doors.find(|door| hurried(door) && !lacks(located, *door))?;
            Some((&located.rule.name, door))
        })?;
        let most = duration::print(decide.answer_within_at(door)?);
        let what = format!(
            "is {most} at {}: if home is further away, the first request of each key of `{rule}` is refused, though nothing is \
             spent",
            door.name()
        );
        let hint = format!(
            "set at least the round trip to home, as `store.home.timeout` ({}), and a longer timeout in the proxy that asks",
            duration::print(home.timeout)
        );
        let location = file.root.key("listeners").member(index).key("answer_within");
        Some(location.finding(what, hint))
    });
    found.collect()
}

/// Finds a home at which no limit lives. Each region then grants every limit in full.
pub(super) fn home_unused(file: &File<'_>) -> Vec<Finding> {
    let limits = file.config.rules.limits();
    if file.config.home.is_none() || limits.is_empty() || limits.iter().any(|limit| limit.purse().is_some()) {
        return Vec::new();
    }
    let what = "has no effect: no limit has `scope: global`, and each region grants every limit in full";
    let hint = "add `scope: global` to the limits that all regions share, or remove `home`";
    vec![file.root.key("store").key("home").finding(what, hint)]
}

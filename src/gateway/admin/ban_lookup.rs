//! Finds the limit with a `ban` that an operator names, and its buckets.

use std::collections::BTreeSet;

use super::bucket_lookup::{BucketSelection, Limit, LookupError, limits_of, named};
use config::Config;
use ledger::bucket_key::BucketKey;
use rules::rule_set::CompiledLimit;

/// Finds the limit with this name that has a `ban`. `name` is the name of a rule, a limit or a meter.
///
/// # Errors
/// When the rule does not exist, or not exactly one of its limits with this name has a `ban`.
pub(crate) fn limit_with_ban<'c>(config: &'c Config, name: &str) -> Result<&'c CompiledLimit, LookupError> {
    let mut limits: Vec<&CompiledLimit> = Vec::new();
    for (policy, rule, wanted) in named(config, name)? {
        limits.extend(limits_of(config, policy, rule, wanted).filter(|limit| limit.bans()));
    }
    // The limits of a meter share their buckets.
    limits.dedup_by_key(|limit| limit.identity());
    match limits[..] {
        [limit] => Ok(limit),
        [] => Err(no_ban(name)),
        _ => Err(several_bans(name, limits.iter().map(|limit| &*limit.name))),
    }
}

/// Keeps the buckets of the only limit that has a `ban`, and of its numbers to try. `name` is the name on the command line.
///
/// # Errors
/// When no limit has a `ban`, or several have.
pub(crate) fn with_ban(name: &str, mut chosen: Vec<BucketSelection>) -> Result<Vec<BucketSelection>, LookupError> {
    chosen.retain(|chosen| chosen.limit.as_ref().is_some_and(|limit| limit.algorithm.ban().is_some()));
    let limits = chosen.iter().filter_map(|chosen| chosen.limit.as_ref());
    let names: BTreeSet<&str> = limits.map(|limit| limit.meter.as_ref().unwrap_or(&limit.name).as_str()).collect();
    match names.len() {
        0 => Err(no_ban(name)),
        1 => Ok(chosen),
        _ => Err(several_bans(name, names.into_iter())),
    }
}

/// Returns the bucket with this key, which was found by `hash`, the beginning of its name in the access log.
///
/// # Errors
/// When not exactly one limit with this name has a `ban`, or the bucket is one of another limit.
pub(crate) fn bucket_of(
    config: &Config,
    name: &str,
    key: BucketKey,
    hash: &str,
) -> Result<Vec<BucketSelection>, LookupError> {
    let limit = limit_with_ban(config, name)?;
    // A ban that is written into the bucket of another limit would destroy its state.
    match limit.has_bucket(&key) {
        true => Ok(vec![BucketSelection { key, limit: Limit::of(limit), of: None }]),
        false => Err(format!("bucket {hash} is not one of {}", limit.name).into()),
    }
}

fn no_ban(name: &str) -> LookupError {
    format!("{name} has no `ban`: only a limit with `ban` can ban its clients").into()
}

fn several_bans<'n>(name: &str, limits: impl Iterator<Item = &'n str>) -> LookupError {
    format!("several limits of {name} have a `ban`: name one of {}", limits.collect::<Vec<_>>().join(", ")).into()
}

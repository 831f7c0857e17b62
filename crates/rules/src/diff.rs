//! Compares two rule sets. Finds the limits of the new rule set that cannot use the buckets of the old rule set.
//!
//! A bucket is identified by its policy, rule, limit, mode, algorithm and set of limit keys. The values that the keys
//! pick from a request also identify it. So a change of numbers, conditions or positions in the file keeps the amount
//! spent. After a change of a name, the buckets start full again. The buckets of a meter have the meter's name in place
//! of policy, rule and limit.

use std::collections::HashSet;
use std::fmt;

use super::rule::Mode;
use super::rule_set::{CompiledLimit, RuleSet};
use ledger::bucket_key::BucketKey;

/// A limit whose buckets start full again after a change of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetLimit {
    pub policy: String,
    /// The name of the rule; `rule.limit` if the rule has several limits.
    pub limit: String,
    pub mode: Mode,
    pub why: ResetCause,
}

/// A change of a limit that gives other keys to its buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResetCause {
    /// The old file has no limit of this name in a policy of this name.
    Name,
    Keys {
        was: Vec<String>,
        is: Vec<String>,
    },
    Algorithm {
        was: &'static str,
        is: &'static str,
    },
    /// The cost has another source or unit. `None` is a cost that is known before the response.
    CostSource {
        was: Option<String>,
        is: Option<String>,
    },
    /// The limit has got a `reset_on`, or has one no more.
    ResetOn {
        has: bool,
    },
    /// The limit has got a `ban`, or has one no more.
    Ban {
        has: bool,
    },
    /// The limit holds over all regions now, or in one region alone.
    Scope {
        is_global: bool,
    },
    Mode {
        was: Mode,
    },
    /// The limit has joined, left or changed its meter. `None`: the limit has buckets of its own.
    Meter {
        was: Option<String>,
        is: Option<String>,
    },
}

impl fmt::Display for ResetLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.mode == Mode::Shadow { " (shadow)" } else { "" };
        write!(f, "policy {}, limit {}{mode}: ", self.policy, self.limit)?;
        match &self.why {
            ResetCause::Name => f.write_str("it was not there before"),
            ResetCause::Keys { was, is } => write!(f, "limit_keys were [{}], are [{}]", was.join(", "), is.join(", ")),
            ResetCause::Algorithm { was, is } => write!(f, "algorithm was {was}, is {is}"),
            ResetCause::CostSource { was, is } => {
                let name = |source: &Option<String>| source.clone().unwrap_or_else(|| "not of the response".to_owned());
                write!(f, "cost_source was {}, is {}", name(was), name(is))
            }
            ResetCause::Meter { was, is } => {
                let name = |meter: &Option<String>| meter.clone().unwrap_or_else(|| "unset".to_owned());
                write!(f, "meter was {}, is {}", name(was), name(is))
            }
            ResetCause::ResetOn { has: true } => f.write_str("it has reset_on now"),
            ResetCause::ResetOn { has: false } => f.write_str("it has no reset_on any more"),
            ResetCause::Ban { has: true } => f.write_str("it has a ban now"),
            ResetCause::Ban { has: false } => f.write_str("it has no ban any more"),
            ResetCause::Scope { is_global: true } => f.write_str("scope was regional, is global"),
            ResetCause::Scope { is_global: false } => f.write_str("scope was global, is regional"),
            ResetCause::Mode { was } => write!(f, "mode was {}, is {}", was.name(), self.mode.name()),
        }
    }
}

/// Returns the limits whose buckets start full again, in the order of the new file.
pub fn reset_limits(before: &RuleSet, after: &RuleSet) -> Vec<ResetLimit> {
    let known: HashSet<BucketKey> = before.limits().iter().map(CompiledLimit::identity).collect();
    // A limit that joins a meter loses its own buckets, even if the meter's buckets are kept.
    let joins = |limit: &&CompiledLimit| {
        let is_it =
            |old: &&CompiledLimit| (&old.policy, &old.name, old.mode) == (&limit.policy, &limit.name, limit.mode);
        limit.meter.is_some() && before.limits().iter().find(is_it).is_some_and(|old| old.meter != limit.meter)
    };
    let unknown = after.limits().iter().filter(|limit| !known.contains(&limit.identity()) || joins(limit));
    let reset = |limit: &CompiledLimit| ResetLimit {
        policy: limit.policy.clone(),
        limit: limit.name.clone(),
        mode: limit.mode,
        why: why(before, after, limit),
    };
    unknown.map(reset).collect()
}

fn why(before: &RuleSet, after: &RuleSet, limit: &CompiledLimit) -> ResetCause {
    let named = |one: &&CompiledLimit| one.policy == limit.policy && one.name == limit.name;
    let of_mode = |rules: &'_ RuleSet, mode: Mode| rules.limits().iter().filter(named).any(|one| one.mode == mode);
    let of_meter = |one: &&CompiledLimit| limit.meter.is_some() && one.meter == limit.meter;
    let same = before.limits().iter().filter(named).find(|old| old.mode == limit.mode);
    let Some(old) = same.or_else(|| before.limits().iter().find(of_meter)) else {
        // The limit has changed its mode if only the old file has it in the other mode. A shadow limit that was added
        // beside an enforced limit is new.
        let other = if limit.mode == Mode::Shadow { Mode::Enforce } else { Mode::Shadow };
        let changed = of_mode(before, other) && !of_mode(after, other);
        return if changed { ResetCause::Mode { was: other } } else { ResetCause::Name };
    };
    if old.meter != limit.meter {
        return ResetCause::Meter { was: old.meter.clone(), is: limit.meter.clone() };
    }
    match (old.algorithm_name(), limit.algorithm_name()) {
        (was, is) if was != is => ResetCause::Algorithm { was, is },
        _ if (old.settled_price().is_some(), old.unit()) != (limit.settled_price().is_some(), limit.unit()) => {
            ResetCause::CostSource { was: old.settled_source(), is: limit.settled_source() }
        }
        _ if old.resets() != limit.resets() => ResetCause::ResetOn { has: limit.resets() },
        _ if old.purse().is_some() != limit.purse().is_some() => {
            ResetCause::Scope { is_global: limit.purse().is_some() }
        }
        _ if old.bans() != limit.bans() => ResetCause::Ban { has: limit.bans() },
        _ if old.keys != limit.keys => ResetCause::Keys { was: old.keys.clone(), is: limit.keys.clone() },
        // The names differ although they print alike, for example the rule `a.b`, and the limit `b` of the rule `a`.
        _ => ResetCause::Name,
    }
}

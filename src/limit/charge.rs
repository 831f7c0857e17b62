//! Settles a plan: all charges of one request, taken together or not at all.
//!
//! A store reads the states of a plan's buckets, calls [`settle`], and writes the returned states. For a refused
//! request none are returned but corrections, which spend nothing.

use smallvec::SmallVec;

use super::algorithm::{Algorithm, ChargeResult, Entry, Level, State, Step};
use super::bucket_key::{BucketKey, LimitTag};
use super::cost::Cost;
use super::outcome::{Outcome, Verdict};
use crate::base::time::{Micros, Timestamp};

/// One bucket to charge. It owns all it needs, so that it can travel to whichever task talks to the store.
#[derive(Clone, Debug)]
pub struct Charge {
    pub key: BucketKey,
    pub algorithm: Algorithm,
    pub cost: Cost,
    /// The limit in the rule set, for responses and metrics.
    pub limit: LimitId,
    /// The limit and the variant, for stores, whose buckets outlive a rule set.
    pub tag: LimitTag,
    /// Which of the limit's sets of numbers applies: 0, or an override.
    pub variant: u32,
}

impl Charge {
    /// Whether the cost is above what the bucket can ever hold: waiting does not help.
    pub fn is_too_large(&self) -> bool {
        self.cost > self.algorithm.ceiling()
    }
}

/// The index of a limit in [`super::rule_set::RuleSet::limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId(pub u32);

/// All charges of one request.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Charged all or none, in the order of the file.
    pub enforced: SmallVec<[Charge; 2]>,
    /// Each settled by itself, and only for requests that the enforced charges let pass.
    pub shadow: SmallVec<[Charge; 0]>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.enforced.is_empty() && self.shadow.is_empty()
    }

    /// Every charge, the enforced ones first: the order of a settlement's outcomes.
    pub fn charges(&self) -> impl Iterator<Item = &Charge> {
        self.enforced.iter().chain(&self.shadow)
    }
}

/// The result of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub verdict: Verdict,
    /// How long a granted request waits before it goes on: the longest delay of its enforced charges, counted from the
    /// arrival of the answer. Zero unless an algorithm delays.
    pub delay: Micros,
    /// One for each enforced charge.
    pub enforced: SmallVec<[Outcome; 2]>,
    /// One for each shadow charge, or none at all when the request was refused: then no shadow was asked.
    pub shadow: SmallVec<[Outcome; 0]>,
}

impl Settlement {
    /// Of a request that is refused: nothing is spent, and no shadow was asked.
    pub fn refused(enforced: SmallVec<[Outcome; 2]>) -> Settlement {
        Settlement { verdict: Verdict::Deny, delay: Micros(0), enforced, shadow: SmallVec::new() }
    }

    pub fn is_granted(&self) -> bool {
        self.verdict == Verdict::Allow
    }
}

/// Settles a plan at `now`. `states` are the stored states of its buckets, in the order of [`Plan::charges`]. Also
/// returns the states to store, in the same order: `None` for a bucket that did not change.
pub fn settle(plan: &Plan, states: &[Option<State>], now: Timestamp) -> (Settlement, Entries) {
    let step = |charge: &Charge, state: &Option<State>| charge.algorithm.step(state.as_deref(), charge.cost, now);
    let (enforced, shadow) = states.split_at(plan.enforced.len());
    let steps: SmallVec<[_; 2]> =
        plan.enforced.iter().zip(enforced).map(|(charge, state)| step(charge, state)).collect();
    if !steps.iter().all(|step| matches!(step.charge, ChargeResult::Fits { .. })) {
        let enforced = steps.iter().map(refused).collect();
        return (Settlement::refused(enforced), corrections(plan, states, now));
    }
    // A shadow delays nobody.
    let delay = |step: &Step| match step.charge {
        ChargeResult::Fits { delay, .. } => delay,
        _ => Micros(0),
    };
    let delay = steps.iter().map(delay).max().unwrap_or_default();
    let mut entries = Entries::new();
    let mut take = |step: Step, correction: Option<Entry>| match step.charge {
        ChargeResult::Fits { level, entry, .. } => {
            entries.push(Some(entry));
            outcome(Verdict::Allow, level, Micros(0))
        }
        _ => {
            entries.push(correction);
            refused(&step)
        }
    };
    let enforced = steps.into_iter().map(|step| take(step, None)).collect();
    let shadow = plan.shadow.iter().zip(shadow);
    let shadow = shadow.map(|(charge, state)| take(step(charge, state), correction(charge, state, now))).collect();
    (Settlement { verdict: Verdict::Allow, delay, enforced, shadow }, entries)
}

/// What a store must write of a bucket although nothing is charged to it.
fn correction(charge: &Charge, state: &Option<State>, now: Timestamp) -> Option<Entry> {
    charge.algorithm.correction(state.as_deref(), now)
}

/// The entries of a refused request; most have none.
fn corrections(plan: &Plan, states: &[Option<State>], now: Timestamp) -> Entries {
    let corrected = || plan.charges().zip(states).map(|(charge, state)| correction(charge, state, now));
    if corrected().any(|entry| entry.is_some()) { corrected().collect() } else { Entries::new() }
}

/// The states to store, one for each charge; mostly empty if the request was refused.
pub type Entries = SmallVec<[Option<Entry>; 2]>;

/// The outcome of a bucket that is not charged: it refused, or it could have paid.
fn refused(step: &Step) -> Outcome {
    match step.charge {
        ChargeResult::Fits { .. } => outcome(Verdict::Allow, step.untouched, Micros(0)),
        ChargeResult::Short { wait } => outcome(Verdict::Deny, step.untouched, wait),
        ChargeResult::Never => outcome(Verdict::Never, step.untouched, Micros(0)),
    }
}

fn outcome(verdict: Verdict, level: Level, retry_after: Micros) -> Outcome {
    Outcome { verdict, remaining: level.remaining, retry_after, reset_after: level.reset_after }
}

//! Settles a plan: all charges of one request, taken together or not at all.
//!
//! A store reads the states of a plan's buckets, calls [`settle`], and writes the returned states.

use smallvec::SmallVec;

use super::algorithm::raise::{has_raises, told_between};
use super::algorithm::{Algorithm, BanBeginning, ChargeResult, Entry, Level, Step, budget};
use super::ban_beginnings::{BanBeginnings, begin_bans, with_begun_bans};
use super::bucket_key::{BucketKey, LimitTag};
use super::cost::Cost;
use super::holds::SlotTerms;
use super::outcome::{BanNotice, Outcome, Verdict};
use super::store_time::StoreTime;
use base::time::Micros;

/// A cost that a request takes from one bucket. A charge owns all its data.
#[derive(Clone, Debug)]
pub struct Charge {
    pub key: BucketKey,
    pub algorithm: Algorithm,
    pub cost: Cost,
    /// The limit's index in the rule set, for responses and metrics.
    pub limit: LimitId,
    /// The tag by which a store identifies the limit. Unlike the index, it is the same in the next rule set.
    pub tag: LimitTag,
    /// The settings that apply: 0 for the limit's own settings, or the position of an override, from 1.
    pub variant: u32,
    pub purpose: ChargePurpose,
}

/// Whether a bucket is charged, or only checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargePurpose {
    Spend,
    /// Nothing is spent. If the bucket could not pay the cost, the whole plan is refused.
    Check,
}

impl Charge {
    /// Makes a charge that spends `cost`, for a rule set with a single limit. For several limits, set the fields
    /// `limit` and `tag` too.
    pub fn new(key: BucketKey, algorithm: Algorithm, cost: Cost) -> Charge {
        let tag = LimitTag::default();
        Charge { key, algorithm, cost, limit: LimitId(0), tag, variant: 0, purpose: ChargePurpose::Spend }
    }

    /// Returns whether the cost exceeds what a full bucket holds.
    pub fn is_too_large(&self) -> bool {
        self.cost > self.algorithm.ceiling()
    }

    /// Returns whether the charge only asks whether a ban runs, of a budget that does not apply to the request otherwise.
    pub fn only_asks_for_ban(&self) -> bool {
        let begins_none = || self.algorithm.ban().is_some_and(|ban| ban.durations().is_empty());
        self.purpose == ChargePurpose::Check
            && self.cost == Cost::default()
            && self.algorithm.is_held()
            && begins_none()
    }

    /// Returns whether a granted request holds something of the bucket until its end.
    fn holds(&self) -> bool {
        self.algorithm.is_held() && !self.only_asks_for_ban()
    }

    /// Returns whether the charge spends from this bucket.
    fn is_spent_from(&self, key: BucketKey) -> bool {
        self.key == key && self.purpose == ChargePurpose::Spend
    }
}

/// The index of a limit in a rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId(pub u32);

/// All charges of one request, which a store settles together.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The charges of enforced limits, in the order of the file. Either all of these buckets are charged, or none.
    pub enforced: SmallVec<[Charge; 2]>,
    /// The charges of limits in shadow mode: dry runs that never refuse a request. Each is settled by itself, after
    /// the enforced charges have granted the request.
    pub shadow: SmallVec<[Charge; 0]>,
}

impl Plan {
    /// Adds an enforced charge that spends. Several charges to one bucket are combined: each checks the sum of their
    /// costs. The bucket is charged once, with the settings of the last charge.
    pub fn enforce(&mut self, mut charge: Charge) {
        let own = charge.cost;
        for other in self.enforced.iter_mut().filter(|other| other.key == charge.key) {
            other.cost = other.cost.plus(own);
            charge.cost = other.cost;
        }
        self.enforced.push(charge);
    }

    /// Adds the charges of another plan, with their costs multiplied by `times`. Charges of both plans to one bucket are
    /// combined.
    pub fn join(&mut self, mut other: Plan, times: u64) {
        let before = self.enforced.len();
        let scaled = |cost: Cost| Cost::from_thousandths(cost.thousandths().saturating_mul(times));
        for mut charge in other.enforced {
            let (earlier, own) = self.enforced.split_at_mut(before);
            charge.cost = match own.iter().find(|one| one.key == charge.key) {
                // An earlier charge of the other plan to this bucket already has the sum of the costs.
                Some(one) => one.cost,
                None => {
                    let cost = scaled(charge.cost);
                    let mut spending = earlier.iter_mut().filter(|one| one.is_spent_from(charge.key)).peekable();
                    let whole = spending.peek().map_or(cost, |one| one.cost.plus(cost));
                    spending.for_each(|one| one.cost = whole);
                    whole
                }
            };
            self.enforced.push(charge);
        }
        for charge in &mut other.shadow {
            charge.cost = scaled(charge.cost);
        }
        self.shadow.extend(other.shadow);
    }

    /// Adds the enforced charges of another plan as checks that spend nothing.
    pub fn join_check(&mut self, other: Plan) {
        let check = |charge| Charge { purpose: ChargePurpose::Check, ..charge };
        self.enforced.extend(other.enforced.into_iter().map(check));
    }

    /// Returns the plan whose purses also pay from the share of their region, because home gives no answer. `None` if one of them must not.
    pub fn without_home(&self) -> Option<Plan> {
        let mut plan = self.clone();
        for charge in plan.enforced.iter_mut().chain(&mut plan.shadow) {
            if let Algorithm::Purse(purse) = &mut charge.algorithm {
                *purse = purse.without_home()?;
            }
        }
        Some(plan)
    }

    /// Returns whether the enforced charge at this index only checks its bucket. Also true if a later charge spends
    /// from the same bucket.
    pub fn is_only_checked(&self, index: usize) -> bool {
        let mut from = self.enforced.iter().skip(index);
        from.next().is_some_and(|charge| {
            charge.purpose == ChargePurpose::Check || from.any(|later| later.is_spent_from(charge.key))
        })
    }

    /// Returns whether this enforced charge only checks a bucket from which another charge of the plan spends.
    pub fn checks_what_is_spent(&self, charge: &Charge) -> bool {
        charge.purpose == ChargePurpose::Check && self.enforced.iter().any(|other| other.is_spent_from(charge.key))
    }

    /// Returns whether a granted request holds something of a bucket until its end.
    pub fn holds(&self) -> bool {
        self.charges().any(Charge::holds)
    }

    /// Returns the charges to buckets of which the request holds something. Each has its index in [`Plan::charges`],
    /// and the slot that the request asks for. The amount of the slot is 0 if the bucket is only checked.
    pub fn asks(&self) -> impl Iterator<Item = (usize, &Charge, SlotTerms)> {
        self.charges().enumerate().filter(|(_, charge)| charge.holds()).map(|(index, charge)| {
            let amount = if self.is_only_checked(index) { Cost::default() } else { charge.cost };
            (index, charge, SlotTerms { amount, algorithm: charge.algorithm })
        })
    }

    pub fn is_empty(&self) -> bool {
        self.enforced.is_empty() && self.shadow.is_empty()
    }

    /// Makes each bucket refuse that would delay the request for longer than `most`.
    pub fn limit_delay(&mut self, most: Micros) {
        for charge in &mut self.enforced {
            charge.algorithm = charge.algorithm.within(most);
        }
    }

    /// Returns whether both plans take the same costs from the same buckets with the same settings.
    pub fn is_same_take(&self, other: &Plan) -> bool {
        let same = |(a, b): (&Charge, &Charge)| {
            (a.key, a.cost, a.purpose) == (b.key, b.cost, b.purpose) && a.algorithm == b.algorithm
        };
        (self.enforced.len(), self.shadow.len()) == (other.enforced.len(), other.shadow.len())
            && self.charges().zip(other.charges()).all(same)
    }

    /// Returns all charges of the plan: first the enforced charges, then the shadow charges.
    pub fn charges(&self) -> impl Iterator<Item = &Charge> {
        self.enforced.iter().chain(&self.shadow)
    }
}

/// The result of charging a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub verdict: Verdict,
    /// How long a granted request must wait before it is forwarded: the longest delay of its enforced charges, from
    /// the arrival of the store's answer.
    pub delay: Micros,
    /// The outcome of each enforced charge, in the order of the plan.
    pub enforced: SmallVec<[Outcome; 2]>,
    /// The outcome of each shadow charge. Empty if the request was refused.
    pub shadow: SmallVec<[Outcome; 0]>,
}

impl Settlement {
    /// Makes the settlement of a refused request from the outcomes of its enforced charges.
    pub fn refused(enforced: SmallVec<[Outcome; 2]>) -> Settlement {
        Settlement { verdict: Verdict::Deny, delay: Micros(0), enforced, shadow: SmallVec::new() }
    }

    pub fn is_granted(&self) -> bool {
        self.verdict == Verdict::Allow
    }
}

/// Settles a plan at `now`: decides whether its buckets can pay, and computes their new states. `states` has the
/// stored state of each bucket, in the order of [`Plan::charges`]. Also returns the new states, in the same order:
/// `None` for an unchanged bucket, and an empty list if a refused request changes no bucket.
pub fn settle<S: AsRef<[u64]>>(plan: &Plan, states: &[Option<S>], now: impl Into<StoreTime>) -> (Settlement, Entries) {
    settle_with(plan, states, now.into(), BanBeginnings::Stored)
}

/// Settles a plan for a store that can write nothing. A refused plan is refused as by [`settle`], but begins no ban.
/// `None` for a plan that would be granted: the store cannot charge it.
pub fn refuse<S: AsRef<[u64]>>(plan: &Plan, states: &[Option<S>], now: impl Into<StoreTime>) -> Option<Settlement> {
    let (settlement, _) = settle_with(plan, states, now.into(), BanBeginnings::Impossible);
    (!settlement.is_granted()).then_some(settlement)
}

fn settle_with<S: AsRef<[u64]>>(
    plan: &Plan,
    states: &[Option<S>],
    now: StoreTime,
    beginnings: BanBeginnings,
) -> (Settlement, Entries) {
    let step = |charge: &Charge, state: &Option<S>| {
        let step = charge.algorithm.step(words(state), charge.cost, now.of(&charge.algorithm));
        if charge.only_asks_for_ban() { step.refused_only_by_ban() } else { step }
    };
    let (of_enforced, shadow) = states.split_at(plan.enforced.len());
    let mut steps: SmallVec<[_; 2]> =
        plan.enforced.iter().zip(of_enforced).map(|(charge, state)| step(charge, state)).collect();
    if !steps.iter().all(|step| matches!(step.charge, ChargeResult::Fits { .. })) {
        let begun = begin_bans(plan, &mut steps, beginnings);
        let held = plan.enforced.iter().zip(of_enforced).map(|(charge, state)| held(charge, state, now));
        let enforced = steps.iter().map(refused).zip(held).map(|(outcome, held)| match outcome.verdict.is_refusal() {
            true => Outcome { held, ..outcome },
            false => outcome,
        });
        let mut enforced: SmallVec<[Outcome; 2]> = enforced.collect();
        let entries = with_begun_bans(plan, corrections(plan, states, now), begun);
        add_annotations(&mut enforced, plan, of_enforced, &entries, now);
        return (Settlement::refused(enforced), entries);
    }
    let mut entries = Entries::new();
    let take = |step: Step, charge: &Charge, correction: Option<Entry>, entries: &mut Entries| match step.charge {
        ChargeResult::Fits { level, entry, delay } => {
            let held = charge.algorithm.held(Some(&entry.state), now.of(&charge.algorithm));
            let is_low = match &charge.algorithm {
                Algorithm::Purse(purse) => purse.is_low(&entry.state, charge.cost, now.of(&charge.algorithm)),
                _ => false,
            };
            entries.push(Some(entry));
            Outcome { delay, held, is_low, ..outcome(Verdict::Allow, level) }
        }
        ChargeResult::Banned { begins: Some(BanBeginning { ref entry, .. }), .. } => {
            entries.push(Some(entry.clone()));
            refused(&step)
        }
        _ => {
            entries.push(correction);
            refused(&step)
        }
    };
    let mut enforced: SmallVec<[Outcome; 2]> = steps
        .into_iter()
        .zip(plan.enforced.iter().zip(of_enforced))
        .map(|(step, (charge, state))| match charge.purpose {
            ChargePurpose::Spend => take(step, charge, None, &mut entries),
            ChargePurpose::Check => {
                let is_charged = plan.charges().any(|other| other.is_spent_from(charge.key));
                // If another charge spends from this bucket, only that charge's entry is written.
                entries.push(if is_charged { None } else { correction(charge, state, now) });
                refused(&step)
            }
        })
        .collect();
    add_annotations(&mut enforced, plan, of_enforced, &entries, now);
    // A shadow charge does not delay the request.
    let delay = enforced.iter().map(|outcome| outcome.delay).max().unwrap_or_default();
    let shadow = plan.shadow.iter().zip(shadow).map(|(charge, state)| {
        let correction = correction(charge, state, now);
        take(step(charge, state), charge, correction, &mut entries)
    });
    let shadow = shadow.collect();
    (Settlement { verdict: Verdict::Allow, delay, enforced, shadow }, entries)
}

/// Returns the entry that a store must write although nothing is charged. `None` if nothing must be written.
fn correction<S: AsRef<[u64]>>(charge: &Charge, state: &Option<S>, now: StoreTime) -> Option<Entry> {
    charge.algorithm.correction(words(state), now.of(&charge.algorithm))
}

/// Returns what requests in flight hold of a budget. Zero for other limits.
fn held<S: AsRef<[u64]>>(charge: &Charge, state: &Option<S>, now: StoreTime) -> Cost {
    charge.algorithm.held(words(state), now.of(&charge.algorithm))
}

/// Adds to the outcomes of enforced charges by how much the buckets are raised, which thresholds the entries tell, and when the
/// homes of purses were heard.
fn add_annotations<S: AsRef<[u64]>>(
    outcomes: &mut [Outcome],
    plan: &Plan,
    states: &[Option<S>],
    entries: &Entries,
    now: StoreTime,
) {
    for (index, ((outcome, charge), state)) in outcomes.iter_mut().zip(&plan.enforced).zip(states).enumerate() {
        let state = words(state);
        if charge.algorithm.is_leased() || state.is_some_and(has_raises) {
            outcome.raised = charge.algorithm.raised_by(state, now.of(&charge.algorithm));
        }
        if !charge.algorithm.thresholds().is_empty()
            && let Some(Some(entry)) = entries.get(index)
        {
            outcome.told = told_between(state, &entry.state);
        }
        outcome.home_heard = charge.algorithm.home_heard(state).unwrap_or_default();
    }
}

fn words<S: AsRef<[u64]>>(state: &Option<S>) -> Option<&[u64]> {
    state.as_ref().map(AsRef::as_ref)
}

/// Returns the entries of a refused request. Empty if no bucket changes.
fn corrections<S: AsRef<[u64]>>(plan: &Plan, states: &[Option<S>], now: StoreTime) -> Entries {
    let corrected = || plan.charges().zip(states).map(|(charge, state)| correction(charge, state, now));
    if corrected().any(|entry| entry.is_some()) { corrected().collect() } else { Entries::new() }
}

/// The states to store, one for each charge of a plan: `None` for an unchanged bucket. Usually empty for a refused
/// request.
pub type Entries = SmallVec<[Option<Entry>; 2]>;

/// Returns the outcome of a charge that spends nothing.
fn refused(step: &Step) -> Outcome {
    match step.charge {
        ChargeResult::Fits { delay, .. } => Outcome { delay, ..outcome(Verdict::Allow, step.untouched) },
        ChargeResult::Short { wait } => Outcome { retry_after: wait, ..outcome(Verdict::Deny, step.untouched) },
        ChargeResult::Held => Outcome { retry_after: budget::WAIT, ..outcome(Verdict::Held, step.untouched) },
        ChargeResult::Never => outcome(Verdict::Never, step.untouched),
        ChargeResult::Banned { wait, step: number, ref begins } => {
            let ban = Some(BanNotice { step: number, begins: begins.is_some() });
            Outcome { retry_after: wait, ban, ..outcome(Verdict::Banned, step.untouched) }
        }
    }
}

fn outcome(verdict: Verdict, level: Level) -> Outcome {
    Outcome { verdict, remaining: level.remaining, reset_after: level.reset_after, ..Outcome::UNASKED }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::State;
    use base::time::Timestamp;

    const NOW: Timestamp = Timestamp(1 << 50);

    fn plan(charges: impl IntoIterator<Item = Charge>) -> Plan {
        let mut plan = Plan::default();
        charges.into_iter().for_each(|charge| plan.enforce(charge));
        plan
    }

    #[test]
    fn charges_to_one_bucket_are_one_charge_of_their_sum() {
        let plan = plan([
            Charge::of_token_bucket(1, 10, 2),
            Charge::of_token_bucket(2, 10, 1),
            Charge::of_token_bucket(1, 20, 3),
            Charge::of_token_bucket(1, 10, 1),
        ]);
        let costs: Vec<_> = plan.enforced.iter().map(|charge| charge.cost.whole()).collect();
        assert_eq!(costs, [6, 1, 6, 6]);
        let checked: Vec<_> = (0..5).map(|index| plan.is_only_checked(index)).collect();
        assert_eq!(checked, [true, false, true, false, false]);
        let (settlement, entries) = settle(&plan, &[const { None::<State> }; 4], NOW);
        let left: Vec<_> = settlement.enforced.iter().map(|outcome| outcome.remaining.whole()).collect();
        assert_eq!((settlement.is_granted(), left), (true, vec![4, 9, 14, 4]));
        // All entries of this bucket are equal.
        let after = entries[3].clone().map(|entry| entry.state);
        let (again, entries) = settle(&plan, &[after.clone(), None, after.clone(), after], NOW);
        let verdicts: Vec<_> = again.enforced.iter().map(|outcome| outcome.verdict).collect();
        assert_eq!(verdicts, [Verdict::Deny, Verdict::Allow, Verdict::Allow, Verdict::Deny]);
        assert_eq!(again.enforced[0].retry_after, Micros(2_000_000));
        assert!(entries.is_empty(), "a refused request spends nothing");
    }

    #[test]
    fn plans_of_one_call_are_one_plan_with_their_sums() {
        let mut whole = Plan::default();
        // Bucket 1 is charged twice by the first plan and once by the second, bucket 2 only by the second.
        whole.join(plan([Charge::of_token_bucket(1, 20, 1), Charge::of_token_bucket(1, 30, 2)]), 2);
        whole.join(plan([Charge::of_token_bucket(2, 10, 1), Charge::of_token_bucket(1, 20, 1)]), 3);
        let costs: Vec<_> = whole.enforced.iter().map(|charge| charge.cost.whole()).collect();
        assert_eq!(costs, [9, 9, 3, 9]);
        let (settlement, entries) = settle(&whole, &[const { None::<State> }; 4], NOW);
        assert!(settlement.is_granted());
        let left =
            |index: usize| whole.enforced[index].algorithm.spent(entries[index].as_ref().map(|e| &*e.state), NOW);
        assert_eq!((left(3).whole(), left(2).whole()), (9, 3));
    }

    #[test]
    fn a_check_takes_nothing_and_refuses_what_is_charged_beside_it() {
        let mut whole = Plan::default();
        whole.join(plan([Charge::of_token_bucket(1, 10, 3)]), 1);
        whole.join_check(plan([Charge::of_token_bucket(1, 10, 1), Charge::of_token_bucket(2, 10, 1)]));
        let checked: Vec<_> = (0..3).map(|index| whole.is_only_checked(index)).collect();
        assert_eq!(checked, [false, true, true]);
        let states = |drained: &[usize]| -> Vec<Option<State>> {
            let drain = |index: usize| {
                let charge = Charge {
                    cost: Cost::from_tokens(10),
                    purpose: ChargePurpose::Spend,
                    ..whole.enforced[index].clone()
                };
                settle(&plan([charge]), &[None::<State>], NOW).1[0].clone().map(|entry| entry.state)
            };
            (0..3).map(|index| drained.contains(&index).then(|| drain(index)).flatten()).collect()
        };
        let (settlement, entries) = settle(&whole, &states(&[]), NOW);
        let left: Vec<_> = settlement.enforced.iter().map(|outcome| outcome.remaining.whole()).collect();
        assert_eq!((settlement.is_granted(), left), (true, vec![7, 10, 10]));
        assert!(entries[0].is_some() && entries[1].is_none() && entries[2].is_none());
        let (settlement, entries) = settle(&whole, &states(&[2]), NOW);
        let verdicts: Vec<_> = settlement.enforced.iter().map(|outcome| outcome.verdict).collect();
        assert_eq!(verdicts, [Verdict::Allow, Verdict::Allow, Verdict::Deny]);
        assert!(entries.is_empty());
    }
}

//! Tries one file on the requests of a log: what each would have been answered, from buckets of its own.
//!
//! Deciding is the gateway's own: the rules' `RuleSet::explain`, and [`settle`]. Store, cache and what holds while a
//! store is down play no part. What cannot be decided is counted, and charged for what can.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::entry::{Entry, Told};
use super::foreign_entry::{ForeignEntry, Says};
use super::logged_decision::{LoggedDecisions, Paid, Rules};
use super::own_entry::OwnEntry;
use super::pseudonyms::Pseudonyms;
use crate::base::pseudonym::Pseudonym;
use crate::base::time::Timestamp;
use crate::config::Config;
use crate::limit::algorithm::State;
use crate::limit::attribute::Attribute;
use crate::limit::charge::{LimitId, Plan, settle};
use crate::limit::cost::Cost;
use crate::limit::explanation::{Ended, Exemption, Explanation, Part, RuleOutcome as Tried};
use crate::limit::key::BucketKey;
use crate::limit::outcome::most_restrictive;
use crate::limit::partial::{Knowledge, Observed};
use crate::limit::rule::{Mode, Otherwise};
use crate::limit::rule_set::Answer;

/// What a request would have been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedResult {
    Allowed,
    Refused,
    /// The log does not tell enough, and what it tells refuses nothing.
    Undecided,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The limit that binds the most.
    Limit(LimitId),
    /// The place of a policy and, in it, of its rule; none is the policy's `otherwise`.
    Deny { policy: usize, rule: Option<usize> },
    /// A `deny`, as the log says; which one, it does not.
    DenyInLog,
    /// Before any rule: 400, it can be read in more than one way.
    Unclear,
}

/// What a decision hangs on that the log does not tell: a policy or a rule in it, by their places. None: an exemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenQuestion(pub Option<(usize, Option<usize>)>);

/// One file, and what came of it so far.
#[derive(Debug)]
pub struct Simulation<'c> {
    pub config: &'c Config,
    pub counts: Counts,
    pub buckets: HashMap<BucketId, Bucket>,
    names: Pseudonyms,
    by_log: LoggedDecisions<'c>,
    /// What counts as missing wherever the log does not tell it.
    absent: &'c [Attribute],
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub allowed: u64,
    pub refused: u64,
    pub undecided: u64,
    /// Of those refused: so many that would be undecided, had they not been refused by what can be decided.
    pub refused_anyway: u64,
    pub causes: HashMap<Cause, u64>,
    /// By limit: how often a shadow was asked, and would have refused.
    pub shadows: HashMap<LimitId, [u64; 2]>,
    pub hinges: HashMap<OpenQuestion, UnresolvedCount>,
    /// How many requests had none of an attribute that the log would have told.
    pub missing: HashMap<Attribute, u64>,
    /// By the place of the policy: how many requests followed the rule that the log names.
    pub by_log: HashMap<usize, u64>,
}

/// What hangs on a [`OpenQuestion`].
#[derive(Clone, Debug, Default)]
pub struct UnresolvedCount {
    pub lines: u64,
    pub attributes: Vec<Attribute>,
}

/// Which bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BucketId {
    /// By what the rule picked.
    Picked(BucketKey),
    /// By what the log calls it, or one beside it of the same rule.
    Logged(LimitId, Pseudonym),
}

/// A bucket, and what was asked of it.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub limit: LimitId,
    state: Option<State>,
    pub asked: u64,
    pub refused: u64,
    /// Of those refused: so many that the file before this one does not refuse.
    pub newly: u64,
    /// Of those asked: so many that the file before this one refuses.
    pub refused_before: u64,
    /// What its client is called in the log, where that is all that is known; else the bucket has its own name.
    pub called: Option<String>,
}

impl<'c> Simulation<'c> {
    /// `before` is the file that wrote the log, if it is another; what is `absent` no request has, if the log does not say
    /// otherwise.
    pub fn new(config: &'c Config, before: Option<&Config>, absent: &'c [Attribute]) -> Simulation<'c> {
        Simulation {
            config,
            counts: Counts::default(),
            buckets: HashMap::new(),
            names: Pseudonyms::new(&config.rules, &config.hash_key),
            by_log: LoggedDecisions::new(&config.rules, before.map(|before| &before.rules)),
            absent,
        }
    }

    /// `before` is what another file made of the same request.
    pub fn decide(&mut self, entry: &Entry, before: Option<SimulatedResult>) -> SimulatedResult {
        let fate = match &entry.told {
            Told::Foreign(asked) => self.foreign(asked, entry.at, before),
            Told::Ours(logged) => self.ours(logged, entry.at, before),
        };
        match fate {
            SimulatedResult::Allowed => self.counts.allowed += 1,
            SimulatedResult::Refused => self.counts.refused += 1,
            SimulatedResult::Undecided => self.counts.undecided += 1,
        }
        fate
    }

    fn foreign(&mut self, asked: &ForeignEntry, at: Timestamp, before: Option<SimulatedResult>) -> SimulatedResult {
        let config = self.config;
        if config.rules.read(&asked.request()).is_err() {
            return self.refuse(Cause::Unclear);
        }
        let client = asked.client(&config.client_ip);
        let (mut missing, absent) = (Vec::new(), self.absent);
        let mut see = |attribute| match asked.says(attribute, client) {
            Says::Value(value) => Observed::Value(value),
            Says::Nothing if !absent.contains(attribute) => Observed::Unknown,
            Says::Missing if asked.is_as_sent() => Observed::Missing,
            Says::Missing | Says::Nothing => {
                note(&mut missing, attribute);
                Observed::Missing
            }
        };
        let client = client.map(|client| client.address());
        let known = Knowledge { client, issuer: None, at, names: &config.hash_key };
        let explanation = config.rules.explain(&mut see, known);
        self.settle(&explanation, None, &missing, at, before)
    }

    fn ours(&mut self, logged: &OwnEntry, at: Timestamp, before: Option<SimulatedResult>) -> SimulatedResult {
        let config = self.config;
        let (mut missing, absent) = (Vec::new(), self.absent);
        let mut names = std::mem::take(&mut self.names);
        names.hear(logged);
        let mut see = |attribute| match names.see(attribute, logged) {
            Observed::Unknown if !absent.contains(attribute) => Observed::Unknown,
            Observed::Missing | Observed::Unknown => {
                note(&mut missing, attribute);
                Observed::Missing
            }
            seen => seen,
        };
        let known = Knowledge { client: None, issuer: None, at, names: &config.hash_key };
        let explanation = config.rules.explain(&mut see, known);
        let fate = self.settle(&explanation, Some(logged), &missing, at, before);
        drop(explanation);
        self.names = names;
        fate
    }

    fn settle(
        &mut self,
        explanation: &Explanation<'_>,
        logged: Option<&OwnEntry>,
        missing: &[&Attribute],
        at: Timestamp,
        before: Option<SimulatedResult>,
    ) -> SimulatedResult {
        for attribute in missing {
            match self.counts.missing.get_mut(*attribute) {
                Some(lines) => *lines += 1,
                None => drop(self.counts.missing.insert((*attribute).clone(), 1)),
            }
        }
        let mut paid = match &explanation.answer {
            Answer::Denied => return self.refuse(denied_by(explanation)),
            Answer::Exempt => Vec::new(),
            Answer::TooLarge(plan) | Answer::Charge(plan) => plan.charges().map(Paid::picked).collect(),
        };
        let mut loose = loose(explanation);
        if let Some(logged) = logged.filter(|_| !loose.is_empty()) {
            let denies = |loose: &Unresolved<'_>| {
                loose.mode == Mode::Enforce && loose.hinge.0.is_some_and(|(policy, _)| self.by_log.denies(policy))
            };
            if logged.denied && loose.iter().any(denies) {
                return self.refuse(Cause::DenyInLog);
            }
            self.follow(&mut loose, logged, &mut paid);
        }
        for Unresolved { hinge, attributes, .. } in &loose {
            let hanging = self.counts.hinges.entry(*hinge).or_default();
            hanging.lines += 1;
            for attribute in *attributes {
                if !hanging.attributes.contains(attribute) {
                    hanging.attributes.push((*attribute).clone());
                }
            }
        }
        // Who might be exempt might pay nothing, and be refused by none of this.
        if loose.iter().any(|loose| loose.hinge.0.is_none()) {
            return SimulatedResult::Undecided;
        }
        let decided = loose.iter().all(|loose| loose.mode == Mode::Shadow);
        let otherwise = if decided { SimulatedResult::Allowed } else { SimulatedResult::Undecided };
        paid.sort_by_key(|paid| paid.charge.limit);
        match self.charge(&paid, explanation, at, before) {
            Some(cause) => {
                self.counts.refused_anyway += u64::from(otherwise == SimulatedResult::Undecided);
                self.refuse(cause)
            }
            None => otherwise,
        }
    }

    /// Takes from the log itself what hangs on what it does not tell, as far as it says that.
    fn follow(&mut self, loose: &mut SmallVec<[Unresolved<'_>; 1]>, logged: &OwnEntry, paid: &mut Vec<Paid>) {
        let mut followed: SmallVec<[usize; 2]> = SmallVec::new();
        loose.retain(|loose| {
            let Some((policy, _)) = loose.hinge.0 else {
                let exempt = self.by_log.exempts(logged);
                if exempt == Some(true) {
                    paid.clear();
                }
                return exempt.is_none();
            };
            let Some(instead) = self.by_log.charges(policy, loose.rules, logged) else { return true };
            paid.extend(instead);
            if !followed.contains(&policy) {
                followed.push(policy);
            }
            false
        });
        for policy in followed {
            *self.counts.by_log.entry(policy).or_default() += 1;
        }
    }

    /// All or nothing; what refuses, if anything does.
    fn charge(
        &mut self,
        paid: &[Paid],
        explanation: &Explanation<'_>,
        at: Timestamp,
        before: Option<SimulatedResult>,
    ) -> Option<Cause> {
        let rules = &self.config.rules;
        let is_enforced =
            |paid: &&Paid| rules.limit(paid.charge.limit).is_some_and(|limit| limit.mode == Mode::Enforce);
        let (enforced, shadow): (Vec<&Paid>, Vec<&Paid>) = paid.iter().partition(is_enforced);
        for paid in &enforced {
            let bucket = self.buckets.entry(paid.bucket).or_insert_with(|| Bucket::new(paid, explanation));
            bucket.asked += 1;
            bucket.refused_before += u64::from(before == Some(SimulatedResult::Refused));
        }
        let newly = u64::from(before.is_some_and(|before| before != SimulatedResult::Refused));
        let refused = |buckets: &mut HashMap<BucketId, Bucket>, paid: &Paid| {
            if let Some(bucket) = buckets.get_mut(&paid.bucket) {
                bucket.refused += 1;
                bucket.newly += newly;
            }
            Some(Cause::Limit(paid.charge.limit))
        };
        if let Some(paid) = enforced.iter().find(|paid| paid.charge.is_too_large()) {
            return refused(&mut self.buckets, paid);
        }
        let all = || enforced.iter().chain(&shadow);
        let states: SmallVec<[Option<State>; 2]> =
            all().map(|paid| self.buckets.get(&paid.bucket).and_then(|bucket| bucket.state.clone())).collect();
        let plan = Plan {
            enforced: enforced.iter().map(|paid| paid.charge.clone()).collect(),
            shadow: shadow.iter().map(|paid| paid.charge.clone()).collect(),
        };
        let (settlement, entries) = settle(&plan, &states, at);
        if !settlement.is_granted() {
            let outcomes = enforced.iter().zip(&settlement.enforced);
            let bound = |(paid, outcome)| (paid, outcome, Cost::default());
            let worst = most_restrictive(outcomes.map(|(paid, outcome)| bound((*paid, *outcome))));
            return worst.and_then(|(paid, _)| refused(&mut self.buckets, paid));
        }
        for (paid, outcome) in shadow.iter().zip(&settlement.shadow) {
            let [asked, refused] = self.counts.shadows.entry(paid.charge.limit).or_default();
            *asked += 1;
            *refused += u64::from(outcome.verdict.is_refusal());
        }
        for (paid, entry) in all().zip(entries) {
            if let Some(entry) = entry {
                let bucket = self.buckets.entry(paid.bucket).or_insert_with(|| Bucket::new(paid, explanation));
                bucket.state = Some(entry.state);
            }
        }
        None
    }

    fn refuse(&mut self, cause: Cause) -> SimulatedResult {
        *self.counts.causes.entry(cause).or_default() += 1;
        SimulatedResult::Refused
    }
}

impl Bucket {
    fn new(paid: &Paid, explanation: &Explanation<'_>) -> Bucket {
        let called = match paid.bucket {
            BucketId::Picked(key) => called(explanation, key),
            BucketId::Logged(..) => None,
        };
        Bucket { limit: paid.charge.limit, state: None, asked: 0, refused: 0, newly: 0, refused_before: 0, called }
    }
}

/// `jwt:sub 5f3a9c17…`, of a bucket that was picked by names: its own name is none that anybody else knows.
fn called(explanation: &Explanation<'_>, key: BucketKey) -> Option<String> {
    for rule in explanation.policies.iter().flat_map(|policy| &policy.rules) {
        if let Tried::Applies { picked, charges } = &rule.trial
            && charges.iter().any(|charge| charge.charge.key == key)
        {
            let name = |value: &Observed<'_>| match value {
                Observed::Named(name) => Some(name.to_string()),
                _ => None,
            };
            picked.iter().find(|picked| matches!(picked.value, Observed::Named(_)))?;
            let each = picked.iter().map(|picked| match (name(&picked.value), &picked.value) {
                (Some(name), _) => format!("{picked} {name}"),
                (None, Observed::Value(value)) => format!("{picked} {}", value.escape_ascii()),
                (None, _) => picked.to_string(),
            });
            return Some(each.collect::<Vec<_>>().join(", "));
        }
    }
    None
}

fn denied_by(explanation: &Explanation<'_>) -> Cause {
    for (policy, explained) in explanation.policies.iter().enumerate() {
        match explained.part {
            Part::Takes(Ended::Denied { by }) => {
                return Cause::Deny { policy, rule: explained.rules.iter().position(|rule| rule.rule.name == by) };
            }
            Part::Takes(Ended::Otherwise(Otherwise::Deny)) if explained.policy.mode == Mode::Enforce => {
                return Cause::Deny { policy, rule: None };
            }
            _ => {}
        }
    }
    Cause::DenyInLog
}

/// A part of the rules that is not decided.
#[derive(Debug)]
struct Unresolved<'e> {
    hinge: OpenQuestion,
    attributes: &'e [&'e Attribute],
    /// Which rules of the policy might have charged.
    rules: Rules,
    /// A shadow leaves the request itself decided.
    mode: Mode,
}

fn loose<'e>(explanation: &'e Explanation<'_>) -> SmallVec<[Unresolved<'e>; 1]> {
    let mut loose = SmallVec::new();
    for (policy, explained) in explanation.policies.iter().enumerate() {
        let mode = explained.policy.mode;
        if let Part::Undecidable(attributes) = &explained.part {
            loose.push(Unresolved {
                hinge: OpenQuestion(Some((policy, None))),
                attributes,
                rules: Rules::From(0),
                mode,
            });
        }
        for (rule, explained) in explained.rules.iter().enumerate() {
            if let Tried::Undecidable(attributes) = &explained.trial {
                // A shadow rule changes nothing for the rules after it; in a shadow policy they are all shadows.
                let alone = mode == Mode::Enforce && explained.mode == Mode::Shadow;
                let rules = if alone { Rules::Only(rule) } else { Rules::From(rule) };
                loose.push(Unresolved {
                    hinge: OpenQuestion(Some((policy, Some(rule)))),
                    attributes,
                    rules,
                    mode: explained.mode,
                });
            }
        }
    }
    if let Exemption::Undecidable(attributes) = &explanation.exemption {
        loose.push(Unresolved { hinge: OpenQuestion(None), attributes, rules: Rules::From(0), mode: Mode::Enforce });
    }
    loose
}

fn note<'a>(missing: &mut Vec<&'a Attribute>, attribute: &'a Attribute) {
    if !missing.contains(&attribute) {
        missing.push(attribute);
    }
}

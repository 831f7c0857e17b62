//! Simulates the decisions of one file about the requests of a log, with separate buckets.
//!
//! The simulation decides with the gateway's own functions: `decision`, `RuleSet::explain` and [`settle`]. The store,
//! its caches and its outages are not simulated. A request that cannot be decided is counted as undecided. Only its
//! known charges are made.

use smallvec::SmallVec;

use super::bucket::{BucketCharge, Buckets, ClientNames};
use super::budgets_in_flight::{BudgetsInFlight, Spending};
use super::counts::Counts;
use super::destination::Destination;
use super::entry::{Entry, EntrySource};
use super::foreign_entry::{ForeignEntry, RecordedValue};
use super::logged_cost::{LoggedCost, LoggedResponse};
use super::logged_decision::LoggedDecisions;
use super::open_question::{OpenPart, OpenQuestion, open_parts};
use super::own_entry::OwnEntry;
use super::pseudonyms::Pseudonyms;
use super::result::{Cause, SimulatedResult};
use super::slots_in_flight::SlotsInFlight;
use base::time::{Micros, Timestamp};
use config::Config;
use decision::order_of_answers::{Stage, check_reading};
use decision::speaking_limit::speaker_index;
use ledger::algorithm::{Algorithm, State};
use ledger::charge::{Plan, settle};
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use request::attribute::Attribute;
use request::door::Door;
use rules::explanation::{Explanation, PolicyEnd, PolicyOutcome};
use rules::partial_evaluation::{Knowledge, Observation};
use rules::rule::{Mode, Otherwise};
use rules::rule_set::Answer;

/// Simulates the decisions of one file about the requests of the logs, with counts and buckets of its own.
#[derive(Debug)]
pub struct Simulation<'c> {
    pub config: &'c Config,
    pub counts: Counts,
    pub buckets: Buckets,
    slots: SlotsInFlight,
    budgets: BudgetsInFlight,
    pseudonyms: Pseudonyms,
    logged_decisions: LoggedDecisions<'c>,
    /// The attributes that count as missing if the log does not record them.
    absent: &'c [Attribute],
}

/// A request at its place in a log.
#[derive(Clone, Copy)]
struct Occurrence<'l> {
    at: Timestamp,
    /// The time at which the request ended. `None` if the log does not record it.
    end: Option<Timestamp>,
    /// The gateway's own record of the request. `None` for a foreign log.
    logged: Option<&'l OwnEntry>,
    response: LoggedResponse<'l>,
    /// The result of the request under the former file. `None` without a former file.
    before: Option<SimulatedResult>,
}

impl<'c> Simulation<'c> {
    /// Makes a simulation of `config`. `before` is the file under which the logs were written, or `None` if they were
    /// written under `config`. `absent` lists attributes that count as missing if the log records no value.
    pub fn new(config: &'c Config, before: Option<&Config>, absent: &'c [Attribute]) -> Simulation<'c> {
        Simulation {
            config,
            counts: Counts::default(),
            buckets: Buckets::default(),
            slots: SlotsInFlight::default(),
            budgets: BudgetsInFlight::default(),
            pseudonyms: Pseudonyms::new(&config.rules, &config.hash_key),
            logged_decisions: LoggedDecisions::new(&config.rules, before.map(|before| &before.rules)),
            absent,
        }
    }

    /// Whether the file's `hash_key` is known. Without this key, no pseudonym in the gateway's own log can be
    /// recognised.
    pub(crate) fn knows_names(&self) -> bool {
        self.config.hash_key.is_known()
    }

    /// Decides one request and charges its buckets. `before` is the result of the request under the former file, or
    /// `None` without a former file.
    pub fn decide(&mut self, entry: &Entry, before: Option<SimulatedResult>) -> SimulatedResult {
        let result = match &entry.source {
            EntrySource::Foreign(foreign) => self.decide_foreign(foreign, entry.at, before),
            EntrySource::Own(own) => self.decide_own(own, (entry.at, entry.end), before),
        };
        self.counts.count_result(result);
        result
    }

    fn decide_foreign(
        &mut self,
        entry: &ForeignEntry,
        at: Timestamp,
        before: Option<SimulatedResult>,
    ) -> SimulatedResult {
        let config = self.config;
        let client = entry.client(&config.client_ip);
        let (mut missing, absent) = (Vec::new(), self.absent);
        let mut see = |attribute| match entry.attribute(attribute, client) {
            RecordedValue::Value(value) => Observation::Value(value),
            RecordedValue::List(elements) => Observation::list(elements),
            RecordedValue::Unknown if !is_absent(absent, attribute) => Observation::Unknown,
            RecordedValue::Missing if entry.is_as_sent() => Observation::Missing,
            RecordedValue::Missing | RecordedValue::Unknown => {
                push_new(&mut missing, attribute.source());
                Observation::Missing
            }
        };
        let address = client.map(|client| client.address());
        let known = Knowledge { client: address, issuer: None, at, names: &config.hash_key, is_held: false };
        let mut destination = Destination::Unknown;
        for stage in Stage::before_rules(Door::Proxy) {
            match stage {
                Stage::Reading if check_reading(&config.rules, &entry.request()).is_err() => {
                    return self.refuse(Cause::Ambiguous);
                }
                Stage::Route => destination = Destination::choose(config, &mut see, &known),
                // The gateway answers such a request itself, and charges no limit of a rule.
                Stage::Usage if config.usage.as_ref().is_some_and(|usage| usage.is_asked(&entry.request())) => {
                    return SimulatedResult::Allowed;
                }
                // A foreign log records neither connections nor verified credentials.
                Stage::Connection | Stage::Reading | Stage::Preflight | Stage::Credentials | Stage::Usage => {}
            }
        }
        if destination == Destination::NoRoute {
            return self.refuse(Cause::NoRoute);
        }
        let explanation = config
            .rules
            .explain(&mut |attribute| destination.observe(attribute).unwrap_or_else(|| see(attribute)), known);
        self.counts.count_missing(&missing);
        let lacks = |attribute: &Attribute| {
            let is_unknown = || matches!(entry.attribute(attribute, client), RecordedValue::Unknown);
            is_unknown_at(&destination, attribute, is_unknown) && !is_absent(absent, attribute)
        };
        // A foreign log records no duration, so the request ends at once.
        let response = LoggedResponse::Foreign(entry);
        self.apply(&explanation, Occurrence { at, end: Some(at), logged: None, response, before }, lacks)
    }

    fn decide_own(
        &mut self,
        entry: &OwnEntry,
        (at, end): (Timestamp, Option<Timestamp>),
        before: Option<SimulatedResult>,
    ) -> SimulatedResult {
        let config = self.config;
        let (mut missing, absent) = (Vec::new(), self.absent);
        // The pseudonyms are taken out of `self`, so that the explanation can borrow them.
        let mut pseudonyms = std::mem::take(&mut self.pseudonyms);
        pseudonyms.learn_attributes(entry);
        let mut see = |attribute| match pseudonyms.observe(attribute, entry) {
            Observation::Unknown if !is_absent(absent, attribute) => Observation::Unknown,
            Observation::Missing | Observation::Unknown => {
                push_new(&mut missing, attribute.source());
                Observation::Missing
            }
            observed => observed,
        };
        let known = Knowledge { client: None, issuer: None, at, names: &config.hash_key, is_held: false };
        let mut destination = Destination::elsewhere();
        for stage in entry.door.map_or(&[][..], Stage::before_rules) {
            match stage {
                Stage::Route => {
                    destination = match Destination::choose(config, &mut see, &known) {
                        // The request takes the route that it took before, if the file still has this route.
                        Destination::Unknown => Destination::named(config, &entry.route),
                        chosen => chosen,
                    }
                }
                // Requests that these stages have answered are left out of the simulation.
                Stage::Connection | Stage::Reading | Stage::Preflight | Stage::Credentials | Stage::Usage => {}
            }
        }
        let destination = destination.with_upstream(config, entry.upstream.as_deref());
        let explanation = config
            .rules
            .explain(&mut |attribute| destination.observe(attribute).unwrap_or_else(|| see(attribute)), known);
        self.counts.count_missing(&missing);
        let lacks = |attribute: &Attribute| {
            let is_unknown = || matches!(pseudonyms.observe(attribute, entry), Observation::Unknown);
            is_unknown_at(&destination, attribute, is_unknown) && !is_absent(absent, attribute)
        };
        let result = self.apply(
            &explanation,
            Occurrence { at, end, logged: Some(entry), response: LoggedResponse::Own(entry), before },
            lacks,
        );
        drop(explanation);
        self.pseudonyms = pseudonyms;
        result
    }

    /// Decides about a request by the rules and by the values in its log line, and charges the buckets. `lacks` returns
    /// whether the log line does not record an attribute.
    fn apply(
        &mut self,
        explanation: &Explanation<'_>,
        occurrence: Occurrence<'_>,
        lacks: impl Fn(&Attribute) -> bool,
    ) -> SimulatedResult {
        let mut charges = match &explanation.answer {
            Answer::Denied(_) => return self.refuse(denied_by(explanation)),
            Answer::Exempt => Vec::new(),
            Answer::TooLarge(plan) | Answer::Charge(plan) => plan.charges().map(BucketCharge::picked).collect(),
        };
        let mut open = open_parts(explanation);
        if let Some(logged) = occurrence.logged.filter(|_| !open.is_empty()) {
            if logged.denied && open.iter().any(|part| self.may_deny(part)) {
                return self.refuse(Cause::DenyInLog);
            }
            self.answer_from_log(&mut open, logged, &mut charges, &lacks);
        }
        self.counts.note_lacking(self.config.rules.source(), &open, &lacks);
        self.counts.count_open(&open);
        // No limit refuses an exempt request, so an unknown exemption leaves the request undecided.
        if open.iter().any(|part| part.question == OpenQuestion::Exemption) {
            return SimulatedResult::Undecided;
        }
        let decided = open.iter().all(|part| part.mode == Mode::Shadow);
        charges.retain_mut(|charge| self.counts_request(charge, occurrence.response));
        charges.sort_by_key(|charge| charge.charge.limit);
        match (self.charge(&charges, explanation, occurrence), decided) {
            (Some(cause), decided) => {
                self.counts.refused_anyway += u64::from(!decided);
                self.refuse(cause)
            }
            (None, true) => SimulatedResult::Allowed,
            (None, false) => SimulatedResult::Undecided,
        }
    }

    fn may_deny(&self, part: &OpenPart<'_>) -> bool {
        match part.question {
            OpenQuestion::Rules { policy, .. } => part.mode == Mode::Enforce && self.logged_decisions.denies(policy),
            OpenQuestion::Exemption => false,
        }
    }

    /// Takes the outcome from the log, if the decision depends on attributes that the log lacks.
    fn answer_from_log(
        &mut self,
        open: &mut SmallVec<[OpenPart<'_>; 1]>,
        logged: &OwnEntry,
        charges: &mut Vec<BucketCharge>,
        lacks: impl Fn(&Attribute) -> bool,
    ) {
        let mut policies: SmallVec<[usize; 2]> = SmallVec::new();
        let mut answered: SmallVec<[OpenPart<'_>; 2]> = SmallVec::new();
        open.retain(|part| {
            let OpenQuestion::Rules { policy, .. } = part.question else {
                let exempt = self.logged_decisions.exempts(logged);
                if exempt == Some(true) {
                    charges.clear();
                }
                return exempt.is_none();
            };
            let Some(recorded) = self.logged_decisions.charges(policy, part.rules, logged) else { return true };
            charges.extend(recorded);
            if !policies.contains(&policy) {
                policies.push(policy);
            }
            answered.push(*part);
            false
        });
        for policy in policies {
            self.counts.count_as_logged(self.config.rules.source(), policy, &answered, &lacks);
        }
    }

    /// Returns whether the limit of this charge counts the request. At a budget, notes in the charge what the request
    /// reserves and costs. A request whose line does not tell its cost is added to `left_out`.
    fn counts_request(
        &mut self,
        BucketCharge { charge, settled, .. }: &mut BucketCharge,
        response: LoggedResponse<'_>,
    ) -> bool {
        if charge.only_asks_for_ban() {
            return true;
        }
        let limit = self.config.rules.limit(charge.limit);
        let Some((limit, price)) = limit.and_then(|limit| Some((limit, limit.settled_price()?))) else { return true };
        match LoggedCost::of(limit, price, charge.cost, response, self.config.prices.as_deref()) {
            LoggedCost::Known { reserved, settled: cost } => {
                (charge.cost, *settled) = (reserved, Some(cost));
                true
            }
            LoggedCost::Uncounted => false,
            LoggedCost::Missing => {
                *self.counts.left_out.entry(charge.limit).or_default() += 1;
                false
            }
        }
    }

    /// Charges all buckets of the request or none. Returns the limit that refused, or `None` if no limit refused.
    fn charge(
        &mut self,
        charges: &[BucketCharge],
        explanation: &Explanation<'_>,
        Occurrence { at, end, before, logged, .. }: Occurrence<'_>,
    ) -> Option<Cause> {
        let names = if logged.is_some() { ClientNames::Pseudonyms } else { ClientNames::AsLogged };
        let rules = &self.config.rules;
        let is_enforced =
            |charge: &&BucketCharge| rules.limit(charge.charge.limit).is_some_and(|limit| limit.mode == Mode::Enforce);
        let (enforced, shadow): (Vec<&BucketCharge>, Vec<&BucketCharge>) = charges.iter().partition(is_enforced);
        for charge in enforced.iter().filter(|charge| !charge.charge.only_asks_for_ban()) {
            self.buckets.count_asked(charge, explanation, before);
        }
        if let Some(charge) = enforced.iter().find(|charge| charge.charge.is_too_large()) {
            return Some(self.refuse_by(charge, explanation, names, before));
        }
        let all = || enforced.iter().chain(&shadow).copied();
        self.slots.advance(at);
        self.budgets.advance(at, &mut self.buckets);
        let states = self.buckets.states(all()).into_iter().zip(all());
        let state = |(kept, one): (Option<State>, &BucketCharge)| match &one.charge.algorithm {
            Algorithm::Budget(budget) if budget.settles() => {
                Some(self.budgets.state(one.bucket, budget, kept.as_deref(), at))
            }
            algorithm => self.slots.state(one.bucket, algorithm, at).or(kept),
        };
        let states: SmallVec<[_; 2]> = states.map(state).collect();
        let mut plan = Plan {
            enforced: enforced.iter().map(|charge| charge.charge.clone()).collect(),
            shadow: shadow.iter().map(|charge| charge.charge.clone()).collect(),
        };
        if logged.is_some_and(|logged| logged.door != Some(Door::Proxy)) {
            plan.limit_delay(Micros(0));
        }
        let (settlement, entries) = settle(&plan, &states, at);
        // The entries are stored even after a refusal, because a refusal may correct a bucket.
        for (charge, entry) in all().zip(entries) {
            let Some(entry) = entry else { continue };
            match charge.charge.algorithm {
                // `SlotsInFlight` and `BudgetsInFlight` keep what requests hold, because requests give it back.
                Algorithm::Concurrency(_) => {}
                Algorithm::Budget(budget) => {
                    self.buckets.set_state(charge, explanation, budget.excerpt(&entry.state));
                }
                _ => self.buckets.set_state(charge, explanation, entry.state),
            }
        }
        for (charge, outcome) in all().zip(settlement.enforced.iter().chain(&settlement.shadow)) {
            if outcome.ban.is_some_and(|ban| ban.begins) {
                self.buckets.count_ban(charge, explanation);
            }
        }
        if !settlement.is_granted() {
            let speaker = speaker_index(&plan.enforced, &settlement).and_then(|index| enforced.get(index))?;
            return Some(self.refuse_by(speaker, explanation, names, before));
        }
        let outcomes = settlement.enforced.iter().chain(&settlement.shadow);
        for (index, (charge, outcome)) in all().zip(outcomes).enumerate() {
            let (true, Some(end)) = (outcome.verdict == Verdict::Allow, end) else { continue };
            let BucketCharge { bucket, charge, settled } = charge;
            match (&charge.algorithm, *settled) {
                (Algorithm::Concurrency(slots), _) => {
                    let longest = slots.max_hold().map_or(end, |most| at.plus(most));
                    self.slots.hold(*bucket, charge.cost, end.min(longest));
                }
                (Algorithm::Budget(budget), Some(settled)) => {
                    let reserved = if plan.is_only_checked(index) { Cost::default() } else { charge.cost };
                    self.budgets.hold(Spending { bucket: *bucket, budget: *budget, reserved, settled }, end);
                }
                _ => {}
            }
        }
        for (charge, outcome) in shadow.iter().zip(&settlement.shadow) {
            self.counts.count_shadow(charge.charge.limit, outcome);
        }
        None
    }

    fn refuse_by(
        &mut self,
        charge: &BucketCharge,
        explanation: &Explanation<'_>,
        names: ClientNames,
        before: Option<SimulatedResult>,
    ) -> Cause {
        if charge.charge.only_asks_for_ban() {
            self.buckets.count_asked(charge, explanation, before);
        }
        self.buckets.count_refused(charge, explanation, names, before);
        Cause::Limit(charge.charge.limit)
    }

    fn refuse(&mut self, cause: Cause) -> SimulatedResult {
        self.counts.count_cause(cause);
        SimulatedResult::Refused
    }
}

/// Whether the attribute counts as missing. If a claim is missing, its words and its amount are missing too.
fn is_absent(absent: &[Attribute], attribute: &Attribute) -> bool {
    let attribute = attribute.source();
    let is_its_claim = |claim: &Attribute| match (claim, attribute) {
        (Attribute::Claim(claim), Attribute::Words(name) | Attribute::ClaimedAmount(name)) => claim == name,
        _ => false,
    };
    absent.iter().any(|absent| absent == attribute || is_its_claim(absent))
}

/// Whether an attribute of a request with this destination is unknown. `is_logged_so` returns whether the line lacks
/// the attribute.
fn is_unknown_at(destination: &Destination<'_>, attribute: &Attribute, is_logged_so: impl FnOnce() -> bool) -> bool {
    match destination.observe(attribute) {
        Some(observed) => matches!(observed, Observation::Unknown),
        None => is_logged_so(),
    }
}

fn denied_by(explanation: &Explanation<'_>) -> Cause {
    for (policy, explained) in explanation.policies.iter().enumerate() {
        match explained.part {
            PolicyOutcome::TakesPart(PolicyEnd::Denied { by }) => {
                return Cause::Deny { policy, rule: explained.rules.iter().position(|rule| rule.rule.name == by) };
            }
            PolicyOutcome::TakesPart(PolicyEnd::Otherwise(Otherwise::Deny))
                if explained.policy.mode == Mode::Enforce =>
            {
                return Cause::Deny { policy, rule: None };
            }
            _ => {}
        }
    }
    Cause::DenyInLog
}

fn push_new<'a>(attributes: &mut Vec<&'a Attribute>, attribute: &'a Attribute) {
    if !attributes.contains(&attribute) {
        attributes.push(attribute);
    }
}

//! Keeps what the access log says of a request, from its decision to its end, and makes a line of it then.
//!
//! It holds on to the snapshot that the request began with: its limits have their names there. Where nothing is to be
//! written or traced there is no record, and what is not asked for is never named.

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use smallvec::SmallVec;

use crate::access_log_line::{Asked, Kind, Line, Source};
use crate::base::pseudonym::Pseudonym;
use crate::base::time::{Clock, Micros, Timestamp};
use crate::gateway::enforcement::authenticate::Identity;
use crate::gateway::response::problem::Reason;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::access_log::request_end::RequestEnd;
use crate::gateway::telemetry::metrics::DEFAULT;
use crate::limit::charge::{Charge, Plan, Settlement};
use crate::limit::outcome::{Outcome, Verdict, most_restrictive};
use crate::limit::request::{ClientAddress, Request};
use crate::limit::rule::OnStoreFailure;
use crate::limit::rule_set::CompiledLimit;
use crate::store;

/// What was decided of one request.
#[derive(Debug)]
pub struct RequestRecord {
    snapshot: Arc<Snapshot>,
    client: ClientAddress,
    pub identity: Identity,
    pub paid: Paid,
    pub decision: Option<Micros>,
    /// Why we refused, with what the client was told to wait in seconds.
    pub refusal: Option<(Reason, Option<u64>)>,
}

/// What was asked to be paid, and what came of it.
#[derive(Debug)]
pub enum Paid {
    Nothing,
    Settled(Plan, Settlement, store::Source),
    /// The store was not asked.
    TooLarge(Plan),
    /// The store gave no answer, and a limit wants its word.
    Unavailable(Plan),
}

impl RequestRecord {
    pub fn begin(snapshot: &Arc<Snapshot>, client: ClientAddress) -> Box<RequestRecord> {
        Box::new(RequestRecord {
            snapshot: Arc::clone(snapshot),
            client,
            identity: Identity::default(),
            paid: Paid::Nothing,
            decision: None,
            refusal: None,
        })
    }

    /// What a request is that ended as `unrefused`, unless we refused it.
    pub fn kind(&self, unrefused: Kind) -> Kind {
        if self.refusal.is_some() { Kind::Refused } else { unrefused }
    }

    /// Writes it down, if requests like this are.
    pub fn write(&self, end: &RequestEnd<'_>, head: &Parts, clock: &Clock) {
        let Some(writer) = self.snapshot.access_log_of(end.kind) else { return };
        writer.write(&self.line(end, head, end.began(clock)));
    }

    /// All that is told of it. `began` is when its head had come, by the clock on the wall.
    pub fn line<'a>(&'a self, end: &RequestEnd<'a>, head: &Parts, began: Timestamp) -> Line<'a> {
        let line = Line { decision_us: self.decision, ..end.line(began) };
        let (reason, retry_after) = self.refusal.unzip();
        let line = Line { reason: reason.map(|reason| reason.name().into()), ..line };
        let mut line = Line { retry_after: retry_after.flatten(), ..line };
        self.add_limits(&mut line);
        line.attributes = self.attributes(head);
        line
    }

    fn add_limits<'a>(&'a self, line: &mut Line<'a>) {
        let all: SmallVec<[Told<'a>; 2]> = self.told();
        let Some(told) = self.deciding(&all).and_then(|deciding| all.get(deciding)) else {
            line.limits = all.iter().map(Told::asked).collect();
            return;
        };
        line.policy = Some(Cow::Borrowed(&*told.limit.policy));
        line.rule = Some(Cow::Borrowed(&*told.limit.name));
        line.cost = Some(told.charge.cost);
        line.remaining = told.outcome.map(|outcome| outcome.remaining);
        line.bucket = Some(told.bucket);
        line.source = match &self.paid {
            Paid::Settled(_, _, store::Source::Store) => Some(Source::Store),
            Paid::Settled(_, _, store::Source::Cached) => Some(Source::Cached),
            Paid::Settled(_, _, store::Source::Fallback) | Paid::Unavailable(_) => Some(Source::Fallback),
            Paid::Nothing | Paid::TooLarge(_) => None,
        };
        if all.len() > 1 {
            line.limits = all.iter().map(Told::asked).collect();
        }
    }

    /// Every limit that was asked, the enforced ones first.
    fn told(&self) -> SmallVec<[Told<'_>; 2]> {
        let none = (SmallVec::new(), SmallVec::new());
        let (plan, (enforced, shadow)) = match &self.paid {
            Paid::Nothing => return SmallVec::new(),
            Paid::Settled(plan, settlement, _) => (plan, (settlement.enforced.clone(), settlement.shadow.clone())),
            Paid::TooLarge(plan) | Paid::Unavailable(plan) => (plan, none),
        };
        let tell = |charge, outcome: Option<&Outcome>| self.tell(charge, outcome.copied());
        let shadows = plan.shadow.iter().zip(&shadow);
        let enforced = plan.enforced.iter().enumerate().map(|(place, charge)| (charge, enforced.get(place)));
        let all = enforced.chain(shadows.map(|(charge, outcome)| (charge, Some(outcome))));
        all.filter_map(|(charge, outcome)| tell(charge, outcome)).collect()
    }

    fn tell<'a>(&'a self, charge: &'a Charge, outcome: Option<Outcome>) -> Option<Told<'a>> {
        let config = &self.snapshot.config;
        let verdict = match (outcome, &self.paid) {
            (Some(outcome), _) => outcome.verdict,
            (None, Paid::TooLarge(_)) if charge.cost > charge.algorithm.ceiling() => Verdict::Never,
            (None, _) => Verdict::Unasked,
        };
        Some(Told {
            charge,
            limit: config.rules.limit(charge.limit)?,
            verdict,
            outcome: outcome.filter(|outcome| outcome.verdict != Verdict::Unasked),
            bucket: config.hash_key.bucket(&charge.key.0),
        })
    }

    /// Which of them the client felt.
    fn deciding(&self, all: &[Told<'_>]) -> Option<usize> {
        let enforced = match &self.paid {
            Paid::Nothing => return None,
            Paid::Settled(plan, ..) | Paid::TooLarge(plan) | Paid::Unavailable(plan) => plan.enforced.len(),
        };
        let enforced = all.iter().take(enforced).enumerate();
        let found = match &self.paid {
            Paid::Unavailable(_) => {
                let denies = |told: &Told<'_>| told.limit.on_store_failure == OnStoreFailure::Deny;
                enforced.clone().find(|(_, told)| denies(told)).map(|(place, _)| place)
            }
            Paid::TooLarge(_) => {
                enforced.clone().find(|(_, told)| told.verdict == Verdict::Never).map(|(place, _)| place)
            }
            _ => {
                let known = enforced
                    .clone()
                    .filter_map(|(place, told)| Some((place, told.outcome?, told.charge.algorithm.ceiling())));
                most_restrictive(known).map(|(place, _)| place)
            }
        };
        found.or_else(|| enforced.map(|(place, _)| place).next())
    }

    /// Those that are to be named, of what this request had of them.
    fn attributes(&self, head: &Parts) -> Vec<(Cow<'_, str>, Pseudonym)> {
        let Some(settings) = &self.snapshot.config.access_log else { return Vec::new() };
        let request = Request { head, client: self.client, claims: None, key: None, route: DEFAULT, upstream: DEFAULT };
        let request = self.identity.show(&request);
        let named = settings.attributes.iter().filter_map(|named| {
            let value = named.attribute.resolve(&request)?;
            let name = self.snapshot.config.hash_key.value(&named.text, &value);
            Some((Cow::Borrowed(&*named.text), name))
        });
        named.collect()
    }
}

/// One limit that was asked.
struct Told<'a> {
    charge: &'a Charge,
    limit: &'a CompiledLimit,
    verdict: Verdict,
    /// None: its level is not known.
    outcome: Option<Outcome>,
    bucket: Pseudonym,
}

impl<'a> Told<'a> {
    fn asked(&self) -> Asked<'a> {
        Asked {
            policy: Cow::Borrowed(&*self.limit.policy),
            rule: Cow::Borrowed(&*self.limit.name),
            mode: self.limit.mode,
            verdict: self.verdict,
            cost: self.charge.cost,
            remaining: self.outcome.map(|outcome| outcome.remaining),
            bucket: self.bucket,
        }
    }
}

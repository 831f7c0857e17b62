//! Adds to the records for billing what the limits of a plan have charged or refused.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::records::{
    BegunBan, HeldSubject, IndexedCharge, ReachedThresholds, RecordKey, RecordWriter, RecordedLimits,
    SettledThresholds, Subject, ThresholdQuestion, Use,
};
use base::time::{Clock, Micros, Timestamp};
use decision::speaking_limit::awaits_home;
use ledger::algorithm::fixed_window::Window;
use ledger::algorithm::{Algorithm, Period};
use ledger::charge::{Charge, ChargePurpose, LimitId, Plan};
use ledger::cost::Cost;
use ledger::holds::TimedHoldCost;
use ledger::outcome::{Outcome, ToldThresholds, Verdict};
use llm::usage::Usage;
use request::request::Request;
use rules::descriptors_plan::{DescriptorPart, Hits};
use stores::{Source, TakeReply, Worker};

/// No two clocks of a store's servers differ by more, and no period of a calendar is as short.
const MOST_SKEW: Micros = Micros(3_600_000_000);

/// The requests that a plan charges.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChargedRequests<'r> {
    One(&'r Request<'r>),
    /// The descriptors of one call.
    Descriptors {
        descriptors: &'r [(Request<'r>, Hits)],
        parts: &'r [DescriptorPart],
    },
}

impl<'r> ChargedRequests<'r> {
    /// Returns the request. `None` for a call about descriptors.
    pub(super) fn one(self) -> Option<&'r Request<'r>> {
        match self {
            ChargedRequests::One(request) => Some(request),
            ChargedRequests::Descriptors { .. } => None,
        }
    }

    /// Returns what the request spends by the enforced charge with this index. Of several charges of a request to one bucket, only
    /// the last spends. `None` if the charge only checks.
    fn cost_of(self, plan: &Plan, index: usize) -> Option<Cost> {
        match self {
            ChargedRequests::One(_) if plan.is_only_checked(index) => None,
            ChargedRequests::One(_) => Some(plan.enforced.get(index)?.cost),
            // Several descriptors may charge one bucket, each for its own subject.
            ChargedRequests::Descriptors { parts, .. } => {
                let part = parts.iter().find(|part| part.charges.contains(&index))?;
                *part.costs.get(index - part.charges.start)?
            }
        }
    }

    /// Returns the request that the enforced charge with this index is for.
    fn of_charge(self, index: usize) -> Option<&'r Request<'r>> {
        match self {
            ChargedRequests::One(request) => Some(request),
            ChargedRequests::Descriptors { descriptors, parts } => {
                let part = parts.iter().position(|part| part.charges.contains(&index))?;
                descriptors.get(part).map(|(request, _)| request)
            }
        }
    }
}

/// The records of the costs that are known only when the request has ended.
pub(super) type UnsettledRecords = SmallVec<[(LimitId, UnsettledRecord); 0]>;

/// The record of a cost that is known only when the request has ended.
#[derive(Debug)]
pub(crate) struct UnsettledRecord {
    pub(super) writer: Arc<RecordWriter>,
    pub(super) worker: Worker,
    pub(super) key: RecordKey,
    pub(super) charge: Charge,
    /// What was spent and held of the bucket after the charge.
    pub(super) level: Cost,
    pub(super) thresholds: Arc<SettledThresholds>,
    /// The time of the admission by the clock of the store.
    pub(super) admitted: Timestamp,
    /// The same time by the clock of the process.
    pub(super) admitted_here: Timestamp,
    pub(super) clock: Clock,
}

impl UnsettledRecord {
    /// Adds the cost to the record. It counts in the period that runs now.
    pub(super) fn settle(&self, cost: Cost, tokens: Option<(Option<&str>, &Usage)>) {
        let passed = self.clock.now().since(self.admitted_here);
        self.add(Use { tokens, ..Use::charged(cost) }, self.admitted.plus(passed));
    }

    /// Adds a cost that was spent at this time by the clock of the store.
    pub(super) fn settle_at(&self, cost: Cost, at: Timestamp) {
        self.add(Use::charged(cost), at);
    }

    /// Counts a record that is lost, because the cost is not known.
    pub(super) fn lose(&self) {
        self.writer.count_lost();
    }

    fn add(&self, one: Use<'_>, at: Timestamp) {
        let period = period(&self.charge.algorithm, at, None);
        self.writer.add(self.worker, &self.key.clone().in_period(period), one);
        self.thresholds.add(ThresholdQuestion {
            worker: self.worker,
            charge: self.charge.clone(),
            writer: Arc::clone(&self.writer),
            key: self.key.clone(),
            level: self.level,
            settled: self.clock.now(),
        });
    }
}

/// Adds the outcomes of a plan to the records. `arrived` is when the request did. Returns the records of the costs that are not known
/// yet.
pub(super) fn record(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    (worker, arrived): (Worker, Timestamp),
    plan: &Plan,
    taken: &TakeReply,
    requests: ChargedRequests<'_>,
) -> UnsettledRecords {
    let Some(records) = &snapshot.records else { return UnsettledRecords::new() };
    record_told(gateway, snapshot, plan, taken, requests);
    let is_granted = taken.settlement.is_granted();
    let mut unsettled = UnsettledRecords::new();
    for RecordedCharge { index, charge, cost, subject } in recorded(records, plan, requests) {
        let Some(outcome) = taken.settlement.enforced.get(index) else { continue };
        let Some(key) = records.key(charge.limit, &subject) else { continue };
        let at = StoreMoment::of(gateway, taken, &charge.algorithm);
        let is_told = taken.source == Source::Store && !charge.algorithm.thresholds().is_empty();
        let told = Some(arrived).filter(|_| is_told && outcome.verdict != Verdict::Unasked);
        index_subject(gateway, snapshot, worker, (charge, outcome, told), records.named(&subject));
        if awaits_home(charge, outcome) {
            // The limit has not refused. It is not known what home would have answered.
        } else if outcome.verdict.is_refusal() {
            let key = key.in_period(at.period(&charge.algorithm, outcome));
            records.writer.add(worker, &key, Use { refused: 1, ..Use::default() });
        } else if is_granted && charge.algorithm.settling_budget().is_some() {
            let (admitted_here, clock) = (gateway.clock.now(), gateway.clock.clone());
            let writer = Arc::clone(&records.writer);
            let thresholds = Arc::clone(&gateway.records.settled_thresholds);
            let level = charge.algorithm.raised(outcome.raised).ceiling().less(outcome.remaining);
            let (charge, limit, admitted) = (charge.clone(), charge.limit, at.now);
            let record =
                UnsettledRecord { writer, worker, key, charge, level, thresholds, admitted, admitted_here, clock };
            unsettled.push((limit, record));
        } else if is_granted && outcome.verdict == Verdict::Allow {
            let key = key.in_period(at.period(&charge.algorithm, outcome));
            records.writer.add(worker, &key, Use::charged(cost));
        }
    }
    unsettled
}

/// Writes the lines about the thresholds that the buckets of a plan have told.
pub(super) fn record_told(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    plan: &Plan,
    taken: &TakeReply,
    requests: ChargedRequests<'_>,
) {
    let Some(records) = &snapshot.records else { return };
    // Of a request that was decided in parts, some buckets may be those of the store although others are not.
    let has_told = |index: usize| {
        let outcome = taken.settlement.enforced.get(index)?;
        (outcome.told != ToldThresholds::default() && !plan.is_only_checked(index)).then_some(outcome)
    };
    if !(0..plan.enforced.len()).any(|index| has_told(index).is_some()) {
        return;
    }
    for RecordedCharge { index, charge, subject, .. } in recorded(records, plan, requests) {
        let (Some(outcome), Some(key)) = (has_told(index), records.key(charge.limit, &subject)) else { continue };
        let period = StoreMoment::of(gateway, taken, &charge.algorithm).period(&charge.algorithm, outcome);
        add_told(&records.writer, &key.in_period(period), &charge.algorithm, outcome);
    }
}

/// Writes the lines about the thresholds that a bucket has told.
pub(super) fn add_told(writer: &RecordWriter, key: &RecordKey, algorithm: &Algorithm, outcome: &Outcome) {
    if outcome.told != ToldThresholds::default() {
        let (thresholds, limit) = (algorithm.thresholds(), algorithm.raised(outcome.raised).ceiling());
        writer.add_thresholds(key, ReachedThresholds { thresholds, told: outcome.told, limit });
    }
}

/// Remembers the subject of a bucket, so that an operator can list it, and when the bucket has told its thresholds.
fn index_subject(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    worker: Worker,
    (charge, outcome, told): (&Charge, &Outcome, Option<Timestamp>),
    subject: Option<(&str, &[u8])>,
) {
    let (Some(subject), Some((limit, _))) = (subject, snapshot.limit(charge.limit)) else { return };
    let Charge { key, algorithm, .. } = *charge;
    let (limit, now) = ((&*limit.policy, &*limit.name), gateway.clock.now());
    // A bucket that was not asked has no level.
    let reset_after = (outcome.verdict != Verdict::Unasked).then_some(outcome.reset_after);
    let one = IndexedCharge { key, subject, algorithm, limit, reset_after, told, now };
    gateway.records.subjects.note(worker, one);
}

/// Adds a request that costs more than a full bucket holds to the records of the limits that it is too large for.
pub(super) fn record_too_large(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    worker: Worker,
    plan: &Plan,
    requests: ChargedRequests<'_>,
) {
    let Some(records) = &snapshot.records else { return };
    let charges = recorded(records, plan, requests).filter(|recorded| recorded.charge.is_too_large());
    for RecordedCharge { charge, subject, .. } in charges {
        let at = moment(gateway, &charge.algorithm);
        if let Some(key) = records.key(charge.limit, &subject) {
            let key = key.in_period(period(&charge.algorithm, at, None));
            records.writer.add(worker, &key, Use { refused: 1, ..Use::default() });
        }
    }
}

/// Adds what a timed hold has settled of a limit to the records. It counts in the period that runs now.
pub(super) fn record_settled(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    worker: Worker,
    limit: LimitId,
    TimedHoldCost { bucket, limit: algorithm, .. }: &TimedHoldCost,
    subject: &HeldSubject,
    quantity: Cost,
) {
    let Some(records) = &snapshot.records else { return };
    let Some(key) =
        records.key(limit, &records.subject_of_hold(subject)).filter(|_| algorithm.settling_budget().is_some())
    else {
        return;
    };
    let in_period = key.clone().in_period(period(algorithm, moment(gateway, algorithm), None));
    records.writer.add(worker, &in_period, Use::charged(quantity));
    let tag = snapshot.limit(limit).map(|(limit, _)| limit.tag(0)).unwrap_or_default();
    let algorithm = records.with_thresholds(algorithm);
    gateway.records.settled_thresholds.add(ThresholdQuestion {
        worker,
        charge: Charge { limit, tag, ..Charge::new(*bucket, algorithm, quantity) },
        writer: Arc::clone(&records.writer),
        key,
        // It is not known, so the bucket is among the first that are asked.
        level: algorithm.ceiling(),
        settled: gateway.clock.now(),
    });
}

/// Returns the time now by the clock by which a limit's periods end.
pub(super) fn moment(gateway: &GatewayState, algorithm: &Algorithm) -> Timestamp {
    let now = gateway.clock.now();
    let is_by_date = gateway.store.is_shared() || algorithm.zone().is_some();
    if is_by_date { gateway.store.clock_at(now) } else { now }
}

/// Writes the line about a ban that has begun. `index` is that of the charge among the enforced charges.
pub(super) fn record_ban(
    snapshot: &Snapshot,
    (index, charge): (usize, &Charge),
    step: u32,
    outcome: &Outcome,
    requests: ChargedRequests<'_>,
) {
    let (Some(records), Some((limit, _))) = (&snapshot.records, snapshot.limit(charge.limit)) else { return };
    let subject = requests.of_charge(index).map(|request| records.subject(request));
    records.writer.add_ban(BegunBan {
        policy: &limit.policy,
        rule: &limit.name,
        subject: subject.as_ref().and_then(|subject| records.named(subject)),
        step,
        length: outcome.retry_after,
    });
}

/// An enforced charge that is recorded.
struct RecordedCharge<'r> {
    index: usize,
    charge: &'r Charge,
    /// What it spends for its subject.
    cost: Cost,
    subject: Subject<'r>,
}

/// Returns the enforced charges that are recorded.
fn recorded<'r>(
    records: &'r RecordedLimits,
    plan: &'r Plan,
    requests: ChargedRequests<'r>,
) -> impl Iterator<Item = RecordedCharge<'r>> {
    let charges = plan.enforced.iter().enumerate();
    let is_recorded =
        move |(_, charge): &(usize, &Charge)| charge.purpose == ChargePurpose::Spend && records.records(charge.limit);
    charges.filter(is_recorded).filter_map(move |(index, charge)| {
        let cost = requests.cost_of(plan, index)?;
        Some(RecordedCharge { index, charge, cost, subject: records.subject(requests.of_charge(index)?) })
    })
}

/// The time of a decision by the clock of the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreMoment {
    now: Timestamp,
    /// Whether a bucket was decided at exactly this time.
    is_exact: bool,
}

impl StoreMoment {
    /// Returns the time at which this algorithm was charged.
    pub(super) fn of(gateway: &GatewayState, taken: &TakeReply, algorithm: &Algorithm) -> StoreMoment {
        match taken.source {
            Source::Fallback => StoreMoment { now: gateway.store.clock_at(gateway.clock.now()), is_exact: false },
            Source::Store | Source::Cached if gateway.store.is_shared() => {
                StoreMoment { now: taken.now, is_exact: taken.source == Source::Store }
            }
            // In memory, only the periods of a calendar end by the machine's clock, which the reply shows.
            _ if algorithm.zone().is_some() => StoreMoment { now: taken.now, is_exact: true },
            _ => StoreMoment { now: gateway.clock.now(), is_exact: false },
        }
    }

    /// Returns the period that an outcome counts in.
    pub(super) fn period(self, algorithm: &Algorithm, outcome: &Outcome) -> Option<Period> {
        let left = (outcome.verdict != Verdict::Unasked).then_some(outcome.reset_after);
        match algorithm.window()? {
            Window::FirstRequest(length) => {
                let end = self.now.plus(left.filter(|left| *left > Micros(0) && self.is_exact)?);
                Some(Period { begin: Timestamp(end.0.saturating_sub(length.0)), end })
            }
            Window::Epoch(_) | Window::Calendar(_) => period(algorithm, self.now, left),
        }
    }
}

/// Returns the period of a fixed window at this time. `left` is the time until its end, if a bucket has told it; then the time may
/// be inexact. `None` for other algorithms, and for windows that begin with a request.
pub(super) fn period(algorithm: &Algorithm, at: Timestamp, left: Option<Micros>) -> Option<Period> {
    let left = left.filter(|left| *left > Micros(0));
    match algorithm.window()? {
        Window::Epoch(length) => {
            let length = length.0.max(1);
            let end = match left {
                Some(left) => (at.plus(left).0 + length / 2) / length * length,
                None => (at.0 / length + 1) * length,
            };
            Some(Period { begin: Timestamp(end.saturating_sub(length)), end: Timestamp(end) })
        }
        Window::Calendar(calendar) => {
            let inside = match left {
                Some(left) => Timestamp(at.plus(left).0.saturating_sub(MOST_SKEW.0)),
                None => at,
            };
            let periods = calendar.around(inside);
            Some(Period { begin: periods.begin, end: periods.end })
        }
        Window::FirstRequest(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::algorithm::fixed_window::FixedWindow;
    use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};

    const SECOND: u64 = 1_000_000;

    fn ends(window: Window, at: u64, left: Option<u64>) -> Option<(u64, u64)> {
        let algorithm = Algorithm::FixedWindow(FixedWindow::new(5, window).unwrap());
        let period = period(&algorithm, Timestamp(at), left.map(Micros))?;
        Some((period.begin.0, period.end.0))
    }

    #[test]
    fn a_period_is_that_of_the_bucket_although_the_clock_here_is_not_exact() {
        let minute = Window::Epoch(Micros(60 * SECOND));
        let of = |at, left| ends(minute, at * SECOND, left);
        assert_eq!(of(119, None), Some((60 * SECOND, 120 * SECOND)));
        assert_eq!(of(120, None), Some((120 * SECOND, 180 * SECOND)));
        // The bucket was charged a microsecond before its period ended.
        assert_eq!(of(120, Some(1)), Some((60 * SECOND, 120 * SECOND)));
        assert_eq!(of(119, Some(60 * SECOND)), Some((120 * SECOND, 180 * SECOND)));
        assert_eq!(ends(Window::FirstRequest(Micros(60 * SECOND)), 5, None), None);
        let day =
            Calendar::new(Anchor::default_of(CalendarUnit::Day), TimeOfDay::default(), Zone::parse("UTC").unwrap());
        let of = |at, left| ends(Window::Calendar(day), at * SECOND, left);
        assert_eq!(of(86_400, None), Some((86_400 * SECOND, 172_800 * SECOND)));
        assert_eq!(of(86_405, Some(1)), Some((0, 86_400 * SECOND)));
        assert_eq!(of(86_405, Some(86_400 * SECOND)), Some((86_400 * SECOND, 172_800 * SECOND)));
    }
}

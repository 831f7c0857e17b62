//! Encodes many plans as one call of the script, and decodes the reply into one settlement for each plan.
//!
//! The reply contains which requests were granted, and the state of each bucket before the call. The level of each
//! bucket for each request is computed here, by the same step that every store uses. A reply that disagrees with the
//! computed levels is rejected. So replies are short, and a broken server cannot grant one request the charge of
//! another. A call may have reports, which say how many slots are held. Their effect is computed here in the same way.

mod leases;
mod reports;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use redis::{Cmd, Value};
use smallvec::SmallVec;

use crate::error::StoreError;
use crate::remote::transport::{BucketAfterCall, Reply, is_short};
use base::time::{Micros, Timestamp};
pub use leases::LeaseCall;
use ledger::algorithm::{Algorithm, AlgorithmKind, State};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, ChargePurpose, Plan, refuse, settle};
use ledger::cost::Cost;
use ledger::holds;
use ledger::outcome::ToldThresholds;
use reports::{OUTSIDE_PERIOD, Reports, results_of_others};

/// The largest integer that a Lua number represents exactly.
const EXACT: u64 = (1 << 53) - 1;

/// One call of the script, with the requests that are sent in it.
#[derive(Debug)]
pub struct Call<'p> {
    runs: Vec<Run<'p>>,
    tables: Tables,
    /// The requests in the encoding that `take.lua` describes.
    requests: Vec<u8>,
    reports: Option<Reports<'p>>,
}

/// This number is added to the number of requests in a run if some of its charges are only checked.
const SOME_CHECKED: usize = 1 << 15;

/// A run of consecutive equal requests.
#[derive(Debug)]
struct Run<'p> {
    plan: &'p Plan,
    /// The index of each charge's bucket among the keys.
    indices: SmallVec<[usize; 2]>,
    times: usize,
}

impl<'p> Call<'p> {
    pub fn new(plans: impl IntoIterator<Item = &'p Plan>) -> Call<'p> {
        Call::with_reports(None, plans)
    }

    /// Makes a call whose reports are applied before its plans. Each bucket of which a plan asks something must have a
    /// report in `reports`, before all reports about other buckets.
    pub fn with_reports(reports: Option<&'p holds::Call>, plans: impl IntoIterator<Item = &'p Plan>) -> Call<'p> {
        let mut tables = Tables::default();
        let mut runs: Vec<Run<'p>> = Vec::new();
        for plan in plans {
            match runs.last_mut() {
                // A request with a charge that is only checked is a run of its own. Such a charge may be in another
                // unit than the bucket, so it is rounded separately for each request.
                Some(run) if run.plan.is_same_take(plan) && only_checked(plan) == 0 => run.times += 1,
                _ => {
                    let indices = plan.charges().map(|charge| tables.key(&charge.key)).collect();
                    runs.push(Run { plan, indices, times: 1 });
                }
            }
        }
        let reports = reports.map(|call| Reports::new(call, &mut tables));
        let mut requests = Vec::with_capacity(18 * runs.len());
        for run in &runs {
            let Run { plan, indices, times } = run;
            let (enforced, checked) = (plan.enforced.len(), only_checked(plan));
            match checked {
                0 => add(&mut requests, [*times, enforced, plan.shadow.len()]),
                _ => {
                    let counts = [times + SOME_CHECKED, enforced, plan.shadow.len(), checked, checks(plan)];
                    add(&mut requests, counts);
                }
            }
            let mut charge = |(charge, index): (&Charge, &usize)| {
                // Lua counts from 1.
                add(&mut requests, [index + 1, tables.limit(&charge.algorithm) + 1]);
                add_amount(&mut requests, charge.cost.thousandths());
            };
            let all = || plan.charges().zip(indices).enumerate();
            if checked > 0 {
                let is_check = |one: &Charge| one.purpose == ChargePurpose::Check;
                let checked = || all().filter(|(at, _)| plan.is_only_checked(*at)).map(|(_, one)| one);
                checked().filter(|(one, _)| !is_check(one)).for_each(&mut charge);
                checked().filter(|(one, _)| is_check(one)).for_each(&mut charge);
            }
            all().filter(|(at, _)| checked == 0 || !plan.is_only_checked(*at)).for_each(|(_, one)| charge(one));
        }
        Call { runs, tables, requests, reports }
    }

    /// Returns the Redis command of the call. `sha` names the script that the server has loaded, and `near` is roughly
    /// the time on the server's clock. `now` is the time that a test chooses for the script. It is ignored without the
    /// feature `test-hooks`.
    pub fn command(&self, sha: &str, prefix: &str, near: Timestamp, now: Option<Timestamp>) -> Cmd {
        let Tables { keys, limits, .. } = &self.tables;
        let mut text = Vec::with_capacity(2 + 42 * limits.len() + self.requests.len());
        add(&mut text, [limits.len()]);
        for limit in limits {
            add_limit(&mut text, limit, near);
        }
        text.extend_from_slice(&self.requests);
        let bytes = 64 + (prefix.len() + 17) * keys.len() + text.len();
        let mut command = Cmd::with_capacity(5 + keys.len(), bytes);
        command.arg("EVALSHA").arg(sha).arg(keys.len());
        for key in keys {
            command.arg(&key_name(prefix, key)[..]);
        }
        command.arg(&text[..]);
        if let Some(reports) = &self.reports {
            command.arg(reports.text());
        }
        if cfg!(feature = "test-hooks")
            && let Some(now) = now
        {
            command.arg(now.0);
        }
        command
    }

    /// Decodes the reply of the script into the decisions of the call.
    ///
    /// # Errors
    ///
    /// [`StoreError::UnexpectedReply`] for a reply that the script cannot have given to this call.
    #[allow(clippy::indexing_slicing, reason = "a run's indices are ours, in tables as long as what is indexed")]
    pub fn settle(&self, reply: &Value) -> Result<Reply, StoreError> {
        let Value::Array(parts) = reply else { return Err(StoreError::UnexpectedReply) };
        if parts.len() != 2 + self.runs.len() + self.tables.keys.len() {
            return Err(StoreError::UnexpectedReply);
        }
        let [now, healed, rest @ ..] = &parts[..] else { return Err(StoreError::UnexpectedReply) };
        let (grants, states) = rest.split_at_checked(self.runs.len()).ok_or(StoreError::UnexpectedReply)?;
        let now = Timestamp(integer(now)?);
        if now.0 > EXACT {
            return Err(StoreError::UnexpectedReply);
        }
        let is_unwritten = self.reports.is_some() && *healed == Value::Int(-1);
        let healed = if is_unwritten { 0 } else { integer(healed)? };
        if healed > self.tables.keys.len() as u64 {
            return Err(StoreError::UnexpectedReply);
        }
        let others = self.reports.as_ref().map_or(states.len(), |reports| reports.first_other);
        let (found, others) = states.split_at_checked(others).ok_or(StoreError::UnexpectedReply)?;
        let is_read = |value: &Value| self.reports.is_none() || *value != OUTSIDE_PERIOD;
        let read = |value: &Value| if is_read(value) { state(value) } else { Ok(None) };
        let mut states: Vec<Option<State>> = found.iter().map(read).collect::<Result<_, _>>()?;
        let reports = match &self.reports {
            Some(reports) => {
                let mut results = reports.accept(&self.tables.limits, found, &mut states, now);
                results.append(&mut results_of_others(others, is_unwritten)?);
                results
            }
            None => Vec::new(),
        };
        let (mut settlements, mut out_of_memory) = (Vec::new(), is_unwritten);
        let mut last: Vec<Option<(bool, Micros, &Algorithm)>> = vec![None; self.tables.keys.len()];
        for (run, granted) in self.runs.iter().zip(grants) {
            let granted = match grant(granted)? {
                Grant::First(granted) if granted <= run.times as u64 => granted,
                Grant::First(_) => return Err(StoreError::UnexpectedReply),
                Grant::RefusedWithoutBan => {
                    let found: SmallVec<[_; 2]> = run.indices.iter().map(|index| states[*index].as_deref()).collect();
                    let refused = refuse(run.plan, &found, now).ok_or(StoreError::UnexpectedReply)?;
                    out_of_memory = true;
                    settlements.extend((0..run.times).map(|_| Some(refused.clone())));
                    continue;
                }
                // A call without reports cannot have an old report.
                Grant::OldReport if self.reports.is_none() => return Err(StoreError::UnexpectedReply),
                undecided @ (Grant::LeftOut | Grant::OutOfMemory | Grant::OldReport) => {
                    out_of_memory |= matches!(undecided, Grant::OutOfMemory);
                    settlements.extend((0..run.times).map(|_| None));
                    continue;
                }
            };
            for nth in 0..run.times as u64 {
                let found: SmallVec<[_; 2]> = run.indices.iter().map(|index| states[*index].as_deref()).collect();
                let (mut settlement, entries) = settle(run.plan, &found, now);
                drop(found);
                if is_unwritten {
                    settlement.enforced.iter_mut().for_each(|outcome| outcome.told = ToldThresholds::default());
                }
                if settlement.is_granted() != (nth < granted) {
                    return Err(StoreError::UnexpectedReply);
                }
                for (index, entry) in run.indices.iter().zip(entries) {
                    if let Some(entry) = entry {
                        states[*index] = Some(entry.state);
                    }
                }
                for ((index, outcome), charge) in run.indices.iter().zip(&settlement.enforced).zip(&run.plan.enforced) {
                    if run.plan.checks_what_is_spent(charge) || charge.algorithm.slots().is_some() {
                        continue;
                    }
                    last[*index] = Some((is_short(charge, outcome), outcome.reset_after, &charge.algorithm));
                }
                settlements.push(Some(settlement));
            }
        }
        let left = self.tables.keys.iter().zip(states).zip(last).filter_map(|((key, state), last)| {
            let (short, reset_after, algorithm) = last?;
            let ban = algorithm.running_ban(state.as_deref(), now);
            let state = state.map(|state| algorithm.excerpt(state));
            Some(BucketAfterCall { key: *key, state, short, reset_after, ban })
        });
        let left = left.collect();
        Ok(Reply { now, healed, settlements, left, reports, out_of_memory })
    }
}

/// Returns the name of a bucket's key in Redis: the prefix, `:`, and the 16 raw bytes.
pub fn key_name(prefix: &str, key: &BucketKey) -> Vec<u8> {
    let mut name = Vec::with_capacity(prefix.len() + 17);
    name.extend_from_slice(prefix.as_bytes());
    name.push(b':');
    name.extend_from_slice(&key.0);
    name
}

/// Appends to `text` an amount that an operator gives back to a bucket, in the encoding that `give_back.lua` describes.
pub fn add_grant(text: &mut Vec<u8>, kind: AlgorithmKind, amount: Cost) {
    add_given_back(text, kind.twin(), amount, Timestamp(0));
}

/// Appends to `text` a charge that is to be undone, in the encoding that `give_back.lua` describes. `charged` is the
/// time of the charge, and `near` is roughly the time on the server's clock.
pub fn add_undone(text: &mut Vec<u8>, charge: &Charge, charged: Timestamp, near: Timestamp) {
    let Charge { algorithm, cost, .. } = charge;
    let ((twin, own), (_, fastest)) = (algorithm.twin(near), algorithm.at_fastest().twin(near));
    add_given_back(text, twin, *cost, charged);
    own.into_iter().chain(fastest).for_each(|number| add_amount(text, number));
}

fn add_given_back(text: &mut Vec<u8>, twin: usize, amount: Cost, charged: Timestamp) {
    // Lua counts from 1.
    add(text, [twin + 1]);
    add_amount(text, amount.thousandths());
    add_amount(text, charged.0);
}

/// The keys and limits of a call, each listed once.
#[derive(Debug, Default)]
struct Tables {
    keys: Vec<BucketKey>,
    indices: HashMap<BucketKey, usize, BuildHasherDefault<FirstBytes>>,
    /// The limits of a call. A bucket has several limits while a reload changes the numbers of its limit.
    limits: Vec<Algorithm>,
}

impl Tables {
    fn key(&mut self, key: &BucketKey) -> usize {
        *self.indices.entry(*key).or_insert_with(|| {
            self.keys.push(*key);
            self.keys.len() - 1
        })
    }

    fn limit(&mut self, limit: &Algorithm) -> usize {
        self.limits.iter().position(|other| other == limit).unwrap_or_else(|| {
            self.limits.push(*limit);
            self.limits.len() - 1
        })
    }
}

/// Hashes a bucket key by its first bytes, because the key is itself a hash.
#[derive(Debug, Default)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

fn add<const N: usize>(text: &mut Vec<u8>, numbers: [usize; N]) {
    text.extend_from_slice(numbers.map(short).as_flattened());
}

fn add_amount(text: &mut Vec<u8>, amount: u64) {
    text.extend_from_slice(&amount.to_le_bytes());
}

fn add_limit(text: &mut Vec<u8>, limit: &Algorithm, near: Timestamp) {
    let (twin, numbers) = limit.twin(near);
    // Lua counts from 1.
    add(text, [twin + 1]);
    numbers.into_iter().for_each(|number| add_amount(text, number));
}

/// Returns the number of enforced charges that are only checked. It is almost always 0.
fn only_checked(plan: &Plan) -> usize {
    (0..plan.enforced.len()).filter(|index| plan.is_only_checked(*index)).count()
}

/// Returns the number of enforced charges that check their bucket and never spend from it.
fn checks(plan: &Plan) -> usize {
    plan.enforced.iter().filter(|charge| charge.purpose == ChargePurpose::Check).count()
}

/// Encodes a number in two bytes. No list of a call has more entries than two bytes can count. In a longer list, the
/// script would look for an entry that does not exist, and end with an error.
fn short(number: usize) -> [u8; 2] {
    u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes()
}

/// The result of a run of equal requests, as the script returns it.
enum Grant {
    /// This number of requests at the start of the run is granted. The other requests are refused.
    First(u64),
    LeftOut,
    /// The server refused to write for this run, because its memory is full.
    OutOfMemory,
    /// All requests are refused. The first one would have begun a ban, but the memory of the server is full.
    RefusedWithoutBan,
    /// A report on a bucket of these requests is not newer than the last one of its owner.
    OldReport,
}

fn grant(value: &Value) -> Result<Grant, StoreError> {
    match value {
        Value::Int(-1) => Ok(Grant::LeftOut),
        Value::Int(-2) => Ok(Grant::OutOfMemory),
        Value::Int(-3) => Ok(Grant::OldReport),
        Value::Int(-4) => Ok(Grant::RefusedWithoutBan),
        granted => integer(granted).map(Grant::First),
    }
}

fn integer(value: &Value) -> Result<u64, StoreError> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| StoreError::UnexpectedReply),
        _ => Err(StoreError::UnexpectedReply),
    }
}

/// Decodes the state of a bucket: integers of eight bytes, little-endian. `None` for a full bucket, which is not
/// stored. The algorithm checks whether the integers are a valid state.
///
/// # Errors
/// When the value is not a list of such integers.
pub fn state(value: &Value) -> Result<Option<State>, StoreError> {
    let packed = match value {
        Value::Nil => return Ok(None),
        Value::BulkString(packed) if packed.len() % 8 == 0 => packed,
        _ => return Err(StoreError::UnexpectedReply),
    };
    let (words, _) = packed.as_chunks::<8>();
    Ok(Some(words.iter().map(|word| u64::from_le_bytes(*word)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::transport::ReportResult;
    use ledger::algorithm::ban::Ban;
    use ledger::algorithm::budget::Budget;
    use ledger::algorithm::token_bucket::{Rate, TokenBucket};
    use ledger::holds::{BucketReport, LIFE, Owner, SettledSums};

    #[test]
    fn a_report_about_a_bucket_that_is_only_asked_for_a_ban_has_a_key_of_its_own() {
        let rate = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
        let ban = Ban::new(&[Micros(1_000_000)], Micros(1_000_000)).unwrap();
        let limit = Algorithm::Budget(Budget::of_token_bucket(TokenBucket::new(rate, 5).unwrap()).with_ban(ban));
        let [asked, other] = [BucketKey([1; 16]), BucketKey([2; 16])];
        let check = Charge::new(asked, limit.beginning_no_ban().unwrap(), Cost::default());
        let mut plan = Plan::default();
        plan.enforced.push(Charge { purpose: ChargePurpose::Check, ..check });
        let report = |bucket| BucketReport {
            bucket,
            limit,
            held: Cost::default(),
            settled: SettledSums::default(),
            asked: Cost::default(),
        };
        let reports = [other, asked].map(report).to_vec();
        let call = holds::Call { owner: Owner(1), sequence: 1, life: LIFE, reports };
        // The request is granted, and then both reports are accepted.
        let reply = [1 << 50, 0, 1].map(Value::Int).into_iter().chain([Value::Nil, Value::Int(1), Value::Int(1)]);
        let reply = Call::with_reports(Some(&call), [&plan]).settle(&Value::Array(reply.collect())).unwrap();
        assert!(reply.settlements[0].as_ref().unwrap().is_granted());
        assert!(reply.reports.iter().all(|result| *result == ReportResult::Accepted) && reply.reports.len() == 2);
    }

    #[test]
    fn what_a_plan_spends_is_reported_although_it_also_checks_the_bucket() {
        let plan = Plan::of_one_bucket_spent_and_checked();
        // The time is 2^50. The only run was granted once, and its bucket was full before the call.
        let reply = Value::Array(vec![Value::Int(1 << 50), Value::Int(0), Value::Int(1), Value::Nil]);
        let reply = Call::new([&plan]).settle(&reply).unwrap();
        let left: Vec<_> = reply.left.iter().map(|bucket| (bucket.short, bucket.reset_after)).collect();
        assert_eq!(left, [(false, Micros(3_000_000))]);
    }
}

//! Writes many plans as one call of the script, and reads its reply back into one settlement for each.
//!
//! The script says which requests it granted and how it found each bucket. What each bucket is worth to each request is
//! worked out here, by the same step that every store uses: a reply that does not agree with it is none. So a reply is
//! short, and a broken server cannot grant one request what it took for another.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use redis::{Cmd, Value};
use smallvec::SmallVec;

use crate::base::time::{Micros, Timestamp};
use crate::limit::algorithm::{Algorithm, State};
use crate::limit::charge::{Charge, Plan, Settlement, settle};
use crate::limit::cost::Cost;
use crate::limit::key::BucketKey;
use crate::store::error::StoreError;

/// The largest integer that the script can hold.
const EXACT: u64 = (1 << 53) - 1;

/// One call: what is in flight together.
#[derive(Debug)]
pub struct Call<'p> {
    runs: Vec<Run<'p>>,
    tables: Tables,
    /// As `take.lua` describes it.
    requests: Vec<u8>,
}

/// Equal requests, one behind the other.
#[derive(Debug)]
struct Run<'p> {
    plan: &'p Plan,
    /// Where each charge's bucket stands among the keys.
    indices: SmallVec<[usize; 2]>,
    times: usize,
}

/// What a call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub now: Timestamp,
    pub healed: u64,
    /// One for each plan, in their order.
    pub settlements: Vec<Settlement>,
    pub left: Vec<BucketAfterCall>,
}

/// A bucket as a call left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketAfterCall {
    pub key: BucketKey,
    pub state: State,
    /// Whether it could not pay what it was last asked for, or could not pay it again.
    pub short: bool,
    pub reset_after: Micros,
}

impl<'p> Call<'p> {
    pub fn new(plans: impl IntoIterator<Item = &'p Plan>) -> Call<'p> {
        let mut tables = Tables::default();
        let mut runs: Vec<Run<'p>> = Vec::new();
        for plan in plans {
            match runs.last_mut() {
                Some(run) if is_same_take(run.plan, plan) => run.times += 1,
                _ => {
                    let indices = plan.charges().map(|charge| tables.key(&charge.key)).collect();
                    runs.push(Run { plan, indices, times: 1 });
                }
            }
        }
        let mut requests = Vec::with_capacity(12 * runs.len());
        let mut add = |numbers: [usize; 3]| requests.extend(numbers.map(short).as_flattened());
        for run in &runs {
            add([run.times, run.plan.enforced.len(), run.plan.shadow.len()]);
            for (charge, index) in run.plan.charges().zip(&run.indices) {
                // Lua counts from 1.
                add([index + 1, tables.limit(&charge.algorithm) + 1, tables.cost(charge.cost) + 1]);
            }
        }
        Call { runs, tables, requests }
    }

    /// `sha` names the script, which the server has. `now` is for the tests that are built with `test-hooks`.
    pub fn command(&self, sha: &str, prefix: &str, now: Option<Timestamp>) -> Cmd {
        let Tables { keys, limits, costs, .. } = &self.tables;
        let numbers = 2 + 4 * limits.len() + costs.len();
        let bytes = 128 + 40 * keys.len() + 20 * numbers + self.requests.len();
        let mut command = Cmd::with_capacity(4 + keys.len() + numbers, bytes);
        command.arg("EVALSHA").arg(sha).arg(keys.len());
        for key in keys {
            command.arg(&key_name(prefix, key)[..]);
        }
        command.arg(&self.requests[..]).arg(limits.len());
        for limit in limits {
            let (twin, numbers) = limit.twin();
            command.arg(twin + 1).arg(&numbers[..]);
        }
        for cost in costs {
            command.arg(cost.thousandths());
        }
        if cfg!(feature = "test-hooks") {
            command.arg(now.map_or(String::new(), |now| now.0.to_string()));
        }
        command
    }

    /// Reads what the script answered.
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
        let healed = integer(healed)?;
        if healed > self.tables.keys.len() as u64 {
            return Err(StoreError::UnexpectedReply);
        }
        let mut states: Vec<Option<State>> = states.iter().map(state).collect::<Result<_, _>>()?;
        let mut settlements = Vec::new();
        let mut last: Vec<Option<(bool, Micros)>> = vec![None; self.tables.keys.len()];
        for (run, granted) in self.runs.iter().zip(grants) {
            let granted = integer(granted)?;
            if granted > run.times as u64 {
                return Err(StoreError::UnexpectedReply);
            }
            for nth in 0..run.times as u64 {
                let found: SmallVec<[_; 2]> = run.indices.iter().map(|index| states[*index].clone()).collect();
                let (settlement, entries) = settle(run.plan, &found, now);
                if settlement.is_granted() != (nth < granted) {
                    return Err(StoreError::UnexpectedReply);
                }
                for (index, entry) in run.indices.iter().zip(entries) {
                    if let Some(entry) = entry {
                        states[*index] = Some(entry.state);
                    }
                }
                for ((index, outcome), charge) in run.indices.iter().zip(&settlement.enforced).zip(&run.plan.enforced) {
                    last[*index] = Some((outcome.remaining < charge.cost, outcome.reset_after));
                }
                settlements.push(settlement);
            }
        }
        let left = self.tables.keys.iter().zip(states).zip(last).filter_map(|((key, state), last)| {
            let (short, reset_after) = last?;
            Some(BucketAfterCall { key: *key, state: state?, short, reset_after })
        });
        let left = left.collect();
        Ok(Reply { now, healed, settlements, left })
    }
}

/// The prefix, and the sixteen bytes as they are.
pub fn key_name(prefix: &str, key: &BucketKey) -> Vec<u8> {
    let mut name = Vec::with_capacity(prefix.len() + 17);
    name.extend_from_slice(prefix.as_bytes());
    name.push(b':');
    name.extend_from_slice(&key.0);
    name
}

/// What the requests of a call have in common, each once.
#[derive(Debug, Default)]
struct Tables {
    keys: Vec<BucketKey>,
    indices: HashMap<BucketKey, usize, BuildHasherDefault<FirstBytes>>,
    /// More than one for a bucket whose numbers have just changed in the file.
    limits: Vec<Algorithm>,
    costs: Vec<Cost>,
}

impl Tables {
    fn key(&mut self, key: &BucketKey) -> usize {
        *self.indices.entry(*key).or_insert_with(|| {
            self.keys.push(*key);
            self.keys.len() - 1
        })
    }

    fn limit(&mut self, limit: &Algorithm) -> usize {
        index_in(&mut self.limits, limit)
    }

    fn cost(&mut self, cost: Cost) -> usize {
        index_in(&mut self.costs, &cost)
    }
}

/// Where it stands in a list that is short.
fn index_in<T: Clone + PartialEq>(list: &mut Vec<T>, one: &T) -> usize {
    list.iter().position(|other| other == one).unwrap_or_else(|| {
        list.push(one.clone());
        list.len() - 1
    })
}

/// A key is a hash already.
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

/// Whether two requests ask the same of the same buckets.
pub fn is_same_take(one: &Plan, other: &Plan) -> bool {
    let same = |(a, b): (&Charge, &Charge)| (a.key, a.cost) == (b.key, b.cost) && a.algorithm == b.algorithm;
    (one.enforced.len(), one.shadow.len()) == (other.enforced.len(), other.shadow.len())
        && one.charges().zip(other.charges()).all(same)
}

/// A call has fewer of everything; were it not so, the script would find nothing under this number, and fail.
fn short(number: usize) -> [u8; 2] {
    u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes()
}

fn integer(value: &Value) -> Result<u64, StoreError> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| StoreError::UnexpectedReply),
        _ => Err(StoreError::UnexpectedReply),
    }
}

/// A state, packed as integers of eight bytes.
pub fn state(value: &Value) -> Result<Option<State>, StoreError> {
    let packed = match value {
        Value::Nil => return Ok(None),
        Value::BulkString(packed) if packed.len() % 8 == 0 => packed,
        _ => return Err(StoreError::UnexpectedReply),
    };
    let (words, _) = packed.as_chunks::<8>();
    let state: State = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    if state.iter().all(|word| *word <= EXACT) { Ok(Some(state)) } else { Err(StoreError::UnexpectedReply) }
}

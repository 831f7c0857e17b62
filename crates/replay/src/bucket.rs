//! Defines the buckets of a simulated file, and the charges to them.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::logged_cost::LoggedEnd;
use super::result::SimulatedResult;
use base::pseudonym::Pseudonym;
use ledger::algorithm::State;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, LimitId};
use rules::explanation::{Explanation, PickedKey, RuleOutcome};
use rules::partial_evaluation::Observation;

/// Identifies a bucket of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BucketId {
    /// A bucket whose key was made from the values of the request.
    Picked(BucketKey),
    /// A bucket that the gateway's own log names by a pseudonym. The key is that of the limit, or of its meter. A limit
    /// that has no bucket in the log gets the pseudonym of another limit in the same rule.
    Logged(BucketKey, Pseudonym),
}

/// A charge that a simulation makes to one bucket.
#[derive(Clone, Debug)]
pub struct BucketCharge {
    pub bucket: BucketId,
    pub charge: Charge,
    /// What the request does to a budget when it ends. `None` for other limits.
    pub settled: Option<LoggedEnd>,
}

impl BucketCharge {
    pub fn picked(charge: &Charge) -> BucketCharge {
        BucketCharge { bucket: BucketId::Picked(charge.key), charge: charge.clone(), settled: None }
    }
}

/// A bucket of a simulation, with its limit, its state and the counts of its requests.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub limit: LimitId,
    state: Option<State>,
    pub asked: u64,
    pub refused: u64,
    /// The number of bans that began.
    pub bans: u64,
    /// The number of requests that this bucket refused and the file of `--against` does not refuse. 0 without `--against`.
    pub newly_refused: u64,
    /// The number of requests to this bucket that the file of `--against` refuses. 0 without `--against`.
    pub refused_before: u64,
    /// The name of the client for the report, such as `ip:address 203.0.113.7`, or with pseudonyms in place of the
    /// values. With a log of another program, `None` until the bucket refuses a request. Also `None` if the bucket's
    /// own pseudonym is the name.
    pub client: Option<String>,
}

/// The way in which a report names clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientNames {
    /// Clients are named by pseudonyms, because the gateway's own log hides the values.
    Pseudonyms,
    /// Clients are named by the values of the limit keys. Used for a log of another program.
    AsLogged,
}

/// All buckets of the simulation of one file.
#[derive(Debug, Default)]
pub struct Buckets(HashMap<BucketId, Bucket>);

impl Buckets {
    pub fn iter(&self) -> impl Iterator<Item = (&BucketId, &Bucket)> {
        self.0.iter()
    }

    /// Counts a request that charges a bucket. `before` is the request's result under the former file. `None` without a
    /// former file.
    pub fn count_asked(
        &mut self,
        charge: &BucketCharge,
        explanation: &Explanation<'_>,
        before: Option<SimulatedResult>,
    ) {
        let bucket = self.entry(charge, explanation);
        bucket.asked += 1;
        bucket.refused_before += u64::from(before == Some(SimulatedResult::Refused));
    }

    /// Counts a request that a bucket refused. `names` says how to name the client. `before` is the request's result
    /// under the former file. `None` without a former file.
    pub fn count_refused(
        &mut self,
        charge: &BucketCharge,
        explanation: &Explanation<'_>,
        names: ClientNames,
        before: Option<SimulatedResult>,
    ) {
        if let Some(bucket) = self.0.get_mut(&charge.bucket) {
            // Only buckets that refuse a request get a client's name. There may be millions of other buckets.
            if let (None, ClientNames::AsLogged, BucketId::Picked(key)) = (&bucket.client, names, charge.bucket) {
                bucket.client = picked_keys(explanation, key).map(client_name);
            }
            bucket.refused += 1;
            bucket.newly_refused += u64::from(before.is_some_and(|before| before != SimulatedResult::Refused));
        }
    }

    /// Counts a ban of a bucket that has begun.
    pub(crate) fn count_ban(&mut self, charge: &BucketCharge, explanation: &Explanation<'_>) {
        self.entry(charge, explanation).bans += 1;
    }

    /// Returns the states of the buckets of these charges, in the order of the charges. A bucket without a state is
    /// full.
    pub fn states<'c>(&self, charges: impl Iterator<Item = &'c BucketCharge>) -> SmallVec<[Option<State>; 2]> {
        charges.map(|charge| self.0.get(&charge.bucket).and_then(|bucket| bucket.state.clone())).collect()
    }

    pub fn set_state(&mut self, charge: &BucketCharge, explanation: &Explanation<'_>, state: State) {
        self.entry(charge, explanation).state = Some(state);
    }

    /// Changes the state of a bucket. Does nothing if no request has charged the bucket before.
    pub(crate) fn change_state(&mut self, bucket: BucketId, change: impl FnOnce(Option<&[u64]>) -> State) {
        if let Some(bucket) = self.0.get_mut(&bucket) {
            bucket.state = Some(change(bucket.state.as_deref()));
        }
    }

    fn entry(&mut self, charge: &BucketCharge, explanation: &Explanation<'_>) -> &mut Bucket {
        self.0.entry(charge.bucket).or_insert_with(|| {
            let client = match charge.bucket {
                BucketId::Picked(key) => client_pseudonyms(explanation, key),
                BucketId::Logged(..) => None,
            };
            let limit = charge.charge.limit;
            Bucket { limit, state: None, asked: 0, refused: 0, bans: 0, newly_refused: 0, refused_before: 0, client }
        })
    }
}

/// Returns the client of a bucket whose key was made from pseudonyms, such as `jwt:sub 5f3a9c17…`. Returns `None` for a
/// bucket whose key was made from values.
fn client_pseudonyms(explanation: &Explanation<'_>, key: BucketKey) -> Option<String> {
    let picked = picked_keys(explanation, key)?;
    picked.iter().find(|picked| matches!(picked.value, Observation::Named(_)))?;
    Some(client_name(picked))
}

/// Returns the values that the limit keys picked for the bucket with this key.
fn picked_keys<'e, 'a>(explanation: &'e Explanation<'a>, key: BucketKey) -> Option<&'e [PickedKey<'a>]> {
    let rules = explanation.policies.iter().flat_map(|policy| &policy.rules);
    let mut picked = rules.filter_map(|rule| match &rule.outcome {
        RuleOutcome::Applies { picked, charges, .. } => {
            charges.charged.iter().any(|charge| charge.charge.key == key).then_some(&picked[..])
        }
        _ => None,
    });
    picked.next()
}

/// Formats the client as `ip:address 203.0.113.7, path /a`.
fn client_name(picked: &[PickedKey<'_>]) -> String {
    if picked.is_empty() {
        return "all clients".to_owned();
    }
    let each = picked.iter().map(|picked| match &picked.value {
        Observation::Named(pseudonym) => format!("{picked} {pseudonym}"),
        Observation::Value(value) => format!("{picked} {}", value.escape_ascii()),
        Observation::List(_) | Observation::Missing | Observation::Unknown => picked.to_string(),
    });
    each.collect::<Vec<_>>().join(", ")
}

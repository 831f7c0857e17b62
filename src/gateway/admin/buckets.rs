//! Shows buckets in memory on the admin listener, resets them, and gives back amounts to them.
//!
//! A bucket is named by its key in hexadecimal digits, so that no URL contains a client's value. A loopback listener has no
//! password, so a page in a browser could change buckets. To prevent this, DELETE and PATCH need a field that a page
//! cannot send to another site, and a host name that no other site can have.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, Method};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::bucket_query::{self, BucketQuery, QUERY_FIELD, reported_user};
use super::host_check::HostKind;
use super::write_access::Operator;
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::events::EventKind;
use ledger::algorithm::{AlgorithmKind, State, concurrency};
use ledger::bucket_key::BucketKey;
use ledger::cost::{Cost, ExtraDecimals};
use ledger::store_time::StoreTime;
use stores::GivenBack;
use stores::memory::Memory;

/// The header field that a change of buckets requires. Its value must be `reset`, `grant`, `ban` or `raise`.
pub(crate) const OPERATOR_FIELD: HeaderName = HeaderName::from_static("tollgate-operator");

/// The user in a log line if the request does not name one.
const UNKNOWN: &str = "unknown";
/// The maximum number of keys in a request. One proxied request cannot charge more buckets.
const MAX_KEYS: usize = 256;
/// The maximum number of results of a search. If there are more, a longer prefix is needed.
const MAX_FOUND: usize = 16;
/// The shortest prefix of a name's 16 digits that a search accepts, so that the search finds few buckets.
const MIN_DIGITS: usize = 8;

/// The answer of the admin listener: a status code, and a JSON document or a line of text.
pub(crate) type Answer = (u16, Result<Value, &'static str>);

/// Answers requests for `/buckets/KEY,KEY` and `/buckets?name=START`. `host` is the name of this machine, and `operator` who may change
/// buckets.
pub(super) async fn answer(gateway: &Arc<GatewayState>, host: &str, head: &Parts, operator: &Operator) -> Answer {
    if HostKind::of(head, host) != HostKind::Address {
        return (403, Err("use an address or localhost: any other host name may be that of another site"));
    }
    let permits = |word: &str| head.headers.get(OPERATOR_FIELD).is_some_and(|value| value == word);
    if let Some(field) = head.headers.get(QUERY_FIELD) {
        let allowed = |word: &str| {
            permits(word)
                && matches!(
                    (word, &head.method),
                    ("reset", &Method::DELETE) | ("grant" | "ban" | "raise", &Method::PATCH)
                )
        };
        return match bucket_query::query(field.as_bytes(), allowed) {
            Ok(query) => {
                let user = operator.name_or(query.user.clone());
                bucket_query::answer(gateway, BucketQuery { user, ..query }).await
            }
            Err((code, what)) => (code, Err(what)),
        };
    }
    let Some(memory) = gateway.store.local_buckets() else {
        return (409, Err("the buckets are in a shared store: look there"));
    };
    let query = head.uri.query().unwrap_or_default();
    let user = || operator.name_or(reported_user(head).unwrap_or_else(|| UNKNOWN.to_owned()));
    match (head.uri.path().strip_prefix("/buckets/"), &head.method) {
        (Some(keys), method) => {
            let keys: Option<Vec<BucketKey>> = keys.split(',').take(MAX_KEYS + 1).map(BucketKey::parse).collect();
            match (keys.filter(|keys| keys.len() <= MAX_KEYS), method) {
                (None, _) => (400, Err("a bucket's key has 32 hexadecimal digits; 256 keys at most, with commas")),
                (Some(_), &Method::DELETE) if !permits("reset") => {
                    (403, Err("DELETE needs the field `Tollgate-Operator: reset`"))
                }
                (Some(_), &Method::PATCH) if !permits("grant") => {
                    (403, Err("PATCH needs the field `Tollgate-Operator: grant`"))
                }
                (Some(keys), &(Method::DELETE | Method::PATCH)) if has_slots(memory, &keys) => {
                    (409, Err("slots are given back only by the requests that hold them"))
                }
                (Some(keys), &Method::DELETE) => (200, Ok(reset(gateway, memory, &keys, user()))),
                (Some(keys), &Method::PATCH) => match grant_of(query, keys) {
                    Some((amount, buckets)) => (200, Ok(give_back(gateway, memory, &buckets, amount, user()))),
                    None => (400, Err("must have ?amount=N&algorithms=NAME,NAME, with an algorithm for each key")),
                },
                (Some(keys), _) => (200, Ok(states(memory, &keys))),
            }
        }
        (None, &(Method::DELETE | Method::PATCH)) => (405, Err("only buckets that are named can be changed")),
        (None, _) => match query.strip_prefix("name=").filter(|prefix| is_name(prefix)) {
            Some(prefix) => match find(gateway, prefix.to_owned()).await {
                Some(found) => (200, Ok(found)),
                None => (503, Err("another search is running: try again")),
            },
            None => (400, Err("name= must be 8 to 16 hexadecimal digits, in lower case")),
        },
    }
}

fn is_name(prefix: &str) -> bool {
    (MIN_DIGITS..=16).contains(&prefix.len()) && prefix.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether one of these buckets counts slots. A bucket without held slots is not stored.
fn has_slots(memory: &Memory, keys: &[BucketKey]) -> bool {
    memory.states_of(keys).1.iter().flatten().any(|state| concurrency::is_stored(state))
}

fn states(memory: &Memory, keys: &[BucketKey]) -> Value {
    let (at, states) = memory.states_of(keys);
    document(at, keys, &states)
}

fn reset(gateway: &GatewayState, memory: &Memory, keys: &[BucketKey], user: String) -> Value {
    let (at, states) = memory.remove(keys);
    gateway.events.note(EventKind::BucketsReset, "");
    log::info!(user, buckets:% = names(gateway, keys.iter()); "buckets were reset by an operator");
    document(at, keys, &states)
}

/// Returns the names of these buckets, as the access log has them.
fn names<'k>(gateway: &GatewayState, keys: impl Iterator<Item = &'k BucketKey>) -> String {
    let snapshot = gateway.snapshot.load();
    keys.map(|key| snapshot.config.hash_key.bucket(&key.0).to_string()).collect::<Vec<_>>().join(",")
}

/// Parses `amount=N&algorithms=NAME,NAME`: the amount, and one algorithm for each bucket.
fn grant_of(query: &str, keys: Vec<BucketKey>) -> Option<(Cost, Vec<(BucketKey, AlgorithmKind)>)> {
    let (amount, kinds) = query.strip_prefix("amount=")?.split_once("&algorithms=")?;
    let amount = Cost::parse(amount.as_bytes(), ExtraDecimals::Refuse)?;
    let kinds = kinds.split(',').map(AlgorithmKind::parse).collect::<Option<Vec<_>>>()?;
    (kinds.len() == keys.len()).then(|| (amount, keys.into_iter().zip(kinds).collect()))
}

fn give_back(
    gateway: &GatewayState,
    memory: &Memory,
    buckets: &[(BucketKey, AlgorithmKind)],
    amount: Cost,
    user: String,
) -> Value {
    let (at, given) = memory.give_back(buckets, amount);
    gateway.events.note(EventKind::BucketsGranted, "");
    let keys = buckets.iter().map(|(key, _)| key);
    log::info!(user, buckets:% = names(gateway, keys), amount:%; "amounts were given back by an operator");
    let numbers = |state: &Option<State>| state.as_ref().map(|state| state.to_vec());
    let bucket = |((key, _), given): (&(BucketKey, AlgorithmKind), &GivenBack)| {
        let (before, after) = (numbers(&given.before), numbers(&given.after));
        json!({"key": format!("{key:?}"), "before": before, "state": after})
    };
    json!({"now": at.now.0, "date": at.date.0, "buckets": buckets.iter().zip(&given).map(bucket).collect::<Vec<_>>()})
}

fn document(at: StoreTime, keys: &[BucketKey], states: &[Option<State>]) -> Value {
    let bucket = |(key, state): (&BucketKey, &Option<_>)| {
        let state = state.as_ref().map(|state: &State| state.to_vec());
        json!({"key": format!("{key:?}"), "state": state})
    };
    json!({"now": at.now.0, "date": at.date.0, "buckets": keys.iter().zip(states).map(bucket).collect::<Vec<_>>()})
}

/// Finds buckets by the prefix of their names, on a separate thread. `None` if another search is running.
async fn find(gateway: &Arc<GatewayState>, prefix: String) -> Option<Value> {
    static SEARCHING: Mutex<()> = Mutex::new(());
    let gateway = Arc::clone(gateway);
    let search = move || {
        let _only = SEARCHING.try_lock()?;
        let snapshot = gateway.snapshot.load_full();
        let names = &snapshot.config.hash_key;
        let memory = gateway.store.local_buckets()?;
        let is = |key: &BucketKey| names.bucket(&key.0).to_string().starts_with(&prefix);
        Some(memory.keys().flatten().filter(is).take(MAX_FOUND).collect::<Vec<_>>())
    };
    let found = tokio::task::spawn_blocking(search).await.ok()??;
    let keys: Vec<Value> = found.iter().map(|key| json!({"key": format!("{key:?}")})).collect();
    Some(json!({"buckets": keys}))
}

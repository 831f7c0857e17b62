//! Shows buckets in memory on the admin listener, and resets them.
//!
//! A bucket is named by its key in hexadecimal digits, so that no URL contains a client's value. The listener has no
//! password, so a change must be intended: only DELETE changes something, with a field that a page in a browser cannot
//! send to another site, and only under a host name that no other site can have.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, Method};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::host_check::HostKind;
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::events::EventKind;
use crate::limit::bucket_key::BucketKey;
use crate::store::memory::Memory;

/// The field that a reset requires.
pub const OPERATOR_FIELD: HeaderName = HeaderName::from_static("tollgate-operator");

/// Keys per request: as many as one request can be charged by.
const MAX_KEYS: usize = 256;
/// The most results of a search. A longer prefix finds a bucket among more.
const MAX_FOUND: usize = 16;
/// The shortest prefix of a name's 16 digits, so that a search finds few.
const MIN_DIGITS: usize = 8;

/// A status code, with a document or a line of text.
pub type Answer = (u16, Result<Value, &'static str>);

/// `/buckets/KEY,KEY` and `/buckets?name=START`. `host` is the name of this machine.
pub async fn answer(gateway: &Arc<GatewayState>, host: &str, head: &Parts) -> Answer {
    if HostKind::of(head, host) != HostKind::Address {
        return (403, Err("use an address or localhost: any other host name may be that of another site"));
    }
    let Some(memory) = gateway.store.local_buckets() else {
        return (409, Err("the buckets are in Redis: look there"));
    };
    let query = head.uri.query().unwrap_or_default();
    match (head.uri.path().strip_prefix("/buckets/"), &head.method) {
        (Some(keys), method) => {
            let keys: Option<Vec<BucketKey>> = keys.split(',').take(MAX_KEYS + 1).map(BucketKey::parse).collect();
            match keys.filter(|keys| keys.len() <= MAX_KEYS) {
                None => (400, Err("a bucket's key has 32 hexadecimal digits; 256 keys at most, with commas")),
                Some(keys) if *method != Method::DELETE => (200, Ok(states(memory, &keys))),
                Some(_) if head.headers.get(OPERATOR_FIELD).is_none_or(|value| value != "reset") => {
                    (403, Err("DELETE needs the field `Tollgate-Operator: reset`"))
                }
                Some(keys) => (200, Ok(reset(gateway, memory, &keys))),
            }
        }
        (None, &Method::DELETE) => (405, Err("only buckets that are named can be forgotten")),
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

fn states(memory: &Memory, keys: &[BucketKey]) -> Value {
    let (now, states) = memory.states_of(keys);
    document(now.0, keys, &states)
}

fn reset(gateway: &GatewayState, memory: &Memory, keys: &[BucketKey]) -> Value {
    let (now, states) = memory.remove(keys);
    gateway.events.note(EventKind::BucketsReset, "");
    log::info!(buckets = keys.len(); "buckets were reset by an operator");
    document(now.0, keys, &states)
}

fn document(now: u64, keys: &[BucketKey], states: &[Option<crate::limit::algorithm::State>]) -> Value {
    let bucket = |(key, state): (&BucketKey, &Option<_>)| {
        let state = state.as_ref().map(|state: &crate::limit::algorithm::State| state.to_vec());
        json!({"key": format!("{key:?}"), "state": state})
    };
    json!({"now": now, "buckets": keys.iter().zip(states).map(bucket).collect::<Vec<_>>()})
}

/// Computes every bucket's name, on a thread of its own. Returns `None` if another search is running.
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

//! Tells on the admin listener what buckets in memory hold, and forgets them when told to.
//!
//! A bucket is named by its key in hexadecimal digits, so no value of a client stands in a URL. The listener asks for no
//! password, so what changes something must be meant: only DELETE does, with a field that no page of a web browser can
//! send to another site, and only to a name that no other site can take.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, Method};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::host_check::HostKind;
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::events::Happened;
use crate::limit::key::BucketKey;
use crate::store::memory::Memory;

/// The field without which nothing is forgotten.
pub const PERMIT: HeaderName = HeaderName::from_static("tollgate-operator");

/// At once: as many as a request could be charged by.
const MOST: usize = 256;
/// As many as are told of a search: who looks for one bucket names it more closely.
const FOUND: usize = 16;
/// Of a name's sixteen digits, so that a search finds few.
const SHORTEST: usize = 8;

/// A code, and a document or, for what is none, a line of text.
pub type Answered = (u16, Result<Value, &'static str>);

/// `/buckets/KEY,KEY` and `/buckets?name=START`. `host` is the name of this machine.
pub async fn answer(gateway: &Arc<GatewayState>, host: &str, head: &Parts) -> Answered {
    if HostKind::of(head, host) != HostKind::Address {
        return (403, Err("ask by an address, or by localhost: another name may lead here from a foreign page"));
    }
    let Some(memory) = gateway.store.local_buckets() else {
        return (409, Err("the buckets are in Redis: ask that"));
    };
    let query = head.uri.query().unwrap_or_default();
    match (head.uri.path().strip_prefix("/buckets/"), &head.method) {
        (Some(keys), method) => {
            let keys: Option<Vec<BucketKey>> = keys.split(',').take(MOST + 1).map(BucketKey::parse).collect();
            match keys.filter(|keys| keys.len() <= MOST) {
                None => (400, Err("a bucket's key has 32 hexadecimal digits; 256 keys at most, with commas")),
                Some(keys) if *method != Method::DELETE => (200, Ok(states(memory, &keys))),
                Some(_) if head.headers.get(PERMIT).is_none_or(|permit| permit != "reset") => {
                    (403, Err("DELETE needs the field `Tollgate-Operator: reset`"))
                }
                Some(keys) => (200, Ok(forget(gateway, memory, &keys))),
            }
        }
        (None, &Method::DELETE) => (405, Err("only buckets that are named can be forgotten")),
        (None, _) => match query.strip_prefix("name=").filter(|begin| is_name(begin)) {
            Some(begin) => match find(gateway, begin.to_owned()).await {
                Some(found) => (200, Ok(found)),
                None => (503, Err("a bucket is being looked for already: ask again")),
            },
            None => (400, Err("name= must be 8 to 16 hexadecimal digits, in lower case")),
        },
    }
}

fn is_name(begin: &str) -> bool {
    (SHORTEST..=16).contains(&begin.len()) && begin.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn states(memory: &Memory, keys: &[BucketKey]) -> Value {
    let (now, states) = memory.states_of(keys);
    tell(now.0, keys, &states)
}

fn forget(gateway: &GatewayState, memory: &Memory, keys: &[BucketKey]) -> Value {
    let (now, states) = memory.remove(keys);
    gateway.events.note(Happened::BucketsReset, "");
    log::info!(buckets = keys.len(); "buckets were made full by an operator");
    tell(now.0, keys, &states)
}

fn tell(now: u64, keys: &[BucketKey], states: &[Option<crate::limit::algorithm::State>]) -> Value {
    let bucket = |(key, state): (&BucketKey, &Option<_>)| {
        let state = state.as_ref().map(|state: &crate::limit::algorithm::State| state.to_vec());
        json!({"key": format!("{key:?}"), "state": state})
    };
    json!({"now": now, "buckets": keys.iter().zip(states).map(bucket).collect::<Vec<_>>()})
}

/// Every bucket's name is made anew: on a thread of its own, and one search at a time; none when there is one already.
async fn find(gateway: &Arc<GatewayState>, begin: String) -> Option<Value> {
    static SEARCHING: Mutex<()> = Mutex::new(());
    let gateway = Arc::clone(gateway);
    let search = move || {
        let _only = SEARCHING.try_lock()?;
        let snapshot = gateway.snapshot.load_full();
        let names = &snapshot.config.hash_key;
        let memory = gateway.store.local_buckets()?;
        let is = |key: &BucketKey| names.bucket(&key.0).to_string().starts_with(&begin);
        Some(memory.keys().flatten().filter(is).take(FOUND).collect::<Vec<_>>())
    };
    let found = tokio::task::spawn_blocking(search).await.ok()??;
    let keys: Vec<Value> = found.iter().map(|key| json!({"key": format!("{key:?}")})).collect();
    Some(json!({"buckets": keys}))
}

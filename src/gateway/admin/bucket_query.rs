//! Runs `tollgate bucket` on the admin listener, for a command that has no configuration file.
//!
//! The gateway uses its own rules, key of pseudonyms and login to the store. The query is in a header field, so
//! that no URL contains a client's value.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderName;
use http::request::Parts;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ban_listing::BanListing;
use super::ban_lookup;
use super::bucket_levels::Levels;
use super::bucket_lookup::{self, BucketSelection, Limit, LookupError};
use super::bucket_report::{BucketReport, Change, LoggedRaise, bucket_name};
use super::known_subjects::{KnownSubject, KnownSubjects};
use super::raise_request::{RaiseArguments, RaiseRequest};
use super::subject_listing;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::events::EventKind;
use base::time::{Micros, Timestamp};
use ledger::algorithm::{AlgorithmKind, State, ban};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::money::AmountFormat;
use ledger::store_time::StoreTime;
use rules::partial_evaluation::Knowledge;
use stores::memory::Memory;
use stores::{EventSink, GivenBack, Inspector};

/// The header field that carries a [`BucketQuery`] to the admin listener.
pub(crate) const QUERY_FIELD: HeaderName = HeaderName::from_static("tollgate-bucket");
/// The header field with the user who runs a command, as the command reports. For changes without a [`BucketQuery`].
pub(crate) const USER_FIELD: HeaderName = HeaderName::from_static("tollgate-user");
/// The longest value of the field [`QUERY_FIELD`], in bytes.
const LONGEST: usize = 16 << 10;
/// The longest name of a user, in characters.
const LONGEST_USER: usize = 80;
/// The maximum number of buckets that a search by name returns. More digits of the name find fewer buckets.
const MOST_FOUND: usize = 16;

/// An operator's query about buckets, as `tollgate bucket` sends it to the admin listener.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BucketQuery {
    pub act: Act,
    pub rule: Option<String>,
    /// The values of the rule's limit keys, such as `jwt:sub=acme`.
    pub keys: Vec<String>,
    /// The beginning of the bucket's name in the access log. `None` if the bucket is found by `rule` and `keys`.
    pub hash: Option<String>,
    pub issuer: Option<String>,
    /// The user who runs the command, as the command reports. Used in the log.
    pub user: String,
    /// The name that the answer uses for the gateway.
    pub gateway: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Act {
    Show,
    Reset,
    /// Gives this amount back to the bucket. The amount is a text, as it was written on the command line.
    Grant(String),
    /// Bans the bucket for this time from now on, in microseconds.
    Ban(u64),
    /// Raises the limit of one bucket for a while.
    Raise(RaiseArguments),
    /// Lists the banned buckets of a limit.
    List,
    /// Lists the buckets of a limit whose subjects are known, if they have used at least this share in percent.
    Subjects(Option<u8>),
}

impl BucketQuery {
    /// Encodes the query as the value of the field [`QUERY_FIELD`].
    pub(crate) fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Returns the name of the user, cut for the log.
    fn shown_user(&self) -> String {
        cut(&self.user)
    }

    fn changes(&self) -> bool {
        !matches!(self.act, Act::Show | Act::List | Act::Subjects(_))
    }

    fn decode(field: &[u8]) -> Option<BucketQuery> {
        let json = URL_SAFE_NO_PAD.decode(field.get(..LONGEST.min(field.len()))?).ok()?;
        serde_json::from_slice(&json).ok()
    }
}

/// Returns whether a request has a query that lists clients, whose values may be in the clear.
pub(super) fn lists_clients(head: &Parts) -> bool {
    let query = head.headers.get(QUERY_FIELD).and_then(|field| BucketQuery::decode(field.as_bytes()));
    query.is_some_and(|query| matches!(query.act, Act::List | Act::Subjects(_)))
}

/// Returns the user that a request reports in its field [`USER_FIELD`], cut for the log. `None` without a name.
pub(super) fn reported_user(head: &Parts) -> Option<String> {
    let name = head.headers.get(USER_FIELD)?.to_str().ok()?;
    (!name.is_empty()).then(|| cut(name))
}

fn cut(user: &str) -> String {
    user.chars().take(LONGEST_USER).collect()
}

/// Decodes the query in the header field. `permits` returns whether the request permits the change `reset`, `grant`, `ban` or
/// `raise`.
///
/// # Errors
/// If the field has no valid query, or the request does not permit the change. The error has a status code and a text.
pub(crate) fn query(field: &[u8], permits: impl Fn(&str) -> bool) -> Result<BucketQuery, (u16, &'static str)> {
    let query =
        BucketQuery::decode(field).ok_or((400, "the field `Tollgate-Bucket` must have a query of this version"))?;
    match &query.act {
        Act::Reset if !permits("reset") => Err((403, "a reset needs DELETE with `Tollgate-Operator: reset`")),
        Act::Grant(_) if !permits("grant") => Err((403, "a grant needs PATCH with `Tollgate-Operator: grant`")),
        Act::Ban(_) if !permits("ban") => Err((403, "a ban needs PATCH with `Tollgate-Operator: ban`")),
        Act::Raise(_) if !permits("raise") => Err((403, "a raise needs PATCH with `Tollgate-Operator: raise`")),
        Act::Show | Act::Reset | Act::Grant(_) | Act::Ban(_) | Act::Raise(_) | Act::List | Act::Subjects(_) => {
            Ok(query)
        }
    }
}

/// Answers a query. Returns the status code, and the JSON document of the answer. Only one query is answered at a time, and one change
/// beside it: who may only read keeps out no change.
///
/// # Errors
/// When another query, or another change, is being answered.
pub(crate) async fn answer(gateway: &Arc<GatewayState>, query: BucketQuery) -> (u16, Result<Value, &'static str>) {
    static READING: Mutex<()> = Mutex::new(());
    static CHANGING: Mutex<()> = Mutex::new(());
    let gateway = Arc::clone(gateway);
    let answered = tokio::task::spawn_blocking(move || {
        let only = if query.changes() { &CHANGING } else { &READING };
        let _only = only.try_lock()?;
        Some(Buckets::new(&gateway, &gateway.snapshot.load_full()).answer(&query))
    });
    match answered.await.ok().flatten() {
        None => (503, Err("another query is running: try again")),
        Some(Ok(answer)) => (200, Ok(answer)),
        Some(Err(LookupError { what, hint })) => (422, Ok(json!({"error": what, "hint": hint}))),
    }
}

/// Returns how the amounts of these buckets are displayed.
fn format_of(chosen: &[BucketSelection]) -> AmountFormat {
    let limit = chosen.iter().find_map(|chosen| chosen.limit.as_ref());
    limit.map(|limit| limit.unit.format()).unwrap_or_default()
}

type States = (StoreTime, Vec<Option<State>>);
type GiveBackResult = (StoreTime, Vec<GivenBack>);

/// The buckets of this gateway, in memory or in a shared store.
pub(super) struct Buckets<'g> {
    pub gateway: &'g GatewayState,
    pub snapshot: &'g Snapshot,
    /// The buckets in memory; `None` for those in a shared store.
    pub memory: Option<&'g Memory>,
}

impl<'g> Buckets<'g> {
    fn new(gateway: &'g GatewayState, snapshot: &'g Snapshot) -> Buckets<'g> {
        Buckets { gateway, snapshot, memory: gateway.store.local_buckets().map(AsRef::as_ref) }
    }

    fn answer(&self, query: &BucketQuery) -> Result<Value, LookupError> {
        let config = &self.snapshot.config;
        if query.act == Act::List {
            return self.list_bans(query);
        }
        if let Act::Subjects(near) = query.act {
            return subject_listing::list(self, query, near.unwrap_or(0));
        }
        if let Act::Raise(arguments) = &query.act {
            return self.raise(query, arguments);
        }
        let chosen = self.choose(query)?;
        let chosen = if query.act == Act::Show { chosen } else { bucket_lookup::changeable(chosen)? };
        // Limits of one meter share a bucket, so each key is kept once.
        let mut kinds: BTreeMap<BucketKey, Option<AlgorithmKind>> = BTreeMap::new();
        for chosen in &chosen {
            kinds.insert(chosen.key, chosen.limit.as_ref().map(|limit| limit.algorithm.kind()));
        }
        let keys: Vec<BucketKey> = kinds.keys().copied().collect();
        let from = self.place(query);
        let levels = |(at, states)| Levels::new(at, from.clone(), &keys, states);
        let (change, before, after) = match &query.act {
            Act::Show | Act::List | Act::Raise(_) | Act::Subjects(_) => {
                (Change::None, levels(self.states(&keys)?), None)
            }
            Act::Reset => {
                bucket_lookup::check_stored(&levels(self.states(&keys)?), &keys)?;
                let before = levels(self.reset(&kinds)?);
                (Change::Reset, before, Some(levels(self.states(&keys)?)))
            }
            Act::Grant(amount) => {
                bucket_lookup::not_at_home(&chosen)?;
                let amount = bucket_lookup::amount(amount, &chosen)?;
                let kinds: Vec<_> = kinds.into_iter().filter_map(|(key, kind)| Some((key, kind?))).collect();
                let (at, given) = self.give_back(&kinds, amount)?;
                let (before, after) = given.into_iter().map(|given| (given.before, given.after)).unzip();
                (Change::GiveBack(amount), levels((at, before)), Some(levels((at, after))))
            }
            Act::Ban(length) => {
                let length = Some(Micros(*length)).filter(|length| *length <= ban::LONGEST);
                let length = length.ok_or("a ban lasts 366d at most")?;
                let (at, set) = self.set_ban(&chosen, &keys, length)?;
                let (before, after) = set.into_iter().map(|set| (set.before, set.after)).unzip();
                (Change::Ban(length), levels((at, before)), Some(levels((at, after))))
            }
        };
        let names = keys.iter().map(|key| bucket_name(&config.hash_key, key)).collect::<Vec<_>>().join(",");
        let user = query.shown_user();
        match change {
            Change::None | Change::Raise(_) => {}
            Change::Reset => {
                self.gateway.events.note(EventKind::BucketsReset, "");
                log::info!(user, buckets = names; "buckets were reset by an operator");
            }
            Change::GiveBack(amount) => {
                self.gateway.events.note(EventKind::BucketsGranted, "");
                let amount = format_of(&chosen).of(amount);
                log::info!(user, buckets = names, amount:%; "amounts were given back by an operator");
            }
            Change::Ban(length) => {
                self.gateway.events.note(EventKind::BucketsBanned, "");
                let seconds = length.ceil_seconds();
                log::info!(user, buckets = names, seconds; "buckets were banned by an operator");
            }
        }
        let report = BucketReport { config, change, before, after };
        Ok(json!({"lines": report.lines(&chosen), "document": report.document(&chosen)}))
    }

    fn choose(&self, query: &BucketQuery) -> Result<Vec<BucketSelection>, LookupError> {
        let config = &self.snapshot.config;
        let known = Knowledge {
            client: None,
            issuer: query.issuer.as_deref(),
            at: self.gateway.clock.wall(),
            names: &config.hash_key,
            is_held: false,
        };
        let bans = matches!(query.act, Act::Ban(_));
        match (&query.rule, &query.hash) {
            (Some(rule), None) if bans => {
                ban_lookup::with_ban(rule, bucket_lookup::by_values(config, rule, &query.keys, known)?)
            }
            (Some(rule), None) => bucket_lookup::by_values(config, rule, &query.keys, known),
            (rule, Some(begin)) => match (&self.find(begin)?[..], rule) {
                ([key], Some(rule)) if bans => ban_lookup::bucket_of(config, rule, *key, begin),
                ([key], rule) => Ok(vec![bucket_lookup::by_key(config, rule.as_deref(), *key)?]),
                ([], _) => Err(LookupError {
                    what: format!("no bucket is called {begin}"),
                    hint: Some("a full bucket is not stored; and names depend on `hash_key` in the file".to_owned()),
                }),
                (several, _) => {
                    let names: Vec<String> = several.iter().map(|key| bucket_name(&config.hash_key, key)).collect();
                    Err(format!("{begin} begins the names of {} buckets: {}", names.len(), names.join(", ")).into())
                }
            },
            (None, None) => Err("a RULE or --hash must be given".into()),
        }
    }

    /// Raises the limit of the bucket that the query names.
    fn raise(&self, query: &BucketQuery, arguments: &RaiseArguments) -> Result<Value, LookupError> {
        let name = query.rule.as_deref().ok_or("a RULE must be given")?;
        let (request, chosen) = RaiseRequest::new(arguments, name, self.choose(query)?)?;
        let (at, changed) = match self.memory {
            Some(memory) => request.raise_in_memory(memory)?,
            None => self.inspect(async |look| request.raise_in(look).await)?.map(timed)?,
        };
        let (before, after) = changed.into_iter().map(|states| (states.before, states.after)).unzip();
        let levels = |states| Levels::new(at, self.place(query), &[request.key], states);
        let config = &self.snapshot.config;
        let report = BucketReport {
            config,
            change: Change::Raise(request.id),
            before: levels(before),
            after: Some(levels(after)),
        };
        if let Some(LoggedRaise { limit, bucket, amount, until, before, after }) = LoggedRaise::of(&report, &chosen) {
            self.gateway.events.note(EventKind::BucketRaised, "");
            let (user, id, reason) =
                (query.shown_user(), &*arguments.id, arguments.reason.as_deref().unwrap_or_default());
            log::info!(
                user, bucket, policy:% = limit.policy, limit:% = limit.name, id, amount, until, before, after, reason;
                "bucket was raised by an operator"
            );
        }
        Ok(json!({"lines": report.lines(&chosen), "document": report.document(&chosen)}))
    }

    /// Lists the bans of the limit that the query names.
    fn list_bans(&self, query: &BucketQuery) -> Result<Value, LookupError> {
        let config = &self.snapshot.config;
        let limit = ban_lookup::limit_with_ban(config, query.rule.as_deref().ok_or("a RULE must be given")?)?;
        let algorithm = limit.variants.first().ok_or("the limit has no numbers")?;
        let is = |key: &BucketKey| limit.has_bucket(key);
        let list = match self.memory {
            Some(memory) => memory.list_bans(algorithm, &is),
            None => self.inspect(async |look| look.list_bans(algorithm, &is, &mut |_| {}).await)?,
        };
        let known = KnownSubjects::of_meters(self, limit.meter.as_slice())?;
        let subject = |key: &BucketKey| known.by_bucket.get(key).map(KnownSubject::text);
        let listing = BanListing { config, limit, list, from: self.place(query), subject: &subject };
        Ok(json!({"lines": listing.lines(), "document": listing.document()}))
    }

    /// Returns the name of the place where the buckets are.
    pub(super) fn place(&self, query: &BucketQuery) -> String {
        match self.memory {
            Some(_) => query.gateway.clone(),
            None => self.snapshot.config.store.endpoint().map_or_else(String::new, |endpoint| endpoint.to_string()),
        }
    }

    fn find(&self, begin: &str) -> Result<Vec<BucketKey>, LookupError> {
        let names = &self.snapshot.config.hash_key;
        let is = |key: &BucketKey| names.bucket(&key.0).to_string().starts_with(begin);
        match self.memory {
            Some(memory) => Ok(memory.keys().flatten().filter(is).take(MOST_FOUND).collect()),
            None => self.inspect(async |look| look.find(&is, &mut |_| {}).await),
        }
    }

    /// Reads the states of these buckets.
    ///
    /// # Errors
    /// When the store does not answer.
    pub(super) fn states(&self, keys: &[BucketKey]) -> Result<States, LookupError> {
        match self.memory {
            Some(memory) => Ok(memory.states_of(keys)),
            None => self.inspect(async |look| look.states(keys).await).map(timed),
        }
    }

    fn reset(&self, kinds: &BTreeMap<BucketKey, Option<AlgorithmKind>>) -> Result<States, LookupError> {
        let buckets: Vec<_> = kinds.iter().map(|(key, kind)| (*key, *kind)).collect();
        match self.memory {
            Some(memory) => Ok(memory.remove(&kinds.keys().copied().collect::<Vec<_>>())),
            None => self.inspect(async |look| look.reset(&buckets).await).map(timed),
        }
    }

    fn give_back(&self, buckets: &[(BucketKey, AlgorithmKind)], amount: Cost) -> Result<GiveBackResult, LookupError> {
        match self.memory {
            Some(memory) => Ok(memory.give_back(buckets, amount)),
            None => self.inspect(async |look| look.give_back(buckets, amount).await).map(timed),
        }
    }

    /// Begins bans of these buckets. Several of the selected limits can have one bucket; `keys` has each once.
    fn set_ban(
        &self,
        chosen: &[BucketSelection],
        keys: &[BucketKey],
        length: Micros,
    ) -> Result<GiveBackResult, LookupError> {
        let limit = |key: &BucketKey| chosen.iter().find(|chosen| chosen.key == *key)?.limit.as_ref();
        let limits: Vec<_> = keys.iter().filter_map(|key| Some((*key, limit(key)?))).collect();
        match self.memory {
            Some(memory) => {
                let ban = |(key, limit): &(BucketKey, &Limit)| {
                    let algorithm = limit.algorithm;
                    memory.change(key, limit.tag, |state, time| algorithm.set_ban(state, length, time.of(&algorithm)))
                };
                let set: Vec<_> = limits.iter().map(ban).collect();
                let at = set.last().ok_or("no bucket is given")?.0;
                Ok((at, set.into_iter().map(|(_, set)| set).collect()))
            }
            None => {
                let buckets: Vec<_> = limits.iter().map(|(key, limit)| (*key, limit.algorithm)).collect();
                self.inspect(async |look| look.set_ban(&buckets, length).await).map(timed)
            }
        }
    }

    /// Runs `work` on a new connection to the store, with the gateway's login.
    ///
    /// # Errors
    /// When the store does not answer, or `work` fails.
    pub(super) fn inspect<T>(
        &self,
        work: impl AsyncFnOnce(&mut Inspector) -> Result<T, stores::Fault>,
    ) -> Result<T, LookupError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let health = Arc::clone(&self.gateway.store_health);
        let notices = EventSink::new(move |event| health.record(event));
        let done = runtime.block_on(async {
            let mut look = self.snapshot.config.store.inspect_reporting(&notices).await?;
            work(&mut look).await
        });
        done.map_err(|stores::Fault { error, detail, .. }| format!("the store: {}: {detail}", error.name()).into())
    }
}

/// The store has only one clock, so its time is also the date for calendars.
fn timed<T>((now, shown): (Timestamp, T)) -> (StoreTime, T) {
    (now.into(), shown)
}

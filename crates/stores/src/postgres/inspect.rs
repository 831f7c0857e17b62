//! Reads, finds and removes buckets in PostgreSQL for an operator, without a gateway.
//!
//! A gateway that has cached a bucket as empty notices a change after at most a second.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::batch::{pack, unpack};
use super::connect::Checks;
use super::errors::unexpected_reply;
use super::gateway_heartbeat;
use super::primary_search::connect_to_primary;
use super::settings::Settings;
use super::single_statement::Parameter;
use super::transaction::{CLOCK, begin, insert, lock, moment, stored};
use super::work::StoredBucket;
use crate::ban_list::BanList;
use crate::bucket_change::BucketChange;
use crate::error::{Fault, StoreError};
use crate::events::EventSink;
use crate::remote::login::CurrentLogin;
use crate::reply::GivenBack;
use base::time::{Micros, Timestamp};
use ledger::algorithm::{Algorithm, AlgorithmKind, Entry, State};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;

/// The longest time that one statement may take. An operator can wait longer than a request.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of rows that are read at once.
const BATCH_ROWS: i64 = 10_000;

/// A connection to PostgreSQL, for an operator who reads, finds and removes buckets.
pub struct Inspector {
    client: Client,
    settings: Settings,
}

impl std::fmt::Debug for Inspector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inspector({})", self.settings.table.as_str())
    }
}

impl Inspector {
    /// Connects to the database for an operator. Must be called on a tokio runtime. The notices of the server are sent to
    /// `events`.
    ///
    /// # Errors
    ///
    /// When no server with the tables can be reached, or the server refuses the user.
    pub async fn open(settings: &Settings, events: &EventSink) -> Result<Inspector, Fault> {
        let login = CurrentLogin::new(settings.login.clone());
        let ready = connect_to_primary(settings, &login, Checks::Schema, events).await?;
        tokio::spawn(ready.driver);
        // `timeout` bounds the wait for locks. An operator can wait for as long as a statement may take.
        let settings = Settings { timeout: Micros::from(STATEMENT_TIMEOUT), ..settings.clone() };
        Ok(Inspector { client: ready.client, settings })
    }

    /// Reads the states of these buckets. Returns the time at which they were read, and the states in the order of the
    /// keys. `None` means that the bucket is full.
    ///
    /// # Errors
    ///
    /// When the database gives no answer, or refuses a statement.
    pub async fn states(&mut self, keys: &[BucketKey]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        let text = format!("SELECT key, state FROM {} WHERE key = ANY($1)", self.settings.table.quoted());
        self.read(keys, &text).await
    }

    /// Removes these buckets, which makes them full. Returns the time and the earlier states, as [`Inspector::states`]
    /// does.
    ///
    /// # Errors
    ///
    /// When the database gives no answer, or refuses a statement.
    pub async fn remove(&mut self, keys: &[BucketKey]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        let text = format!("DELETE FROM {} WHERE key = ANY($1) RETURNING key, state", self.settings.table.quoted());
        self.read(keys, &text).await
    }

    /// Gives back up to `amount` of what is spent in each of these buckets. Returns the time, and the states before and
    /// after the change.
    ///
    /// # Errors
    ///
    /// When the database gives no answer, or refuses a statement.
    pub async fn give_back(
        &mut self,
        buckets: &[(BucketKey, AlgorithmKind)],
        amount: Cost,
    ) -> Result<(Timestamp, Vec<GivenBack>), Fault> {
        let keys: Vec<BucketKey> = buckets.iter().map(|(key, _)| *key).collect();
        let begin = begin(&self.settings);
        patiently(async { Ok(self.client.batch_execute(&begin).await?) }).await?;
        let (now, before) = self.read(&keys, &lock(&self.settings.table)).await?;
        let given = |((_, kind), before): (&(BucketKey, AlgorithmKind), Option<State>)| {
            let after =
                before.as_ref().and_then(|state| kind.give_back_at(state, amount, now).or_else(|| Some(state.clone())));
            GivenBack { before, after }
        };
        let given: Vec<GivenBack> = buckets.iter().zip(before).map(given).collect();
        let text = format!("UPDATE {} SET state = $2 WHERE key = $1", self.settings.table.quoted());
        for (key, GivenBack { before, after }) in keys.iter().zip(&given) {
            let (Some(state), false) = (after, before == after) else { continue };
            let parameters: [Parameter<'_>; 2] = [(&&key.0[..], Type::BYTEA), (&pack(state), Type::BYTEA)];
            self.rows(&text, &parameters).await?;
        }
        patiently(async { Ok(self.client.batch_execute("COMMIT").await?) }).await?;
        Ok((now, given))
    }

    /// Changes each of these buckets. Returns the time, and the states before and after.
    ///
    /// # Errors
    ///
    /// When the database gives no answer, or refuses a statement.
    pub async fn change(
        &mut self,
        keys: &[BucketKey],
        change: &BucketChange<'_>,
    ) -> Result<(Timestamp, Vec<GivenBack>), Fault> {
        let packed: Vec<&[u8]> = keys.iter().map(|key| &key.0[..]).collect();
        let begin = begin(&self.settings);
        patiently(async { Ok(self.client.batch_execute(&begin).await?) }).await?;
        self.rows(&insert(&self.settings.table), &[(&packed, Type::BYTEA_ARRAY)]).await?;
        let (now, before) = self.read(keys, &lock(&self.settings.table)).await?;
        let mut changed = Vec::with_capacity(keys.len());
        let text = format!("UPDATE {} SET state = $2, until = $3 WHERE key = $1", self.settings.table.quoted());
        for (key, before) in keys.iter().zip(before) {
            let Some(Entry { state, kept_until }) = change(key, before.as_deref(), now) else {
                changed.push(GivenBack { before: before.clone(), after: before });
                continue;
            };
            let until = i64::try_from(kept_until.0).unwrap_or(i64::MAX);
            let parameters: [Parameter<'_>; 3] =
                [(&&key.0[..], Type::BYTEA), (&pack(&state), Type::BYTEA), (&until, Type::INT8)];
            self.rows(&text, &parameters).await?;
            changed.push(GivenBack { before, after: Some(state) });
        }
        patiently(async { Ok(self.client.batch_execute("COMMIT").await?) }).await?;
        Ok((now, changed))
    }

    /// Returns how many live gateways announce no format of states, or one older than `format`.
    ///
    /// # Errors
    ///
    /// When the database gives no answer, or refuses a statement.
    pub async fn count_older_gateways(&mut self, format: u8) -> Result<usize, Fault> {
        let rows = self
            .rows(&gateway_heartbeat::names(&self.settings.table), &[(&gateway_heartbeat::ttl(), Type::INT8)])
            .await?;
        gateway_heartbeat::count_older(&rows, format)
    }

    /// Returns the keys of all buckets for which `is` returns true. Calls `progress` with the number of buckets visited
    /// so far.
    ///
    /// # Errors
    ///
    /// When the database gives no answer, or refuses a statement.
    pub async fn find(
        &mut self,
        is: &dyn Fn(&BucketKey) -> bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<BucketKey>, Fault> {
        let (mut found, mut seen, mut after) = (Vec::new(), 0, Vec::new());
        loop {
            let page = self.page(&after).await?;
            let Some(last) = page.last() else { return Ok(found) };
            after = last.key.0.to_vec();
            let stored = page.iter().filter(|bucket| bucket.packed.is_some()).map(|bucket| bucket.key);
            found.extend(stored.filter(is));
            seen += page.len() as u64;
            progress(seen);
        }
    }

    /// Lists the running bans of the limit whose buckets have the keys for which `is` returns true. Calls `progress` with the
    /// number of buckets visited so far.
    ///
    /// # Errors
    ///
    /// When the database gives no answer, or refuses a statement.
    pub async fn list_bans(
        &mut self,
        limit: &Algorithm,
        is: &dyn Fn(&BucketKey) -> bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BanList, Fault> {
        let mut list = BanList::default();
        let mut after = Vec::new();
        loop {
            let page = self.page(&after).await?;
            // The time is read after the states, so that no state is later than the time.
            list.at = moment(&self.rows(CLOCK, &[]).await?)?.into();
            let Some(last) = page.last() else { return Ok(list) };
            after = last.key.0.to_vec();
            list.visited += page.len() as u64;
            for StoredBucket { key, packed } in page.iter().filter(|bucket| is(&bucket.key)) {
                let state = packed.as_ref().map(|packed| unpack(packed).unwrap_or_default());
                list.add(*key, limit, state.as_deref(), list.at);
            }
            progress(list.visited);
        }
    }

    /// Reads the buckets whose keys follow `after`, up to [`BATCH_ROWS`], in the order of their keys.
    async fn page(&self, after: &[u8]) -> Result<Vec<StoredBucket>, Fault> {
        let table = self.settings.table.quoted();
        let text = format!("SELECT key, state FROM {table} WHERE key > $1 ORDER BY key LIMIT $2");
        let parameters: [Parameter<'_>; 2] = [(&after, Type::BYTEA), (&BATCH_ROWS, Type::INT8)];
        self.rows(&text, &parameters).await?.iter().map(stored).collect()
    }

    /// Reads the states of buckets, and then the clock, so that no state is later than the returned time.
    async fn read(&self, keys: &[BucketKey], text: &str) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        let packed: Vec<&[u8]> = keys.iter().map(|key| &key.0[..]).collect();
        let rows = self.rows(text, &[(&packed, Type::BYTEA_ARRAY)]).await?;
        let now = moment(&self.rows(CLOCK, &[]).await?)?;
        let buckets = rows.iter().map(stored).collect::<Result<Vec<_>, Fault>>()?;
        let state = |key: &BucketKey| {
            let bucket = buckets.iter().find(|bucket| bucket.key == *key)?;
            // An invalid state counts as an empty bucket.
            bucket.packed.as_ref().map(|packed| unpack(packed).unwrap_or_default())
        };
        Ok((now, keys.iter().map(state).collect()))
    }

    async fn rows(&self, text: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Fault> {
        patiently(async { Ok(self.client.query_typed(text, parameters).await?) }).await
    }
}

async fn patiently<T>(work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let overdue = |_| Fault::new(StoreError::Timeout, format!("no answer within {STATEMENT_TIMEOUT:?}"));
    tokio::time::timeout(STATEMENT_TIMEOUT, work).await.map_err(overdue)?
}

/// Runs the statements that create or update the tables, as the user of these settings. The notices of the server are
/// sent to `events`.
///
/// # Errors
///
/// When no server can be reached, or the server refuses a statement.
pub(crate) async fn run_statements(settings: &Settings, statements: &str, events: &EventSink) -> Result<(), Fault> {
    let login = CurrentLogin::new(settings.login.clone());
    let ready = connect_to_primary(settings, &login, Checks::Login, events).await?;
    tokio::spawn(ready.driver);
    let ran = tokio::time::timeout(Duration::from_secs(60), ready.client.batch_execute(statements)).await;
    ran.map_err(|_| unexpected_reply("the statements of the schema"))??;
    Ok(())
}

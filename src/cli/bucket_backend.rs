//! Reads buckets where they are stored: in a shared store, or in the memory of a running gateway.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::admin_client;
use super::admin_client::{AdminAddress, Method};
use super::failure::{Failure, with_hint};
use super::output;
use crate::gateway::bucket_levels::Levels;
use crate::gateway::bucket_lookup::LookupError;
use crate::gateway::raise_request::RaiseRequest;
use base::endpoint_address::EndpointAddress;
use base::pseudonym::PseudonymKey;
use base::time::{Micros, Timestamp};
use config::{AdminWrite, Config};
use ledger::algorithm::{Algorithm, AlgorithmKind, State};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::store_time::StoreTime;
use stores::{BanList, GivenBack, Inspector};

/// A shared store, or a gateway's memory.
#[derive(Debug)]
pub(super) enum Backend {
    Shared(Box<stores::Settings>),
    /// The memory of a gateway, read through the admin listener with this address.
    Gateway(AdminAddress),
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Shared(settings) => settings.endpoint().iter().try_for_each(|endpoint| endpoint.fmt(f)),
            Backend::Gateway(address) => write!(f, "the gateway at {address}"),
        }
    }
}

/// What is done with buckets. Only changes need the admin listener that `admin.write` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Change,
}

impl Backend {
    /// Finds the place where the buckets are stored. `admin` overrides the admin listener in the file.
    ///
    /// # Errors
    ///
    /// When the buckets are in memory and no admin listener with a known port is given.
    pub(super) fn of(
        config: &Config,
        file: &Path,
        admin: Option<EndpointAddress>,
        access: Access,
    ) -> Result<Backend, Failure> {
        if config.store.is_shared() {
            return Ok(Backend::Shared(Box::new(config.store.clone())));
        }
        let socket = config.admin_socket().map(|path| EndpointAddress::Unix(Arc::clone(path)));
        let token = match &config.admin_write {
            Some(AdminWrite::Tokens(tokens)) => tokens.first().map(|one| one.token.clone()),
            Some(AdminWrite::Unix(_)) | None => None,
        };
        let address = config.admin.map(EndpointAddress::Inet);
        let ours = match access {
            Access::Read => address.or(socket),
            Access::Change => socket.or(address),
        };
        match admin.or(ours) {
            Some(address) if address.inet().is_none_or(|address| address.port() != 0) => {
                Ok(Backend::Gateway(AdminAddress::new(address, token)))
            }
            Some(_) => Err(with_hint(
                format!("{}: admin: has port 0", file.display()),
                "name the address that the gateway announced with --admin",
            )),
            None if config.remarks.is_unknown("admin") => Err(with_hint(
                format!("{}: admin: not known here, and buckets are in the memory of the gateway", file.display()),
                "name the address that the gateway announced with --admin",
            )),
            None => Err(format!(
                "{}: admin: missing; buckets are in the memory of the gateway, which can be asked by its admin \
                 listener only",
                file.display()
            )
            .into()),
        }
    }

    /// Reads the states of the buckets with these keys.
    ///
    /// # Errors
    /// When the store or the gateway does not answer.
    pub(super) fn read(&self, keys: &[BucketKey]) -> Result<Levels, Failure> {
        let (at, states) = match self {
            Backend::Shared(settings) => timed(self.inspect(settings, async |look| look.states(keys).await)?),
            Backend::Gateway(address) => found(&admin_client::ask(address, Method::Get, &path(keys))?)?,
        };
        Ok(self.levels(at, keys, states))
    }

    /// Resets these buckets to full. The kind is `None` for a bucket whose limit is not known. Returns their states before the reset.
    ///
    /// # Errors
    /// When the store or the gateway does not answer.
    pub(super) fn reset(&self, kinds: &BTreeMap<BucketKey, Option<AlgorithmKind>>) -> Result<Levels, Failure> {
        let keys: Vec<BucketKey> = kinds.keys().copied().collect();
        let buckets: Vec<_> = kinds.iter().map(|(key, kind)| (*key, *kind)).collect();
        let (at, states) = match self {
            Backend::Shared(settings) => timed(self.inspect(settings, async |look| look.reset(&buckets).await)?),
            Backend::Gateway(address) => found(&admin_client::ask(address, Method::Delete, &path(&keys))?)?,
        };
        Ok(self.levels(at, &keys, states))
    }

    /// Gives back to each bucket up to `amount` of what is spent. Returns the levels before and after the change.
    ///
    /// # Errors
    ///
    /// When the store or the gateway cannot be reached, or refuses.
    pub(super) fn give_back(
        &self,
        buckets: &[(BucketKey, AlgorithmKind)],
        amount: Cost,
    ) -> Result<(Levels, Levels), Failure> {
        let keys: Vec<BucketKey> = buckets.iter().map(|(key, _)| *key).collect();
        let (at, given) = match self {
            Backend::Shared(settings) => {
                timed(self.inspect(settings, async |look| look.give_back(buckets, amount).await)?)
            }
            Backend::Gateway(address) => {
                let kinds: Vec<&str> = buckets.iter().map(|(_, kind)| kind.name()).collect();
                let path = format!("{}?amount={amount}&algorithms={}", path(&keys), kinds.join(","));
                given_back(&admin_client::ask(address, Method::Patch("grant"), &path)?)?
            }
        };
        let (before, after) = given.into_iter().map(|given| (given.before, given.after)).unzip();
        Ok((self.levels(at, &keys, before), self.levels(at, &keys, after)))
    }

    /// Finds the buckets whose names begin with `begin`. `names` is the secret from which the names are made. `progress` is called with the
    /// number of buckets read so far.
    ///
    /// # Errors
    /// When the store or the gateway does not answer.
    pub(super) fn find(
        &self,
        begin: &str,
        names: &PseudonymKey,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<BucketKey>, Failure> {
        match self {
            Backend::Shared(settings) => {
                let is = |key: &BucketKey| names.bucket(&key.0).to_string().starts_with(begin);
                self.inspect(settings, async |look| look.find(&is, progress).await)
            }
            Backend::Gateway(address) => {
                let answer = admin_client::ask(address, Method::Get, &format!("/buckets?name={begin}"))?;
                let buckets = answer.get("buckets").and_then(Value::as_array).ok_or_else(garbled)?;
                buckets.iter().map(|bucket| key(bucket.get("key").ok_or_else(garbled)?)).collect()
            }
        }
    }

    /// Begins a ban of each bucket, which lasts for `length` from now. Returns the levels before and after.
    ///
    /// # Errors
    /// When the store does not answer. A gateway bans by its own file, so it must be asked by a query.
    pub(super) fn set_ban(
        &self,
        buckets: &[(BucketKey, Algorithm)],
        length: Micros,
    ) -> Result<(Levels, Levels), Failure> {
        let keys: Vec<BucketKey> = buckets.iter().map(|(key, _)| *key).collect();
        let settings = self.shared()?;
        let (at, set) = timed(self.inspect(settings, async |look| look.set_ban(buckets, length).await)?);
        let (before, after) = set.into_iter().map(|set| (set.before, set.after)).unzip();
        Ok((self.levels(at, &keys, before), self.levels(at, &keys, after)))
    }

    /// Raises the limit of a bucket. Returns the levels before and after, or the reason why the bucket cannot be raised.
    ///
    /// # Errors
    /// When the store does not answer. A gateway raises by its own file, so it must be asked by a query.
    pub(super) fn raise(&self, request: &RaiseRequest) -> Result<Result<(Levels, Levels), LookupError>, Failure> {
        let raised = self.inspect(self.shared()?, async |look| request.raise_in(look).await)?;
        Ok(raised.map(|(at, changed)| {
            let (before, after) = changed.into_iter().map(|states| (states.before, states.after)).unzip();
            let levels = |states| self.levels(at.into(), &[request.key], states);
            (levels(before), levels(after))
        }))
    }

    /// Lists the running bans of the limit whose buckets have the keys for which `is` returns true. `progress` is called with
    /// the number of buckets read so far.
    ///
    /// # Errors
    /// When the store does not answer. A gateway lists by its own file, so it must be asked by a query.
    pub(super) fn list_bans(
        &self,
        limit: &Algorithm,
        is: &dyn Fn(&BucketKey) -> bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BanList, Failure> {
        self.inspect(self.shared()?, async |look| look.list_bans(limit, is, progress).await)
    }

    fn shared(&self) -> Result<&stores::Settings, Failure> {
        match self {
            Backend::Shared(settings) => Ok(settings),
            Backend::Gateway(address) => Err(format!("{address}: must be asked by a query").into()),
        }
    }

    fn levels(&self, at: StoreTime, keys: &[BucketKey], states: Vec<Option<State>>) -> Levels {
        Levels::new(at, self.to_string(), keys, states)
    }

    fn inspect<T>(
        &self,
        settings: &stores::Settings,
        work: impl AsyncFnOnce(&mut Inspector) -> Result<T, stores::Fault>,
    ) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let done = runtime.block_on(async {
            let mut look = settings.inspect_reporting(&output::server_notices(self)).await?;
            work(&mut look).await
        });
        done.map_err(|stores::Fault { error, detail, .. }| {
            let what = format!("{self}: {}: {detail}", error.name());
            match error {
                stores::StoreError::Forbidden => {
                    with_hint(what, "docs/stores.md says what a user needs to look at buckets")
                }
                _ => what.into(),
            }
        })
    }
}

fn path(keys: &[BucketKey]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
    format!("/buckets/{}", keys.join(","))
}

fn garbled() -> Failure {
    "the admin listener answered something else than buckets: is it a gateway of this version?".into()
}

/// Uses the time of a shared store also as the date for calendars.
fn timed<T>((now, shown): (Timestamp, T)) -> (StoreTime, T) {
    (now.into(), shown)
}

fn found(answer: &Value) -> Result<(StoreTime, Vec<Option<State>>), Failure> {
    listed(answer, |bucket| state(&bucket["state"]))
}

fn given_back(answer: &Value) -> Result<(StoreTime, Vec<GivenBack>), Failure> {
    listed(answer, |bucket| Ok(GivenBack { before: state(&bucket["before"])?, after: state(&bucket["state"])? }))
}

/// Parses the answer of a gateway about buckets.
fn listed<T>(answer: &Value, each: impl Fn(&Value) -> Result<T, Failure>) -> Result<(StoreTime, Vec<T>), Failure> {
    let now = answer["now"].as_u64().map(Timestamp).ok_or_else(garbled)?;
    // An older gateway sends only `now`.
    let at = StoreTime { now, date: answer["date"].as_u64().map_or(now, Timestamp) };
    let buckets = answer["buckets"].as_array().ok_or_else(garbled)?;
    Ok((at, buckets.iter().map(each).collect::<Result<_, _>>()?))
}

fn state(numbers: &Value) -> Result<Option<State>, Failure> {
    match numbers {
        Value::Null => Ok(None),
        Value::Array(numbers) => {
            numbers.iter().map(Value::as_u64).collect::<Option<State>>().map(Some).ok_or_else(garbled)
        }
        _ => Err(garbled()),
    }
}

fn key(text: &Value) -> Result<BucketKey, Failure> {
    text.as_str().and_then(BucketKey::parse).ok_or_else(garbled)
}

//! Does the acts of leases on a Redis server: that of a region, or home. It has a connection of its own, so that no request waits
//! behind an answer from another region.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use super::address::resolve_once;
use super::bucket_reads::moment;
use super::codec::LeaseCall;
use super::handshake::{connect, send};
use super::noscript::load_if_unknown;
use super::script;
use super::settings::Settings;
use crate::error::{Fault, StoreError};
use crate::lease_acts::{ActResult, ActResults, BucketAct};
use crate::remote::login::CurrentLogin;
use base::time::{Micros, Timestamp};
use tokio::task::JoinHandle;

/// A connection for acts of leases, to one server or to the master that sentinels name.
#[derive(Debug)]
pub struct LeaseLink {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
    sha: String,
    prefix: String,
    /// The time on the server's clock, as last heard.
    near: Timestamp,
}

impl LeaseLink {
    /// Connects to the server. Must be called on a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, is no master, or the user lacks a permission.
    pub async fn open(settings: &Settings) -> Result<LeaseLink, Fault> {
        let login = Arc::new(CurrentLogin::new(settings.login.clone()));
        let address = resolve_once(settings, &login).await?;
        let (opened, sha) = connect(settings, &address, &login, &script::leases()).await?;
        let mut connection = opened.connection;
        let driver = tokio::spawn(opened.driver);
        let near = moment(&send(&mut connection, Cmd::new().arg("TIME")).await?)?;
        Ok(LeaseLink { connection, driver, sha, prefix: settings.prefix.clone(), near })
    }

    /// Does these acts in one call. Acts whose calendar period has changed meanwhile are done in a second call. An error says nothing
    /// about whether the acts were done: the same words can be sent again.
    ///
    /// # Errors
    ///
    /// When the server does not answer within `timeout`, or refuses the call.
    pub async fn act(&mut self, acts: &[BucketAct], timeout: Micros) -> Result<ActResults, Fault> {
        let overdue = || Fault::new(StoreError::Timeout, "no answer in time".to_owned());
        tokio::time::timeout(timeout.into(), self.act_in_periods(acts)).await.map_err(|_| overdue())?
    }

    async fn act_in_periods(&mut self, acts: &[BucketAct]) -> Result<ActResults, Fault> {
        let mut done = self.call(acts).await?;
        let outside = |result: &ActResult| *result == ActResult::OutsidePeriod;
        if done.results.iter().any(outside) {
            let left_out = acts.iter().zip(&done.results).filter(|(_, result)| outside(result));
            let again: Vec<BucketAct> = left_out.map(|(act, _)| *act).collect();
            let ActResults { now, healed, results } = self.call(&again).await?;
            (done.now, done.healed) = (now, done.healed + healed);
            done.results.iter_mut().filter(|result| outside(result)).zip(results).for_each(|(old, new)| *old = new);
        }
        Ok(done)
    }

    async fn call(&mut self, acts: &[BucketAct]) -> Result<ActResults, Fault> {
        let call = LeaseCall::new(acts);
        let mut replies = [send(&mut self.connection, &call.command(&self.sha, &self.prefix, self.near, None)).await];
        if load_if_unknown(&mut self.connection, &mut self.sha, &replies, script::leases).await? {
            replies = [send(&mut self.connection, &call.command(&self.sha, &self.prefix, self.near, None)).await];
        }
        let [reply] = replies;
        let reply: Value = reply?;
        let wrong = |error| Fault::new(error, "EVALSHA was answered with something else".to_owned());
        let results = call.results(&reply).map_err(wrong)?;
        self.near = results.now;
        Ok(results)
    }
}

impl Drop for LeaseLink {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

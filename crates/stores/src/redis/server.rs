//! Connects to one Redis and calls its script.

use std::fmt;
use std::slice::from_ref;
use std::sync::Arc;

use redis::Pipeline;
use redis::aio::MultiplexedConnection;
use smallvec::smallvec;

use super::address::Resolver;
use super::bucket_reads;
use super::codec::{Call, LeaseCall};
use super::dial::OpenConnection;
use super::eviction_policy;
use super::fault_injection::Hooks;
use super::gateway_heartbeat;
use super::handshake::connect;
use super::lease_script::LeaseScript;
use super::noscript::load_if_unknown;
use super::readiness::Readiness;
use super::script;
use super::settings::Settings;
use crate::error::{Fault, StoreError};
use crate::events::{EventSink, RunningGateway};
use crate::lease_acts::{ActResults, BucketAct};
use crate::remote::Route;
use crate::remote::login::CurrentLogin;
use crate::remote::transport::{
    CallLimits, CallPart, CallReply, DrivenLink, Driver, LiveGateways, PartReply, ReadStates, Transport,
};
use base::time::{Clock, Timestamp};
use ledger::bucket_key::BucketKey;

/// The [`Transport`] of a store on one Redis server.
#[derive(Debug)]
pub struct Server {
    login: Arc<CurrentLogin>,
    settings: Settings,
    resolver: Arc<Resolver>,
    readiness: Readiness,
    script: String,
    leases: LeaseScript,
    clock: Clock,
    hooks: Hooks,
}

/// A connection to the server, with the names of the scripts that are loaded.
#[derive(Clone)]
pub struct Link {
    pub connection: MultiplexedConnection,
    /// The SHA-1 hash that names the script which takes from buckets.
    pub take: String,
    /// The SHA-1 hash that names the script of the heartbeat. Empty before the first heartbeat.
    pub heartbeat: String,
}

impl Server {
    pub fn new(settings: Settings, clock: Clock, hooks: Hooks) -> Server {
        let login = Arc::new(CurrentLogin::new(settings.login.clone()));
        Server {
            resolver: Arc::new(Resolver::new(&settings, &login)),
            readiness: Readiness::new(),
            login,
            settings,
            script: hooks.script(script::take(), &clock),
            leases: LeaseScript::new(clock.clone(), hooks),
            clock,
            hooks,
        }
    }

    /// Uses the login and the sentinels of these settings for new connections.
    pub fn replace_login(&self, settings: &Settings) {
        self.login.replace(&settings.login);
        self.resolver.replace(settings);
    }

    async fn connect_now(&self) -> Result<DrivenLink<Link>, Fault> {
        let address = self.resolver.resolve().await?;
        let connecting = connect(&self.settings, &address, &self.login, &self.script);
        let (opened, take) = tokio::select! {
            connected = connecting => connected?,
            // Without this branch, an attempt to reach a vanished server would go on for long.
            fault = self.resolver.replaced(&address) => return Err(fault),
        };
        let OpenConnection { connection, driver, peer } = opened;
        let link = Link { connection, take, heartbeat: String::new() };
        let (resolver, server) = (Arc::clone(&self.resolver), address.clone());
        let driver: Driver = if resolver.follows(&address) {
            Box::pin(async move {
                tokio::select! {
                    biased;
                    () = driver => closed(),
                    fault = resolver.moved(&address, peer) => fault,
                }
            })
        } else {
            Box::pin(async move {
                driver.await;
                closed()
            })
        };
        Ok(DrivenLink { link, driver, server: Some(server) })
    }
}

impl Transport for Server {
    type Link = Link;

    // The limits are low because a script blocks the server's other clients.
    const CALLS: CallLimits = CallLimits { charges: 128, requests: 512, at_once: 5, parted: false };

    async fn connect(&self) -> Result<DrivenLink<Link>, Fault> {
        let connected = self.connect_now().await;
        self.readiness.attempted(&connected);
        connected
    }

    async fn run(&self, _events: &EventSink) {
        self.resolver.run().await;
    }

    async fn found_again(&self) {
        tokio::select! {
            () = self.resolver.found_again() => {}
            () = self.readiness.retry() => {}
        }
    }

    async fn take(&self, link: &mut Link, parts: &[CallPart<'_>], near: Timestamp) -> Result<CallReply, Fault> {
        // All buckets are on one server, so the call has only one part.
        let Some(CallPart { plans, reports, .. }) = parts.first() else { return Ok(smallvec![]) };
        let call = Call::with_reports(reports.as_ref(), plans.iter().copied());
        let near = self.hooks.near(near, || self.clock.now());
        let moment = || self.hooks.moment(&self.clock);
        let command = |sha: &str| call.command(sha, &self.settings.prefix, near, moment());
        let mut reply = self.hooks.send(&mut link.connection, &command(&link.take)).await;
        let Link { connection, take, .. } = link;
        if load_if_unknown(connection, take, from_ref(&reply), || self.script.clone()).await? {
            reply = self.hooks.send(connection, &command(take)).await;
        }
        let wrong = |error| Fault::new(error, "the script was answered with something else");
        let reply = call.settle(&reply?).map_err(wrong)?;
        Ok(smallvec![PartReply { plans: plans.len(), reply: Ok(reply) }])
    }

    async fn read(&self, link: &mut Link, keys: &[BucketKey], _: Route) -> Result<ReadStates, Fault> {
        let mut pipeline = Pipeline::with_capacity(keys.len() + 1);
        for command in bucket_reads::commands(&self.settings.prefix, keys) {
            pipeline.add_command(command);
        }
        let replies = self.hooks.send_all(&mut link.connection, &pipeline).await?.into_iter();
        let replies = replies.map(|reply| reply.extract_error().map_err(Fault::from));
        let read = bucket_reads::parse(replies, keys.len())?;
        Ok(ReadStates { now: self.hooks.moment(&self.clock).unwrap_or(read.now), ..read })
    }

    async fn act(
        &self,
        link: &mut Link,
        acts: &[BucketAct],
        near: Timestamp,
        route: Route,
    ) -> Result<ActResults, Fault> {
        let call = LeaseCall::new(acts);
        let reply = self.leases.run(&mut link.connection, &call, &self.settings.prefix, near, route).await??;
        call.results(&reply).map_err(|error| Fault::new(error, "the script was answered with something else"))
    }

    async fn beat(
        &self,
        link: &mut Link,
        name: [u8; 8],
        this_gateway: &RunningGateway,
    ) -> Result<Option<LiveGateways>, Fault> {
        gateway_heartbeat::beat(&mut link.connection, &mut link.heartbeat, &self.settings.prefix, name, this_gateway)
            .await
    }

    async fn watch(&self, link: Link, events: &EventSink) {
        eviction_policy::watch(link.connection, events).await;
    }
}

fn closed() -> Fault {
    Fault::new(StoreError::Closed, "the connection was closed")
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

//! Calls the script on one node of a cluster: one call for each hash tag, all written together.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::{Cmd, Pipeline, RedisError, Value};

use super::directory::{Directory, NodeId};
use super::hash_tags::TagIndex;
use crate::error::{Fault, StoreError};
use crate::events::{EventSink, RunningGateway};
use crate::lease_acts::{ActResults, BucketAct};
use crate::redis::bucket_reads;
use crate::redis::codec::{Call, LeaseCall};
use crate::redis::dial::step;
use crate::redis::fault_injection::Hooks;
use crate::redis::handshake::{connect, send};
use crate::redis::lease_script::LeaseScript;
use crate::redis::noscript::{is_noscript, load_if_unknown};
use crate::redis::readiness::Readiness;
use crate::redis::server::Link;
use crate::redis::settings::{Settings, Target};
use crate::redis::{eviction_policy, gateway_heartbeat, script};
use crate::remote::Route;
use crate::remote::holds::PartIndices;
use crate::remote::login::CurrentLogin;
use crate::remote::transport::{
    CallLimits, CallPart, CallReply, DrivenLink, Driver, LiveGateways, PartReply, ReadStates, Transport,
};
use base::host_port::HostPort;
use base::time::{Clock, Timestamp};
use ledger::bucket_key::BucketKey;

/// The [`Transport`] to one node of a Redis cluster.
#[derive(Debug)]
pub(crate) struct NodeServer {
    pub id: NodeId,
    pub address: HostPort,
    settings: Settings,
    login: Arc<CurrentLogin>,
    directory: Arc<Directory>,
    script: String,
    leases: LeaseScript,
    clock: Clock,
    hooks: Hooks,
    readiness: Readiness,
    /// The SHA-1 hash that names the script which gives back amounts. Empty until the script is loaded.
    pub give_back_script: Mutex<String>,
}

/// The call for one part, whose buckets are all under one hash tag.
struct TagCall<'p> {
    tag: TagIndex,
    plans: usize,
    route: Route,
    call: Call<'p>,
}

impl<'p> TagCall<'p> {
    fn new(CallPart { index, plans, route, reports }: &'p CallPart<'_>) -> TagCall<'p> {
        let call = Call::with_reports(reports.as_ref(), plans.iter().copied());
        TagCall { tag: tag(*index), plans: plans.len(), route: *route, call }
    }
}

/// Returns the hash tag of a part of the store.
fn tag(part: usize) -> TagIndex {
    TagIndex(u16::try_from(part).unwrap_or_default())
}

impl NodeServer {
    pub(super) fn new(
        id: NodeId,
        address: HostPort,
        settings: Settings,
        login: Arc<CurrentLogin>,
        directory: Arc<Directory>,
        clock: Clock,
        hooks: Hooks,
    ) -> NodeServer {
        let script = hooks.script(script::take(), &clock);
        NodeServer {
            id,
            address,
            settings,
            login,
            directory,
            script,
            leases: LeaseScript::new(clock.clone(), hooks),
            clock,
            hooks,
            readiness: Readiness::new(),
            give_back_script: Mutex::default(),
        }
    }

    /// Returns the last connection to this node.
    pub(crate) fn latest_link(&self) -> Option<Link> {
        self.directory.links.get(self.id)
    }

    /// Returns the prefix of the keys under one of this node's hash tags. If the node has no tag, the first tag is
    /// used.
    fn own_prefix(&self) -> String {
        let mut tags = self.directory.tags.iter();
        let own = tags.find(|(tag, _)| self.directory.owner(*tag) == Some(self.id));
        own.or_else(|| self.directory.tags.iter().next()).map(|(_, tag)| tag.prefix.clone()).unwrap_or_default()
    }

    /// Sends these calls, and returns the reply to each.
    async fn send(&self, link: &mut Link, calls: &[&TagCall<'_>], near: Timestamp) -> Result<Vec<Value>, Fault> {
        let mut pipeline = Pipeline::with_capacity(calls.len());
        let asked: Vec<bool> = calls.iter().map(|call| call.route == Route::Next).collect();
        for (call, asking) in calls.iter().zip(&asked) {
            let Some(tag) = self.directory.tags.get(call.tag) else { continue };
            if *asking {
                pipeline.add_command(Cmd::new().arg("ASKING").clone());
            }
            let moment = self.hooks.moment(&self.clock);
            pipeline.add_command(call.call.command(&link.take, &tag.prefix, near, moment));
        }
        let replies = self.hooks.send_all(&mut link.connection, &pipeline).await?;
        let unexpected = || Fault::new(StoreError::UnexpectedReply, "a pipeline was answered with something else");
        let mut replies = replies.into_iter();
        let reply = |asking: &bool| {
            if *asking {
                replies.next();
            }
            replies.next().ok_or_else(unexpected)
        };
        let replies = asked.iter().map(reply).collect::<Result<Vec<_>, _>>()?;
        Ok(replies)
    }

    /// Sends reports again whose bucket has already moved to the next node of its hash tag.
    async fn send_reports_elsewhere(
        &self,
        calls: &[TagCall<'_>],
        replies: &mut [Result<Value, RedisError>],
        near: Timestamp,
    ) {
        for (call, reply) in calls.iter().zip(replies).filter(|(call, _)| call.plans == 0) {
            let Some(error) = reply.as_ref().err() else { continue };
            let fault = self.directory.redirected(call.tag, error, &self.address, self.clock.now());
            let (StoreError::SlotMoving, Some(next)) = (fault.error, self.directory.next_owner(call.tag)) else {
                continue;
            };
            let Some(mut link) = self.directory.links.get(next) else { continue };
            let Some(tag) = self.directory.tags.get(call.tag) else { continue };
            let mut pipeline = Pipeline::with_capacity(2);
            pipeline.add_command(Cmd::new().arg("ASKING").clone());
            let moment = self.hooks.moment(&self.clock);
            pipeline.add_command(call.call.command(&link.take, &tag.prefix, near, moment));
            if let Ok(mut answers) = self.hooks.send_all(&mut link.connection, &pipeline).await
                && let Some(answer) = answers.pop()
            {
                *reply = answer.extract_error();
            }
        }
    }

    async fn connect_now(&self) -> Result<DrivenLink<Link>, Fault> {
        // The handshake needs a key of this node.
        let target = Target::Address { address: self.address.clone(), database: 0 };
        let settings = Settings { target, prefix: self.own_prefix(), ..self.settings.clone() };
        let connected = connect(&settings, &self.address, &self.login, &self.script).await;
        let named = |fault: Fault| {
            self.directory.outdated.notify_one();
            Fault { detail: format!("{}: {}", self.address, fault.detail), ..fault }
        };
        let (mut opened, take) = connected.map_err(named)?;
        // ASKING is needed only while a hash slot moves, but its permission is checked now.
        let mut asking = Cmd::new();
        asking.arg("ASKING");
        let permitted = async {
            tokio::select! {
                biased;
                reply = send(&mut opened.connection, &asking) => Ok(reply.map(drop)?),
                () = &mut opened.driver => Err(Fault::new(StoreError::Unreachable, "the connection was closed at once")),
            }
        };
        step("checking the permissions", permitted).await.map_err(named)?.map_err(named)?;
        let link = Link { connection: opened.connection, take, heartbeat: String::new() };
        self.directory.links.replace(self.id, link.clone());
        let (driver, address) = (opened.driver, self.address.clone());
        let driver: Driver = Box::pin(async move {
            driver.await;
            Fault::new(StoreError::Closed, format!("{address}: the connection was closed"))
        });
        Ok(DrivenLink { link, driver, server: None })
    }
}

impl Transport for NodeServer {
    type Link = Link;

    const CALLS: CallLimits = CallLimits { charges: 128, requests: 512, at_once: 5, parted: true };

    async fn connect(&self) -> Result<DrivenLink<Link>, Fault> {
        let connected = self.connect_now().await;
        self.readiness.attempted(&connected);
        connected
    }

    async fn found_again(&self) {
        self.readiness.retry().await;
    }

    async fn take(&self, link: &mut Link, parts: &[CallPart<'_>], near: Timestamp) -> Result<CallReply, Fault> {
        let near = self.hooks.near(near, || self.clock.now());
        let calls: Vec<TagCall<'_>> = parts.iter().map(TagCall::new).collect();
        let all: Vec<&TagCall<'_>> = calls.iter().collect();
        let replies = self.send(link, &all, near).await?;
        let mut replies: Vec<_> = replies.into_iter().map(Value::extract_error).collect();
        if load_if_unknown(&mut link.connection, &mut link.take, &replies, || self.script.clone()).await? {
            let left: Vec<_> =
                calls.iter().zip(&replies).filter(|(_, reply)| is_noscript(reply)).map(|(call, _)| call).collect();
            let again = self.send(link, &left, near).await?;
            for (reply, again) in replies.iter_mut().filter(|reply| is_noscript(reply)).zip(again) {
                *reply = again.extract_error();
            }
        }
        self.send_reports_elsewhere(&calls, &mut replies, near).await;
        let part = |(call, reply): (&TagCall<'_>, Result<Value, RedisError>)| {
            let wrong = |error| Fault::new(error, "the script was answered with something else");
            let reply =
                reply.map_err(|error| self.directory.redirected(call.tag, &error, &self.address, self.clock.now()));
            PartReply { plans: call.plans, reply: reply.and_then(|reply| call.call.settle(&reply).map_err(wrong)) }
        };
        Ok(calls.iter().zip(replies).map(part).collect())
    }

    /// Reads buckets that are all under one hash tag.
    async fn read(&self, link: &mut Link, keys: &[BucketKey], route: Route) -> Result<ReadStates, Fault> {
        let tag = keys.first().map_or(TagIndex(0), |key| self.directory.tags.of(key));
        let prefix = self.directory.tags.get(tag).map_or("", |tag| &tag.prefix);
        let asking = usize::from(route == Route::Next);
        let mut pipeline = Pipeline::with_capacity((1 + asking) * keys.len() + 1);
        for key in keys {
            if route == Route::Next {
                pipeline.add_command(Cmd::new().arg("ASKING").clone());
            }
            pipeline.add_command(bucket_reads::get(prefix, key));
        }
        pipeline.add_command(bucket_reads::time());
        let replies = self.hooks.send_all(&mut link.connection, &pipeline).await?.into_iter();
        // The reply to ASKING precedes that to each GET.
        let replies =
            replies.enumerate().filter(|(index, _)| asking == 0 || index % 2 == 1 || *index == 2 * keys.len());
        let redirected = |error| self.directory.redirected(tag, &error, &self.address, self.clock.now());
        let replies = replies.map(|(_, reply)| reply.extract_error().map_err(redirected));
        let read = bucket_reads::parse(replies, keys.len())?;
        Ok(ReadStates { now: self.hooks.moment(&self.clock).unwrap_or(read.now), ..read })
    }

    /// Does acts on buckets that are all under one hash tag.
    async fn act(
        &self,
        link: &mut Link,
        acts: &[BucketAct],
        near: Timestamp,
        route: Route,
    ) -> Result<ActResults, Fault> {
        let tag = acts.first().map_or(TagIndex(0), |act| self.directory.tags.of(&act.key));
        let prefix = self.directory.tags.get(tag).map_or("", |tag| &tag.prefix);
        let call = LeaseCall::new(acts);
        let reply = self.leases.run(&mut link.connection, &call, prefix, near, route).await?;
        let redirected = |error| self.directory.redirected(tag, &error, &self.address, self.clock.now());
        let reply = reply.map_err(redirected)?;
        call.results(&reply).map_err(|error| Fault::new(error, "the script was answered with something else"))
    }

    /// Sends a heartbeat if this node has the first hash tag. Gateways are listed under that tag.
    async fn beat(
        &self,
        link: &mut Link,
        name: [u8; 8],
        this_gateway: &RunningGateway,
    ) -> Result<Option<LiveGateways>, Fault> {
        let first = TagIndex(0);
        let (Some(tag), true) = (self.directory.tags.get(first), self.directory.owner(first) == Some(self.id)) else {
            return Ok(None);
        };
        let beat = gateway_heartbeat::beat(&mut link.connection, &mut link.heartbeat, &tag.prefix, name, this_gateway);
        match beat.await {
            // The tag is moving. The next heartbeat goes to its new node.
            Err(fault) if fault.error.is_redirection() => Ok(None),
            reply => reply,
        }
    }

    async fn watch(&self, link: Link, events: &EventSink) {
        eviction_policy::watch(link.connection, events).await;
    }

    fn part_of(&self, bucket: &BucketKey) -> usize {
        usize::from(self.directory.tags.of(bucket).0)
    }

    fn own_parts(&self) -> PartIndices {
        let tags = self.directory.tags.iter().map(|(tag, _)| tag);
        tags.filter(|tag| self.directory.owner(*tag) == Some(self.id)).map(|tag| usize::from(tag.0)).collect()
    }

    fn is_split(&self, part: usize) -> bool {
        self.directory.is_moving(tag(part), self.clock.now())
    }
}

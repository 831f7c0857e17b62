//! Connects to one Redis and calls its script: what [`Transport`] wants, in Redis' words.

use std::fmt;

use redis::aio::MultiplexedConnection;
use smallvec::smallvec;

use super::address::Resolver;
use super::codec::Call;
use super::eviction_policy;
use super::fault_injection::Hooks;
use super::gateway_heartbeat;
use super::handshake::{connect, load};
use super::login::CurrentLogin;
use super::script;
use super::settings::Settings;
use crate::base::time::{Clock, Timestamp};
use crate::limit::charge::Plan;
use crate::store::error::Fault;
use crate::store::events::{EventSink, RunningGateway};
use crate::store::remote::transport::{CallLimits, CallReply, Connected, LiveGateways, Overflow, PartReply, Transport};

/// A Redis server.
#[derive(Debug)]
pub struct Server {
    pub login: CurrentLogin,
    settings: Settings,
    resolver: Resolver,
    script: String,
    clock: Clock,
    hooks: Hooks,
}

/// A connection to it, and the scripts that it has loaded.
#[derive(Clone)]
pub struct Link {
    pub connection: MultiplexedConnection,
    /// The SHA-1 that names the script that takes.
    pub take: String,
    /// That of the heartbeat; empty before the first.
    pub heartbeat: String,
}

impl Server {
    pub fn new(settings: Settings, clock: Clock, hooks: Hooks) -> Server {
        Server {
            login: CurrentLogin::new(settings.login.clone()),
            resolver: Resolver::new(&settings),
            settings,
            script: hooks.script(script::take()),
            clock,
            hooks,
        }
    }
}

impl Transport for Server {
    type Link = Link;

    // A script blocks the server's other clients.
    const CALLS: CallLimits = CallLimits { charges: 128, requests: 512, overflow: Overflow::SecondCall, parted: false };

    async fn connect(&self) -> Result<Connected<Link>, Fault> {
        let address = self.resolver.resolve().await?;
        let ready = connect(&self.settings, &address, &self.login, &self.script).await?;
        let link = Link { connection: ready.connection, take: ready.sha, heartbeat: String::new() };
        Ok(Connected { link, driver: ready.driver })
    }

    async fn take(&self, link: &mut Link, plans: &[&Plan], near: Timestamp) -> Result<CallReply, Fault> {
        let call = Call::new(plans.iter().copied());
        let near = self.hooks.near(near, || self.clock.now());
        let moment = || self.hooks.moment(&self.clock);
        let command = |sha: &str| call.command(sha, &self.settings.prefix, near, moment());
        let reply = match self.hooks.send(&mut link.connection, &command(&link.take)).await {
            // The script did not run: the server was restarted behind a proxy, or its scripts were flushed.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                link.take = load(&mut link.connection, &self.script).await?;
                self.hooks.send(&mut link.connection, &command(&link.take)).await
            }
            reply => reply,
        };
        let wrong = |error| Fault::new(error, "the script was answered with something else");
        let reply = call.settle(&reply?).map_err(wrong)?;
        Ok(smallvec![PartReply { plans: plans.len(), reply: Ok(reply) }])
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

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

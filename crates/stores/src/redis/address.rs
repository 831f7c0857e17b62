//! Finds the Redis server that accepts writes, and checks whether it still does. The address is determined for each
//! attempt to connect.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::sentinel::{MasterWatch, find_master};
use super::settings::{Settings, Target};
use crate::error::{Fault, StoreError};
use crate::remote::login::CurrentLogin;
use base::host_port::HostPort;
use base::interval::fixed_interval;
use base::time;

/// The interval at which the host name of a connected server is resolved again.
const LOOK_UP: Duration = Duration::from_secs(30);

/// Finds the address of the Redis server to connect to.
#[derive(Debug)]
pub(crate) enum Resolver {
    /// The address from the URL. Its host name is resolved for each new connection.
    Fixed(HostPort),
    Sentinel(Box<MasterWatch>),
}

impl Resolver {
    /// Makes the resolver for these settings. `login` is the login of the Redis server.
    pub(super) fn new(settings: &Settings, login: &Arc<CurrentLogin>) -> Resolver {
        match &settings.target {
            Target::Address { address, .. } => Resolver::Fixed(address.clone()),
            // The first node is enough: `cluster::Nodes` finds the addresses of all nodes.
            Target::Cluster(cluster) => {
                Resolver::Fixed(cluster.nodes.first().cloned().unwrap_or_else(|| HostPort::new(String::new(), 0)))
            }
            Target::Sentinel(sentinels) => Resolver::Sentinel(Box::new(MasterWatch::new(sentinels, Arc::clone(login)))),
        }
    }

    /// Applies the list of sentinels and their login, which can change without a restart.
    pub(super) fn replace(&self, settings: &Settings) {
        if let (Resolver::Sentinel(watch), Target::Sentinel(sentinels)) = (self, &settings.target) {
            watch.replace(sentinels);
        }
    }

    /// Keeps the results of [`Resolver::resolve`] and [`Resolver::moved`] up to date. With sentinels, this never
    /// returns.
    pub(super) async fn run(&self) {
        match self {
            Resolver::Fixed(_) => {}
            Resolver::Sentinel(watch) => watch.run().await,
        }
    }

    /// Returns the address of the server to connect to now.
    ///
    /// # Errors
    ///
    /// When no address can be determined.
    pub(super) async fn resolve(&self) -> Result<HostPort, Fault> {
        match self {
            Resolver::Fixed(address) => Ok(address.clone()),
            Resolver::Sentinel(watch) => watch.master().await,
        }
    }

    /// Waits until a connection leads to the wrong server, and returns the reason. The connection was made to
    /// `address`, and its other end is `peer`.
    pub(super) async fn moved(&self, address: &HostPort, peer: SocketAddr) -> Fault {
        tokio::select! {
            fault = self.replaced(address) => fault,
            fault = name_moved(address, peer.ip()) => fault,
        }
    }

    /// Waits until the sentinels name a server that is not at `address`. Returns this change as a fault.
    pub(super) async fn replaced(&self, address: &HostPort) -> Fault {
        match self {
            Resolver::Fixed(_) => std::future::pending().await,
            Resolver::Sentinel(watch) => {
                let master = watch.moved(address).await;
                Fault::new(StoreError::Moved, format!("the sentinels name {master} in place of {address}"))
            }
        }
    }

    /// Whether the server at this address can change, so that [`Resolver::moved`] may return.
    pub(super) fn follows(&self, address: &HostPort) -> bool {
        matches!(self, Resolver::Sentinel(_)) || address.ip().is_none()
    }

    /// Waits until the address may have changed, so that the next attempt to connect should be made at once.
    pub(crate) async fn found_again(&self) {
        match self {
            Resolver::Fixed(_) => std::future::pending().await,
            Resolver::Sentinel(watch) => watch.found_again().await,
        }
    }
}

/// Returns the address of the server to connect to now, without a [`Resolver`] that keeps it up to date.
///
/// # Errors
///
/// In the same cases as [`Resolver::resolve`], and always for a cluster.
pub(crate) async fn resolve_once(settings: &Settings, login: &Arc<CurrentLogin>) -> Result<HostPort, Fault> {
    match &settings.target {
        Target::Address { address, .. } => Ok(address.clone()),
        Target::Cluster(_) => Err(Fault::new(StoreError::Unreachable, "the buckets are on the nodes of a cluster")),
        Target::Sentinel(sentinels) => find_master(sentinels, Arc::clone(login)).await,
    }
}

/// Waits until a host name no longer resolves to `peer`. Returns this change as a fault.
async fn name_moved(address: &HostPort, peer: IpAddr) -> Fault {
    if address.ip().is_some() {
        return std::future::pending().await;
    }
    loop {
        time::sleep(fixed_interval("redis_name", LOOK_UP)).await;
        // A failed lookup says nothing about the server.
        let Ok(found) = tokio::net::lookup_host((&*address.host, address.port)).await else { continue };
        let found: Vec<IpAddr> = found.map(|found| found.ip().to_canonical()).collect();
        if !found.is_empty() && !found.contains(&peer.to_canonical()) {
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            let detail = format!("{} is now {}, not {peer}", address.host, found.join(", "));
            return Fault::new(StoreError::Moved, detail);
        }
    }
}

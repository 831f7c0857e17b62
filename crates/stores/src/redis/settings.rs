//! The settings of a Redis store: the server, and how to connect to it.

use std::fmt;

use super::cluster::settings as cluster;
use super::sentinel::settings as sentinel;
use crate::breaker;
use crate::remote::login::Login;
use base::host_port::HostPort;
use base::time::Micros;

/// The length of the longest prefix of keys, in bytes. With a longer prefix, the whole key would not fit into an
/// allocation of 32 bytes.
pub const LONGEST_PREFIX: usize = 11;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub target: Target,
    pub login: Login,
    /// The longest time that a request waits for a decision.
    pub timeout: Micros,
    /// The prefix of the names of all keys in Redis.
    pub prefix: String,
    pub breaker: breaker::Settings,
    /// During an outage, the limits are divided among at least this number of gateways.
    pub gateways: u64,
}

/// Where the buckets are: on one server, on a sentinels' master, or on the nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The server at this address.
    Address { address: HostPort, database: i64 },
    /// The master that sentinels name.
    Sentinel(Box<sentinel::Settings>),
    /// The nodes of a cluster.
    Cluster(Box<cluster::Settings>),
}

impl Target {
    /// Returns the target for the server at this address, with its first database.
    pub fn at(host: &str, port: u16) -> Target {
        Target::Address { address: HostPort::new(host, port), database: 0 }
    }

    pub fn database(&self) -> i64 {
        match self {
            Target::Address { database, .. } => *database,
            Target::Sentinel(_) | Target::Cluster(_) => 0,
        }
    }

    /// Whether both targets lead to the same buckets, as far as their settings show.
    pub(crate) fn is_same_server(&self, other: &Target) -> bool {
        match (self, other) {
            (Target::Sentinel(sentinels), Target::Sentinel(others)) => sentinels.is_same_master(others),
            (Target::Cluster(cluster), Target::Cluster(other)) => cluster.has_same_buckets(other),
            _ => self == other,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Address { address, .. } => address.fmt(f),
            Target::Sentinel(sentinels) => {
                let nodes: Vec<String> = sentinels.nodes.iter().map(ToString::to_string).collect();
                write!(f, "`{}` of the sentinels {}", sentinels.master, nodes.join(", "))
            }
            Target::Cluster(cluster) => {
                let nodes: Vec<String> = cluster.nodes.iter().map(ToString::to_string).collect();
                write!(f, "cluster at {}", nodes.join(", "))
            }
        }
    }
}

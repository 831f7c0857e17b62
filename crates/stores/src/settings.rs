//! The settings of a store of any kind.

use std::fmt;

use super::error::{Fault, StoreError};
use super::events::EventSink;
use super::inspector::Inspector;
use super::memory::bucket_file::BucketFileSettings;
use super::redis::Target;
use super::redis::cluster::Place;
use super::remote::login::Login;
use super::{memory, postgres, redis};
use base::host_port::HostPort;
use base::time::Micros;

/// The settings of one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    Memory(memory::Settings),
    Redis(redis::Settings),
    Postgres(postgres::Settings),
}

/// The address of a shared store and its buckets.
#[derive(Clone, Copy, Debug)]
pub enum Endpoint<'s> {
    Redis {
        target: &'s Target,
        prefix: &'s str,
    },
    Postgres {
        /// The servers of the database, at least one. One of them accepts writes.
        hosts: &'s [HostPort],
        database: &'s str,
        table: &'s str,
    },
}

impl fmt::Display for Endpoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Redis { target: Target::Address { address, .. }, .. } => write!(f, "Redis at {address}"),
            Endpoint::Redis { target, .. } => write!(f, "Redis {target}"),
            Endpoint::Postgres { hosts, .. } => {
                let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                write!(f, "PostgreSQL at {}", hosts.join(","))
            }
        }
    }
}

impl Settings {
    /// Returns the store's name in gateway.yaml and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Settings::Memory(_) => "memory",
            Settings::Redis(_) => "redis",
            Settings::Postgres(_) => "postgres",
        }
    }

    /// Whether several gateways share the buckets.
    pub fn is_shared(&self) -> bool {
        self.endpoint().is_some()
    }

    /// Returns the number of connections that a gateway with this many workers makes to a shared store.
    pub fn connections(&self, workers: usize) -> usize {
        match self {
            Settings::Memory(_) => 0,
            Settings::Redis(_) => workers,
            Settings::Postgres(_) => postgres::connections(workers),
        }
    }

    /// Returns the smallest number of gateways among which limits are divided during an outage. 1 for a store that is
    /// not shared.
    pub fn gateways(&self) -> u64 {
        match self {
            Settings::Memory(_) => 1,
            Settings::Redis(redis) => redis.gateways,
            Settings::Postgres(postgres) => postgres.gateways,
        }
    }

    /// Returns the address of a shared store. `None` if the buckets are in this process.
    pub fn endpoint(&self) -> Option<Endpoint<'_>> {
        match self {
            Settings::Memory(_) => None,
            Settings::Redis(redis::Settings { target, prefix, .. }) => Some(Endpoint::Redis { target, prefix }),
            Settings::Postgres(postgres::Settings { hosts, database, table, .. }) => {
                Some(Endpoint::Postgres { hosts, database, table: table.as_str() })
            }
        }
    }

    /// Whether both settings lead to the same buckets.
    pub fn has_same_buckets(&self, other: &Settings) -> bool {
        match (self.endpoint(), other.endpoint()) {
            (
                Some(Endpoint::Redis { target, prefix }),
                Some(Endpoint::Redis { target: other_target, prefix: other_prefix }),
            ) => prefix == other_prefix && target.is_same_server(other_target),
            (
                Some(Endpoint::Postgres { hosts, database, table }),
                Some(Endpoint::Postgres { hosts: other_hosts, database: other_database, table: other_table }),
            ) => (hosts, database, table) == (other_hosts, other_database, other_table),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    /// Returns the places of both settings, if they distribute buckets over the same cluster in different ways. `None`
    /// if the places are equal, or if the clusters differ.
    pub fn other_place(&self, other: &Settings) -> Option<(Place, Place)> {
        let (Endpoint::Redis { target, prefix }, Endpoint::Redis { target: other, prefix: other_prefix }) =
            (self.endpoint()?, other.endpoint()?)
        else {
            return None;
        };
        let (Target::Cluster(cluster), Target::Cluster(other)) = (target, other) else { return None };
        let is_same = cluster.is_same_cluster(other) && prefix == other_prefix;
        (is_same && cluster.place != other.place).then_some((cluster.place, other.place))
    }

    /// Returns the login and the TLS settings of a shared store. `None` if the buckets are in this process.
    pub fn login(&self) -> Option<&Login> {
        match self {
            Settings::Memory(_) => None,
            Settings::Redis(redis) => Some(&redis.login),
            Settings::Postgres(postgres) => Some(&postgres.login),
        }
    }

    /// Returns the settings of the file in which buckets are kept over a restart.
    pub fn bucket_file(&self) -> Option<&BucketFileSettings> {
        match self {
            Settings::Memory(memory) => memory.file.as_ref(),
            Settings::Redis(_) | Settings::Postgres(_) => None,
        }
    }

    /// Returns the `durability` of a PostgreSQL. `None` for any other store.
    pub fn durability(&self) -> Option<postgres::Durability> {
        match self {
            Settings::Postgres(postgres) => Some(postgres.durability),
            Settings::Memory(_) | Settings::Redis(_) => None,
        }
    }

    /// Whether the buckets are lost when this process ends.
    pub fn is_forgotten_at_restart(&self) -> bool {
        !self.is_shared() && self.bucket_file().is_none()
    }

    /// Returns these settings with the login, the sentinels and the cluster's nodes of `newer`. Returns them unchanged
    /// if `newer` leads to other buckets.
    #[must_use]
    pub fn with_login_of(&self, newer: &Settings) -> Settings {
        match (self, newer) {
            (Settings::Redis(redis), Settings::Redis(other)) if self.has_same_buckets(newer) => {
                let (target, login) = (other.target.clone(), other.login.clone());
                Settings::Redis(redis::Settings { target, login, ..redis.clone() })
            }
            (Settings::Postgres(postgres), Settings::Postgres(other)) if self.has_same_buckets(newer) => {
                Settings::Postgres(postgres::Settings { login: other.login.clone(), ..postgres.clone() })
            }
            _ => self.clone(),
        }
    }

    /// Returns these settings with another time for which an answer of a shared store is expected.
    #[must_use]
    pub fn with_timeout(self, timeout: Micros) -> Settings {
        match self {
            Settings::Memory(_) => self,
            Settings::Redis(redis) => Settings::Redis(redis::Settings { timeout, ..redis }),
            Settings::Postgres(postgres) => Settings::Postgres(postgres::Settings { timeout, ..postgres }),
        }
    }

    /// Connects to a shared store, to read its buckets without a gateway. Must be called on a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached or refuses the user, and always for buckets in a gateway's memory.
    pub async fn inspect(&self) -> Result<Inspector, Fault> {
        self.inspect_reporting(&EventSink::new(|_| ())).await
    }

    /// Connects as [`Settings::inspect`] does. The notices of the server are sent to `events`.
    ///
    /// # Errors
    ///
    /// In the same cases as [`Settings::inspect`].
    pub async fn inspect_reporting(&self, events: &EventSink) -> Result<Inspector, Fault> {
        match self {
            Settings::Memory(_) => Err(Fault::new(StoreError::Unreachable, "the buckets are in a gateway's memory")),
            Settings::Redis(redis) => match &redis.target {
                Target::Cluster(cluster) => {
                    redis::cluster::inspect::Inspector::open(cluster, redis).await.map(Inspector::Cluster)
                }
                Target::Address { .. } | Target::Sentinel(_) => {
                    redis::inspect::Inspector::open(redis).await.map(Inspector::Redis)
                }
            },
            Settings::Postgres(postgres) => {
                postgres::inspect::Inspector::open(postgres, events).await.map(Inspector::Postgres)
            }
        }
    }
}

impl From<memory::Settings> for Settings {
    fn from(settings: memory::Settings) -> Settings {
        Settings::Memory(settings)
    }
}

impl From<redis::Settings> for Settings {
    fn from(settings: redis::Settings) -> Settings {
        Settings::Redis(settings)
    }
}

impl From<postgres::Settings> for Settings {
    fn from(settings: postgres::Settings) -> Settings {
        Settings::Postgres(settings)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::Memory(memory::Settings::default())
    }
}

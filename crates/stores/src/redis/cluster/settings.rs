//! The settings of a Redis Cluster: its nodes, and how buckets are distributed over them.

use std::fmt;

use base::host_port::HostPort;

/// The port of a node whose address has no port.
pub const DEFAULT_PORT: u16 = 6379;
/// The largest number of hash tags. With more hash tags, each call would carry few requests.
pub const MOST_HASH_TAGS: u64 = 1_024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The nodes that are asked for the list of all nodes. One node is enough while it is up.
    pub nodes: Vec<HostPort>,
    pub place: Place,
}

impl Settings {
    /// Whether both settings lead to the same cluster and use the same keys.
    pub fn has_same_buckets(&self, other: &Settings) -> bool {
        self.place == other.place && self.is_same_cluster(other)
    }

    /// Whether both settings belong to the same cluster: they have a node in common.
    pub(crate) fn is_same_cluster(&self, other: &Settings) -> bool {
        self.nodes.iter().any(|node| other.nodes.contains(node))
    }
}

/// How buckets are distributed over the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The buckets are spread over this many hash tags. The key of a bucket determines its tag.
    Spread { hash_tags: u16 },
    /// All buckets are under one hash tag, so all are on one node.
    Together,
}

/// Displays the values of `place` and `hash_tags` in gateway.yaml.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Spread { hash_tags } => write!(f, "spread over {hash_tags} hash_tags"),
            Place::Together => f.write_str("together"),
        }
    }
}

impl Place {
    pub const DEFAULT: Place = Place::Spread { hash_tags: 16 };

    pub fn hash_tags(self) -> u16 {
        match self {
            Place::Spread { hash_tags } => hash_tags.max(1),
            Place::Together => 1,
        }
    }
}

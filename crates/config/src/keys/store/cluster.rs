//! Reads `cluster` of `redis`: the nodes to ask first, and how buckets are distributed over all nodes.

use serde_json::json;

use crate::keys::store::host_ports::{host_port, host_ports, wrong_host_port};
use crate::language::key::{Key, Mapping, Type, names};
use crate::language::reader::Field;
use crate::language::shape::{List, Shape};
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use base::host_port::HostPort;
use stores::redis::cluster::{DEFAULT_PORT, MOST_HASH_TAGS, Place, Settings};

const NODE: ValueKind<ParseText<HostPort>> = host_port(
    "be a host with a port, like n1.internal:6379 or [2001:db8::1]:6379",
    |field, must| wrong_host_port(field, must, "a cluster has one database, 0: nothing follows the port"),
    |text| HostPort::parse(text, DEFAULT_PORT),
);

const NODES: ValueKind<ReadField<Vec<HostPort>>> = ValueKind::new(
    "list of `HOST:PORT`",
    Shape::List(List::non_empty(&NODE.shape, "name at least one node")),
    |field| host_ports(&field, NODE),
);

/// The value of `place`, without the number of hash tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceName {
    Spread,
    Together,
}

const PLACES: [(&str, PlaceName); 2] = [("spread", PlaceName::Spread), ("together", PlaceName::Together)];

pub(crate) static CLUSTER: Mapping = Mapping {
    heading: Some("key in `cluster`"),
    definition: None,
    keys: &[
        Key::required("nodes", NODES.declared(), "Nodes to ask for the others; port 6379 by default."),
        Key::default(
            "place",
            Type::Choice(&names(&PLACES)),
            "spread",
            "Where buckets are. `spread`: each on the node that its key leads to. `together`: all on one node.",
        ),
        Key::default(
            "hash_tags",
            Type::Whole { least: 1, most: MOST_HASH_TAGS },
            "16",
            "With `spread`: the number of hash tags. At least five for each master.",
        ),
    ],
    constraints: || {
        json!({
            "if": {"properties": {"place": {"const": "together"}}, "required": ["place"]},
            "then": {"properties": {"hash_tags": false}}
        })
    },
};

pub(crate) fn cluster(field: Field<'_>) -> Option<Settings> {
    let section = field.section(&CLUSTER)?;
    // Unknown nodes become `localhost`, to avoid a warning that a password is sent without TLS.
    let nodes = section.need("nodes").and_then(|field| NODES.read(field));
    let place = section.choice("place", &PLACES);
    let hash_tags = section.whole("hash_tags");
    if place == Some(PlaceName::Together) {
        section.unwanted("hash_tags", "must not stand beside `place: together`: that is one");
    }
    section.close();
    let place = match place? {
        PlaceName::Spread => Place::Spread { hash_tags: u16::try_from(hash_tags?).ok()? },
        PlaceName::Together => Place::Together,
    };
    Some(Settings { nodes: nodes?, place })
}

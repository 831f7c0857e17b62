//! Reads `cluster` of `redis`: the nodes to ask for the others, and how buckets are distributed over them.

use serde_json::json;

use super::key::{Key, Mapping, Type, names};
use super::reader::{Field, all};
use super::value_kind::{ReadField, ValueKind};
use super::value_types::reference;
use crate::base::host_port::HostPort;
use crate::store::redis::cluster::{DEFAULT_PORT, MOST_HASH_TAGS, Place, Settings};

const NODE_SHAPE: &str = "must be a host with a port, like n1.internal:6379 or [2001:db8::1]:6379";

const NODES: ValueKind<ReadField<Vec<HostPort>>> = ValueKind {
    text: "list of `HOST:PORT`",
    schema: || {
        json!({
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [
                {
                    "type": "string",
                    "pattern": r"^([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$",
                    "patternErrorMessage": NODE_SHAPE
                },
                reference()
            ]}
        })
    },
    read: nodes,
};

/// The value of `place`, without the number of hash tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceName {
    Spread,
    Together,
}

const PLACES: [(&str, PlaceName); 2] = [("spread", PlaceName::Spread), ("together", PlaceName::Together)];

pub static CLUSTER: Mapping = Mapping {
    heading: Some("key in `cluster`"),
    definition: None,
    keys: &[
        Key::required(
            "nodes",
            NODES.declared(),
            "Nodes to ask for the others, at least one. Without a port it is 6379.",
        ),
        Key::default(
            "place",
            Type::Choice(&names(&PLACES)),
            "spread",
            "Where the buckets of one request are: with `spread` each on the node that its key leads to, with `together` all \
             buckets of all requests on one node.",
        ),
        Key::default(
            "hash_tags",
            Type::Whole { least: 1, most: MOST_HASH_TAGS },
            "16",
            "With `spread`: under how many hash tags the buckets are, which lie on the masters in equal parts. At least five \
             for each master.",
        ),
    ],
    constraints: || {
        json!({
            "if": {"properties": {"place": {"const": "together"}}, "required": ["place"]},
            "then": {"properties": {"hash_tags": false}}
        })
    },
};

pub fn cluster(field: Field<'_>) -> Option<Settings> {
    let section = field.section(&CLUSTER)?;
    // In place of unknown nodes, some that every password may be sent to.
    let nodes = section.need("nodes").and_then(NODES.read);
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

fn nodes(field: Field<'_>) -> Option<Vec<HostPort>> {
    let members = field.list()?;
    if members.is_empty() {
        field.must("name at least one node");
        return None;
    }
    all(members, |field| field.known_or("localhost", node))
}

fn node(field: Field<'_>) -> Option<HostPort> {
    let node = HostPort::parse(field.text()?, DEFAULT_PORT);
    if node.is_none() {
        // A URL may hold a password.
        let field = if field.text().is_some_and(|text| text.contains('@')) { field.hidden() } else { field };
        field.must("be a host with a port, like n1.internal:6379 or [2001:db8::1]:6379");
    }
    node
}

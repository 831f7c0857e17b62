//! Reads values in the tree of a file of Kong, which has many more keys than are imported.

use std::collections::HashMap;

use super::super::Losses;
use crate::language::tree::{Node, Value};

/// Returns the value of a key. `None` if the node is no mapping, or lacks the key, or has `null` there.
pub(super) fn get<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Value::Map(entries) = &node.value else { return None };
    let value = &entries.iter().find(|entry| entry.key == key)?.value;
    (text(value) != Some("null")).then_some(value)
}

/// Returns the members of a list. Empty if the key is missing, or is no list.
pub(super) fn members<'n>(node: &'n Node, key: &str) -> &'n [Node] {
    match get(node, key).map(|node| &node.value) {
        Some(Value::List(members)) => members,
        _ => &[],
    }
}

/// Returns the text of a single value.
pub(super) fn text(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar(scalar) => Some(&scalar.text),
        _ => None,
    }
}

/// Returns the text of a key.
pub(super) fn text_of<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    text(get(node, key)?)
}

/// Returns the texts of a list.
pub(super) fn texts(node: &Node, key: &str) -> Vec<String> {
    members(node, key).iter().filter_map(text).map(str::to_owned).collect()
}

/// Returns the name or id to which a key refers: `service: name`, or `service: {name: name}`.
fn reference<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    let target = get(node, key)?;
    text(target).or_else(|| NAMES.into_iter().find_map(|key| text_of(target, key)))
}

/// The keys that name an entity. The first one that it has is its name here.
const NAMES: [&str; 4] = ["name", "username", "custom_id", "id"];

/// A kind of entity to which others refer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Service,
    Route,
    Consumer,
}

impl Kind {
    /// Returns the key of a reference to such an entity.
    fn key(self) -> &'static str {
        match self {
            Kind::Service => "service",
            Kind::Route => "route",
            Kind::Consumer => "consumer",
        }
    }
}

/// The names of all services, routes and consumers, by each of the names and ids to which a reference may refer.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<(Kind, String), String>);

impl Names {
    pub(super) fn read(root: &Node) -> Names {
        let mut names = Names::default();
        let services = members(root, "services");
        let routes = services.iter().flat_map(|service| members(service, "routes")).chain(members(root, "routes"));
        services.iter().for_each(|service| names.add(Kind::Service, service));
        routes.for_each(|route| names.add(Kind::Route, route));
        members(root, "consumers").iter().for_each(|consumer| names.add(Kind::Consumer, consumer));
        names
    }

    fn add(&mut self, kind: Kind, node: &Node) {
        let name = name(kind, node);
        for key in NAMES {
            let known = text_of(node, key).map(str::to_owned);
            known.into_iter().for_each(|known| _ = self.0.entry((kind, known)).or_insert_with(|| name.clone()));
        }
    }

    /// Returns the name of the entity to which a node refers. `Some(None)`: it refers to none. `None` after adding a loss
    /// for a reference to an entity that does not exist.
    pub(super) fn referred(&self, kind: Kind, node: &Node, file: &str, losses: &mut Losses) -> Option<Option<String>> {
        let key = kind.key();
        let Some(target) = get(node, key) else { return Some(None) };
        let named = reference(node, key);
        let found = named.and_then(|named| self.0.get(&(kind, named.to_owned())));
        if found.is_none() {
            let what = format!("{} is no {key} of this file: what refers to it is left out", named.unwrap_or("this"));
            losses.add(file, target.position, key, what);
        }
        found.map(|found| Some(found.clone()))
    }
}

/// Returns the name of an entity: its own, its id, or one by its place.
pub(super) fn name(kind: Kind, node: &Node) -> String {
    let own = NAMES.into_iter().find_map(|key| text_of(node, key));
    own.map_or_else(|| format!("{}-{}", kind.key(), node.position.line), str::to_owned)
}

//! Points at a place in the file that a lint speaks of.

use crate::base::position::Position;
use crate::base::time::Timestamp;
use crate::config::reader::{join, push_key};
use crate::config::tree::{Node, Value};
use crate::config::warning::Warning;

/// A value in the file, with its path.
#[derive(Clone, Debug)]
pub struct Location<'t> {
    node: &'t Node,
    path: String,
}

/// What a lint has found, not named yet.
#[derive(Clone, Debug)]
pub struct Finding {
    place: Position,
    path: String,
    what: String,
    hint: String,
    from: Option<Timestamp>,
}

impl<'t> Location<'t> {
    pub fn root(node: &'t Node) -> Location<'t> {
        Location { node, path: String::new() }
    }

    /// The value of a key; where it is missing, the mapping in which it is.
    pub fn key(&self, key: &str) -> Location<'t> {
        let node = self.find(key).unwrap_or(self.node);
        Location { node, path: join(&self.path, key) }
    }

    /// The value of a mapping's pair, by its number.
    pub fn pair(&self, number: usize) -> Location<'t> {
        let Value::Map(map) = &self.node.value else { return self.clone() };
        let Some(entry) = map.get(number) else { return self.clone() };
        let mut path = self.path.clone();
        push_key(&mut path, &entry.key);
        Location { node: &entry.value, path }
    }

    pub fn member(&self, number: usize) -> Location<'t> {
        let node = match &self.node.value {
            Value::List(list) => list.get(number).unwrap_or(self.node),
            _ => self.node,
        };
        Location { node, path: format!("{}[{number}]", self.path) }
    }

    pub fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// A scalar, as it is written.
    pub fn text(&self) -> Option<&'t str> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    pub fn finding(&self, what: impl Into<String>, hint: impl Into<String>) -> Finding {
        let (place, path) = (self.node.place, self.path.clone());
        Finding { place, path, what: what.into(), hint: hint.into(), from: None }
    }

    fn find(&self, key: &str) -> Option<&'t Node> {
        let Value::Map(map) = &self.node.value else { return None };
        map.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }
}

impl Finding {
    /// It is one from this moment on.
    pub fn from(self, moment: Timestamp) -> Finding {
        Finding { from: Some(moment), ..self }
    }

    pub fn named(self, name: &'static str) -> Warning {
        let Finding { place, path, what, hint, from } = self;
        Warning { name, place, path, what, hint, from }
    }
}

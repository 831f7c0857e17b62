//! Locates values in the text of a file, for the findings of lints.

use crate::language::key_path::{join, push_key};
use crate::language::problem::Problem;
use crate::language::remarks::Remark;
use crate::language::tree::{Node, Value};
use crate::language::warning::Warning;
use base::position::Position;
use base::time::Timestamp;

/// The location of a value in the file: its position and its path.
#[derive(Clone, Debug)]
pub struct Location<'t> {
    node: &'t Node,
    path: String,
}

/// A weakness that a lint has found in the file. With the name of the lint, a finding becomes a warning.
#[derive(Clone, Debug)]
pub struct Finding {
    position: Position,
    path: String,
    what: String,
    hint: String,
    from: Option<Timestamp>,
}

impl<'t> Location<'t> {
    pub fn root(node: &'t Node) -> Location<'t> {
        Location { node, path: String::new() }
    }

    /// Returns the location of the value of a key in this mapping. A missing key has the position of the mapping.
    pub fn key(&self, key: &str) -> Location<'t> {
        let node = self.find(key).unwrap_or(self.node);
        Location { node, path: join(&self.path, key) }
    }

    /// Returns the location of the value of the entry at this index of a mapping.
    pub fn pair(&self, index: usize) -> Location<'t> {
        let Value::Map(map) = &self.node.value else { return self.clone() };
        let Some(entry) = map.get(index) else { return self.clone() };
        let mut path = self.path.clone();
        push_key(&mut path, &entry.key);
        Location { node: &entry.value, path }
    }

    /// Returns the location of the member at this index of a list.
    pub fn member(&self, index: usize) -> Location<'t> {
        let node = match &self.node.value {
            Value::List(list) => list.get(index).unwrap_or(self.node),
            _ => self.node,
        };
        Location { node, path: format!("{}[{index}]", self.path) }
    }

    pub fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Returns the text of a single value, as the file writes it. `None` for a list or a mapping.
    pub fn text(&self) -> Option<&'t str> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    pub fn finding(&self, what: impl Into<String>, hint: impl Into<String>) -> Finding {
        let (position, path) = (self.node.position, self.path.clone());
        Finding { position, path, what: what.into(), hint: hint.into(), from: None }
    }

    fn find(&self, key: &str) -> Option<&'t Node> {
        let Value::Map(map) = &self.node.value else { return None };
        map.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }
}

impl Finding {
    /// Makes a finding from a remark that was noted while the file was read.
    pub fn of_remark(Remark { position, path, what }: &Remark, hint: &str) -> Finding {
        let (path, what, hint) = (path.clone(), what.clone(), hint.to_owned());
        Finding { position: *position, path, what, hint, from: None }
    }

    /// Returns the finding with the time from which it holds.
    pub fn from(self, moment: Timestamp) -> Finding {
        Finding { from: Some(moment), ..self }
    }

    pub fn into_problem(self) -> Problem {
        let Finding { position, path, what, hint, .. } = self;
        Problem { file: None, position: Some(position), path, what, hint: Some(hint) }
    }

    pub fn named(self, name: &'static str) -> Warning {
        let Finding { position, path, what, hint, from } = self;
        Warning { name, position, path, what, hint, from }
    }
}

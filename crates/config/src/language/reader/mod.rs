//! Reads typed values from the tree, and reports every invalid value.
//!
//! A [`Section`] is a mapping with its declaration, from which it takes bounds and defaults. Keys without a declaration
//! are reported, with the nearest declared name as a hint. Every function here that returns an `Option` returns `None`
//! after it has reported a problem. The rest of the file is checked too.

mod section;
mod shape_check;
mod single_value;

pub(crate) use section::Section;
pub(crate) use shape_check::ReportMismatch;

use std::fmt;
use std::path::PathBuf;

use crate::language::disclosure::{Disclosure, without_quotations};
use crate::language::key::Mapping;
use crate::language::key_path::join;
use crate::language::likely_causes::{hint_for_missing_space, hint_for_text};
use crate::language::problem::{ListKey, ReadList, Report};
use crate::language::remarks::{FileRole, ListSize};
use crate::language::tree::{self, Entry, Kind, Node, Style, Value};
use base::position::Position;

/// A value of the file, with its path and the report that collects its problems.
#[derive(Clone, Debug)]
pub(crate) struct Field<'t> {
    node: &'t Node,
    /// The position at which problems are reported: the start of the value, or of its key if the key is invalid.
    position: Position,
    path: String,
    report: &'t Report,
    disclosure: Disclosure,
}

impl<'t> Field<'t> {
    pub(crate) fn root(node: &'t Node, report: &'t Report) -> Field<'t> {
        Field::new(node, String::new(), report)
    }

    fn new(node: &'t Node, path: String, report: &'t Report) -> Field<'t> {
        Field { node, position: node.position, path, report, disclosure: Disclosure::Shown }
    }

    /// Returns the position at which problems of the value are reported.
    pub(crate) fn position(&self) -> Position {
        self.position
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn is_null(&self) -> bool {
        self.scalar().is_some_and(|scalar| scalar.kind() == Kind::Null)
    }

    /// Returns the field with another position for its problems, such as the position of its key.
    pub(crate) fn at(self, position: Position) -> Field<'t> {
        Field { position, ..self }
    }

    /// Returns the field with its value hidden: messages do not show the value, because it may be a secret.
    pub(crate) fn hidden(self) -> Field<'t> {
        if let Some(text) = self.text_if_any() {
            self.report.conceal(text);
        }
        Field { disclosure: Disclosure::Hidden, ..self }
    }

    /// Reports what the value must be, and what it is, as in "must be text, is 7".
    pub(crate) fn must(&self, hold: impl fmt::Display) {
        self.must_hinting(hold, None);
    }

    /// Reports what the value must be, and what it is, together with a hint.
    pub(crate) fn must_hinting(&self, hold: impl fmt::Display, hint: Option<String>) {
        match self.disclosure().why_not() {
            Some(why_not) => self.wrong(format!("must {hold}; {why_not}"), hint),
            None => self.wrong(format!("must {hold}, is {}", self.node.found()), hint),
        }
    }

    /// Whether a report may show the value. Lists and mappings are not shown, so nothing of them is hidden.
    fn disclosure(&self) -> Disclosure {
        match (&self.node.value, self.disclosure) {
            (Value::Scalar(scalar), Disclosure::Shown) => scalar.disclosure,
            (Value::Scalar(_), other) => other,
            (Value::List(_) | Value::Map(_), _) => Disclosure::Shown,
        }
    }

    /// Reports a problem of the value. An unresolved reference has already been reported and gets no second problem.
    /// For an unknown value, reports that it must be known.
    pub(crate) fn wrong(&self, what: impl fmt::Display, hint: Option<String>) {
        match self.style() {
            Some(Style::Unresolved) => return,
            // The value is unknown, but the purpose of the reading needs it.
            Some(Style::Unknown) => return self.report.add_unknown(self.node.position, &self.path),
            _ => {}
        }
        let text = self.scalar().map(|scalar| &*scalar.text);
        let (what, hint) = match (self.disclosure(), text) {
            (Disclosure::Shown, text) => (what.to_string(), hint.or_else(|| hint_for_text(text?))),
            (_, None) => (what.to_string(), hint),
            // A hint that was made of the value would show what it is.
            (Disclosure::FromVariable, Some(text)) => (without_quotations(&what.to_string(), text), None),
            (Disclosure::Hidden, Some(text)) => (without_quotations(&what.to_string(), text), hint),
        };
        self.report.add_with_hint(self.position, &self.path, what, hint);
    }

    /// Whether the value is unknown here. This happens only if the configuration is examined.
    pub(crate) fn is_unknown(&self) -> bool {
        self.style() == Some(Style::Unknown)
    }

    /// Returns whether the value may be unknown. If so, records that it is unknown.
    pub(crate) fn allows_unknown(&self, what: String) -> bool {
        self.report.allows_unknown(self.position, &self.path, what)
    }

    /// Returns whether the file is checked before a start. If so, records that only the running gateway can read this
    /// secret.
    pub(crate) fn allows_hidden(&self, what: String) -> bool {
        self.report.allows_hidden(self.position, &self.path, what)
    }

    /// Reads the value with `read`. If the value is unknown, the text `stand_in` is read in its place.
    pub(crate) fn known_or<T>(&self, stand_in: &str, read: impl FnOnce(Field<'_>) -> Option<T>) -> Option<T> {
        if self.is_unknown() { read_text(stand_in, read) } else { read(self.clone()) }
    }

    /// Records that the value names this file.
    pub(crate) fn note_named_file(&self, file: PathBuf, role: FileRole) {
        self.report.note_named_file(self.position, &self.path, file, role);
    }

    /// Records the length of a list that was read from the file `file`, which this value names.
    pub(crate) fn note_list(&self, file: &str, entries: usize, max_shrink: u8) {
        let (file, path, position) = (file.to_owned(), self.path.clone(), self.position);
        self.report.note_list(ListSize { file, position, path, entries, max_shrink });
    }

    /// Reports a problem in a file that this value names.
    pub(crate) fn elsewhere(&self, file: &str, position: Option<Position>, what: String) {
        self.report.add_elsewhere(file, position, &self.path, what);
    }

    /// Reports the problems of a file that this value names, but at most `most` of them.
    pub(crate) fn adopt(&self, file: &str, most: usize, of_file: Report) {
        self.report.adopt(file, most, of_file);
    }

    /// Returns the list in the file that this value names. The file is read only once. `None` if the list has a
    /// problem.
    pub(crate) fn list_once(&self, key: ListKey, read: impl FnOnce() -> Option<ReadList>) -> Option<ReadList> {
        self.report.list_once(key, read)
    }

    /// Returns the entries of a mapping. Empty if the value is not a mapping.
    pub(crate) fn entries(&self) -> &'t [Entry] {
        match &self.node.value {
            Value::Map(entries) => entries,
            Value::List(_) | Value::Scalar(_) => &[],
        }
    }

    /// Returns the value as a mapping with keys of `mapping`. `None` after reporting that the value is not a mapping.
    pub(crate) fn section(self, mapping: &'static Mapping) -> Option<Section<'t>> {
        match &self.node.value {
            Value::Map(entries) => {
                let (position, path, report) = (self.node.position, self.path, self.report);
                Some(Section { position, path, entries, mapping, report })
            }
            _ => {
                let hint = self.text_if_any().and_then(|text| hint_for_missing_space(text, &mapping.names()));
                self.must_hinting("be a mapping", hint.or_else(|| mapping.hint_for_keys()));
                None
            }
        }
    }

    /// Returns the keys of a mapping with their positions and values. `None` after reporting another value.
    pub(crate) fn pairs(&self) -> Option<Vec<(&'t str, Position, Field<'t>)>> {
        let Value::Map(entries) = &self.node.value else {
            let hint = match (&self.node.value, self.text_if_any()) {
                (Value::List(_), _) => Some("write each entry as `NAME: …`, without a dash".to_owned()),
                (_, Some(path)) if path.starts_with('/') => Some(format!("write `{{path: {path}}}`")),
                _ => None,
            };
            self.must_hinting("be a mapping", hint);
            return None;
        };
        let pair = |entry: &'t Entry| {
            let field = Field::new(&entry.value, join(&self.path, &entry.shown_key()), self.report);
            (&*entry.key, entry.key_position, field)
        };
        Some(entries.iter().map(pair).collect())
    }

    /// Returns the members of a list of mappings. `None` after reporting that the value is something else.
    pub(crate) fn list_of_mappings(&self) -> Option<Vec<Field<'t>>> {
        if matches!(self.node.value, Value::Scalar(_)) {
            self.must("be a list");
            return None;
        }
        self.list()
    }

    /// Returns the members of a list. `None` after reporting that the value is not a list.
    pub(crate) fn list(&self) -> Option<Vec<Field<'t>>> {
        let Value::List(list) = &self.node.value else {
            let single = self.scalar().filter(|scalar| scalar.kind() != Kind::Null && !scalar.text.contains(','));
            let single = single.filter(|_| self.disclosure() == Disclosure::Shown);
            let hint = match self.is_map() {
                true => Some("each entry begins with `- `".to_owned()),
                false => single.map(|scalar| format!("write `[{}]`", scalar.as_member())),
            };
            self.must_hinting("be a list", hint);
            return None;
        };
        Some(self.members_of(list))
    }

    /// Returns the members of a list. `None`, without a report, if the value is not a list.
    pub(crate) fn members_if_list(&self) -> Option<Vec<Field<'t>>> {
        match &self.node.value {
            Value::List(list) => Some(self.members_of(list)),
            Value::Map(_) | Value::Scalar(_) => None,
        }
    }

    fn members_of(&self, list: &'t [Node]) -> Vec<Field<'t>> {
        let member =
            |(index, node): (usize, &'t Node)| Field::new(node, format!("{}[{index}]", self.path), self.report);
        list.iter().enumerate().map(member).collect()
    }

    /// Returns the values of a mapping. `None`, without a report, if the value is not a mapping.
    pub(crate) fn values_if_map(&self) -> Option<Vec<Field<'t>>> {
        let value = |entry: &'t Entry| Field::new(&entry.value, join(&self.path, &entry.key), self.report);
        self.is_map().then(|| self.entries().iter().map(value).collect())
    }

    /// Returns the members of a list, or the value itself as the only member if it is not a list.
    pub(crate) fn one_or_list(&self) -> Option<Vec<Field<'t>>> {
        match &self.node.value {
            Value::List(_) => self.list(),
            _ => Some(vec![self.clone()]),
        }
    }

    /// Whether the value is a list of mappings without this key. The list must have at least one member.
    pub(crate) fn is_list_without(&self, key: &str) -> bool {
        let lacks =
            |node: &Node| matches!(&node.value, Value::Map(entries) if entries.iter().all(|entry| entry.key != key));
        matches!(&self.node.value, Value::List(members) if !members.is_empty() && members.iter().all(lacks))
    }

    /// Whether the value is a list of mappings that all have this key. The list must have at least one member.
    pub(crate) fn is_list_with(&self, key: &str) -> bool {
        let has =
            |node: &Node| matches!(&node.value, Value::Map(entries) if entries.iter().any(|entry| entry.key == key));
        matches!(&self.node.value, Value::List(members) if !members.is_empty() && members.iter().all(has))
    }

    pub(crate) fn is_list(&self) -> bool {
        matches!(self.node.value, Value::List(_))
    }

    /// Whether this value and `other` have the same content and types.
    pub(crate) fn is_like(&self, other: &Field<'_>) -> bool {
        match (&self.node.value, &other.node.value) {
            (Value::Scalar(one), Value::Scalar(other)) => one.text == other.text && one.kind() == other.kind(),
            (one, other) => one == other,
        }
    }

    pub(crate) fn is_map(&self) -> bool {
        matches!(self.node.value, Value::Map(_))
    }

    /// Whether the value is an empty mapping or an empty list.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.node.value {
            Value::Map(map) => map.is_empty(),
            Value::List(list) => list.is_empty(),
            Value::Scalar(_) => false,
        }
    }
}

/// Reads a default, or the text that replaces an unknown value. Tests make sure that these texts have no problems.
fn read_text<T>(text: &str, read: impl FnOnce(Field<'_>) -> Option<T>) -> Option<T> {
    let report = Report::default();
    let node = tree::read(text.as_bytes(), &report).ok()?;
    read(Field::root(&node, &report))
}

/// Reads every member with `read`, even after an invalid member. `None` if any member was invalid.
pub(crate) fn all<'t, T>(members: Vec<Field<'t>>, read: impl FnMut(Field<'t>) -> Option<T>) -> Option<Vec<T>> {
    let read: Vec<Option<T>> = members.into_iter().map(read).collect();
    read.into_iter().collect()
}

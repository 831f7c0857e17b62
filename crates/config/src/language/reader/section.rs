//! Reads the keys of a mapping by their declarations, and reports keys without a declaration.

use std::fmt;

use super::{Field, read_text};
use crate::language::key::{Key, Mapping, Presence, Type};
use crate::language::key_path::join;
use crate::language::likely_causes::hint_for_missing_space;
use crate::language::problem::Report;
use crate::language::size;
use crate::language::suggest::nearest;
use crate::language::tree::Entry;
use base::position::Position;
use base::time::Micros;

/// A mapping of the file, with the declarations of the keys that it may have.
#[derive(Debug)]
pub(crate) struct Section<'t> {
    pub(super) position: Position,
    pub(super) path: String,
    pub(super) entries: &'t [Entry],
    pub(super) mapping: &'static Mapping,
    pub(super) report: &'t Report,
}

impl<'t> Section<'t> {
    /// Returns the value of a key. `None` if the key is missing.
    pub(crate) fn get(&self, name: &str) -> Option<Field<'t>> {
        debug_assert!(self.mapping.key(name).is_some(), "`{name}` is not declared: {:?}", self.mapping.names());
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        Some(Field::new(&entry.value, join(&self.path, name), self.report))
    }

    /// Returns the value of a required key. `None` after reporting that the key is missing.
    pub(crate) fn need(&self, name: &str) -> Option<Field<'t>> {
        let field = self.get(name);
        if field.is_none() {
            self.wrong(name, "missing");
        }
        field
    }

    /// Reads a key that may be missing. `Some(None)`: the key is missing or its value unknown. `None`: the value is
    /// invalid.
    pub(crate) fn optional<T>(&self, name: &str, read: impl FnOnce(Field<'t>) -> Option<T>) -> Option<Option<T>> {
        match self.get(name) {
            Some(field) if !field.is_unknown() => read(field).map(Some),
            _ => Some(None),
        }
    }

    /// Whether a key is present, but its value is unknown because the configuration is only examined.
    pub(crate) fn is_unknown(&self, name: &str) -> bool {
        self.get(name).is_some_and(|field| field.is_unknown())
    }

    /// Reads a key that has a default. If the key is missing or its value is unknown, the declared default is read.
    pub(crate) fn value<T>(&self, name: &str, read: impl FnOnce(Field<'_>) -> Option<T>) -> Option<T> {
        if let Some(field) = self.get(name).filter(|field| !field.is_unknown()) {
            return read(field);
        }
        let Some(Key { presence: Presence::Default(default), .. }) = self.mapping.key(name) else { return None };
        read_text(default, read)
    }

    /// Reads a key whose value is a whole number within the declared bounds. `None` after reporting a problem.
    pub(crate) fn whole(&self, name: &str) -> Option<u64> {
        let Some(Key { kind: Type::Whole { least, most }, .. }) = self.mapping.key(name) else { return None };
        self.value(name, |field| field.whole(*least..=*most))
    }

    /// Reads a key as [`Section::whole`] does, as a `usize`. `None` after reporting a problem.
    pub(crate) fn count(&self, name: &str) -> Option<usize> {
        usize::try_from(self.whole(name)?).ok()
    }

    /// Reads a key whose value is a number of bytes within the declared bounds. `None` after reporting a problem.
    pub(crate) fn size(&self, name: &str) -> Option<usize> {
        let Some(Key { kind: Type::Size { least, most }, .. }) = self.mapping.key(name) else { return None };
        let found = self.value(name, |field| {
            let found = size::parse(field.written()?).filter(|size| (*least..=*most).contains(size));
            if found.is_none() {
                field.must(format_args!("be a size from {} to {}", size::print(*least), size::print(*most)));
            }
            found
        });
        usize::try_from(found?).ok()
    }

    pub(crate) fn duration(&self, name: &str) -> Option<Micros> {
        self.value(name, |field| field.duration())
    }

    pub(crate) fn positive_duration(&self, name: &str) -> Option<Micros> {
        self.value(name, |field| field.positive_duration())
    }

    pub(crate) fn choice<T: Copy>(&self, name: &str, choices: &[(&'static str, T)]) -> Option<T> {
        self.value(name, |field| field.choice(choices))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == name)
    }

    /// Whether the mapping has no key except `name`.
    pub(crate) fn has_only(&self, name: &str) -> bool {
        self.entries.iter().all(|entry| entry.key == name)
    }

    /// Reports a problem of a key, at the start of the mapping. Used for problems such as a missing key.
    pub(crate) fn wrong(&self, name: &str, what: impl fmt::Display) {
        self.report.add(self.position, join(&self.path, name), what.to_string());
    }

    /// Reports, at the position of a key, that it must not be there or needs another key. Ignores a missing key.
    pub(crate) fn unwanted(&self, name: &str, what: impl fmt::Display) {
        if let Some(entry) = self.entries.iter().find(|entry| entry.key == name) {
            self.report.add(entry.key_position, join(&self.path, name), what.to_string());
        }
    }

    /// Reports the keys of the file that are not declared. Called last, so that these problems follow all others.
    pub(crate) fn close(self) {
        self.close_except(&[]);
    }

    /// Reports the keys that are not declared, as [`Section::close`] does, except the keys that are `reported` already.
    pub(crate) fn close_except(self, reported: &[&str]) {
        let names = self.mapping.names();
        let known = |key: &str| names.contains(&key) || reported.contains(&key);
        for entry in self.entries.iter().filter(|entry| !known(&entry.key)) {
            let hint = hint_for_missing_space(&entry.key, &names);
            let hint = hint.or_else(|| self.report.belongs_elsewhere(self.mapping, &entry.key));
            let hint = hint.or_else(|| nearest(&entry.key, &names));
            self.report.add_with_hint(entry.key_position, join(&self.path, &entry.shown_key()), "unknown key", hint);
        }
    }
}

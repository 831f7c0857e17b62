//! Reads one line of a log, whichever log it is.

use std::borrow::Cow;
use std::sync::Arc;

use super::combined;
use super::field_map::FieldMap;
use super::foreign_entry::ForeignEntry;
use super::json_lines;
use super::own_entry::OwnEntry;
use super::timestamps::{Grain, LogTimestamp};
use crate::access_log_line;
use crate::base::time::Timestamp;

/// One request, and when it was decided or, if the log does not say that, when it says that it was.
#[derive(Debug)]
pub struct Entry {
    pub at: Timestamp,
    pub grain: Grain,
    pub told: EntrySource,
}

/// By whom.
#[derive(Debug)]
pub enum EntrySource {
    /// Another server, or an application.
    Foreign(Box<ForeignEntry>),
    /// Ourselves.
    Ours(Box<OwnEntry>),
}

/// How lines are to be read.
#[derive(Clone, Debug)]
pub enum Format {
    /// By what each begins with: an object is ours, anything else nginx's.
    Found,
    Ours,
    Combined,
    /// JSON, by a map.
    Mapped(Arc<FieldMap>),
}

/// What a line came to.
#[derive(Debug)]
pub enum ReadResult {
    Entry(Entry),
    /// Of ours: it was answered before any rule was asked.
    Beside,
    /// What was wanted of it.
    Unreadable(Cow<'static, str>),
}

impl Format {
    pub fn read(&self, line: &[u8]) -> ReadResult {
        let object = line.trim_ascii_start().first() == Some(&b'{');
        match self {
            Format::Found if object => ours(line),
            Format::Ours => ours(line),
            Format::Found | Format::Combined => match combined::read(line) {
                Ok(read) => foreign(read),
                Err(wanted) => ReadResult::Unreadable(Cow::Borrowed(wanted)),
            },
            Format::Mapped(fields) => match json_lines::read(fields, line) {
                Ok(read) => foreign(read),
                Err(wanted) => ReadResult::Unreadable(Cow::Owned(wanted)),
            },
        }
    }
}

fn foreign((LogTimestamp { at, grain }, asked): (LogTimestamp, ForeignEntry)) -> ReadResult {
    ReadResult::Entry(Entry { at, grain, told: EntrySource::Foreign(Box::new(asked)) })
}

fn ours(line: &[u8]) -> ReadResult {
    match access_log_line::Line::read(line) {
        Ok(line) => match OwnEntry::new(&line) {
            Some(logged) => {
                // The store decided when the answer came, not when the request did.
                let at = line.decision_us.map_or(line.time, |span| line.time.plus(span));
                ReadResult::Entry(Entry { at, grain: Grain::Fine, told: EntrySource::Ours(Box::new(logged)) })
            }
            None => ReadResult::Beside,
        },
        Err(error) => {
            ReadResult::Unreadable(Cow::Owned(format!("no line of ours: {error}; other JSON needs --map to be read")))
        }
    }
}

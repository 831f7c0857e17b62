//! Reads one line of a log, in any supported format.

use std::borrow::Cow;
use std::sync::Arc;

use super::combined;
use super::field_map::FieldMap;
use super::foreign_entry::ForeignEntry;
use super::json_lines;
use super::own_entry::OwnEntry;
use super::timestamps::{Grain, LogTimestamp};
use base::time::Timestamp;
use decision::access_log_line;

/// One request of a log. `at` is the time of the decision. If the line does not have it, `at` is the line's time.
#[derive(Debug)]
pub struct Entry {
    pub at: Timestamp,
    /// The time at which the request ended. `None` if the log does not record this time.
    pub end: Option<Timestamp>,
    pub grain: Grain,
    pub source: EntrySource,
}

/// The recorded values of a request, by the kind of log.
#[derive(Debug)]
pub enum EntrySource {
    /// The request is from the log of another server or of an application.
    Foreign(Box<ForeignEntry>),
    /// The request is from the access log of this gateway.
    Own(Box<OwnEntry>),
}

/// The format of a log.
#[derive(Clone, Debug)]
pub enum Format {
    /// The format is detected for each line. A line that begins with `{` is of this gateway. Any other line is of nginx
    /// or Apache.
    Detect,
    Own,
    Combined,
    /// JSON lines of another program, with a map of their fields.
    Mapped(Arc<FieldMap>),
}

/// The result of reading a line.
#[derive(Debug)]
pub enum ReadResult {
    Entry(Entry),
    /// A line of the gateway's own log about a request that was answered before any rule was checked.
    BeforeRules,
    /// A line that cannot be read. The text says what the line must have.
    Unreadable(Cow<'static, str>),
}

impl Format {
    pub fn read(&self, line: &[u8]) -> ReadResult {
        let object = line.trim_ascii_start().first() == Some(&b'{');
        match self {
            Format::Detect if object => own(line),
            Format::Own => own(line),
            Format::Detect | Format::Combined => match combined::read(line) {
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

fn foreign((LogTimestamp { at, grain }, entry): (LogTimestamp, ForeignEntry)) -> ReadResult {
    ReadResult::Entry(Entry { at, end: None, grain, source: EntrySource::Foreign(Box::new(entry)) })
}

fn own(line: &[u8]) -> ReadResult {
    match access_log_line::Line::read(line) {
        Ok(line) => match OwnEntry::new(&line) {
            Some(entry) => {
                // The buckets were charged at the time of the decision, not when the request arrived.
                let at = line.decision_us.map_or(line.time, |span| line.time.plus(span));
                let end = Some(line.time.plus(line.duration_us));
                ReadResult::Entry(Entry { at, end, grain: Grain::Fine, source: EntrySource::Own(Box::new(entry)) })
            }
            None => ReadResult::BeforeRules,
        },
        Err(error) => {
            ReadResult::Unreadable(Cow::Owned(format!("no line of ours: {error}; other JSON needs --map to be read")))
        }
    }
}

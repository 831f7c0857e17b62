//! WHAT WOULD HAVE BEEN: access logs run through the rules, on their own time.
//!
//! A [`merge`] of logs gives requests in the order of time; each is put before a [`trial`] of every file, which has buckets
//! of its own; a [`report`] says what came of it. Nothing here talks to a store or reads a clock.

pub mod line_reader;
pub mod timestamps;

pub mod combined;
pub mod field_map;
pub mod foreign_entry;
pub mod json_lines;
pub mod own_entry;

pub mod entry;
pub mod merge;

pub mod bucket;
pub mod counts;
pub mod logged_decision;
pub mod open_question;
pub mod pseudonyms;
pub mod result;
pub mod simulation;

pub mod report;
pub mod svg;
pub mod timeline;

use std::io;

use crate::access_log_line::Kind;
use crate::base::time::{Micros, Timestamp};
use crate::config::Config;
use crate::limit::attribute::Attribute;
use entry::{Entry, EntrySource};
use merge::{Merge, ReadCounts};
use report::{Comparison, OwnLog, Report};
use simulation::Simulation;
use timeline::Timeline;

/// What to try.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    pub file: &'q Config,
    /// Another one, beside it.
    pub against: Option<&'q Config>,
    /// What no request has, as far as the log does not say otherwise.
    pub absent: &'q [Attribute],
}

/// Runs logs through one file, or through two beside each other. `progress` hears now and then what has been read, and
/// up to when.
pub fn replay(
    question: Question<'_>,
    mut logs: Merge,
    progress: &mut dyn FnMut(&ReadCounts, Timestamp),
) -> io::Result<Report> {
    const NOW_AND_THEN: u64 = 4096;
    let Question { file, against, absent } = question;
    let mut trials = vec![Simulation::new(file, None, absent)];
    trials.extend(against.map(|against| Simulation::new(against, Some(file), absent)));
    let (mut timeline, mut requests, mut span, mut ours) = (Timeline::default(), 0, None, OwnLog::None);
    while let Some(entry) = logs.advance()? {
        let mut fates = [None; 2];
        let mut before = None;
        for (fate, trial) in fates.iter_mut().zip(&mut trials) {
            *fate = Some(trial.decide(&entry, before));
            before = *fate;
        }
        timeline.add(entry.at, fates);
        ours = ours.and(&entry);
        span = Some((span.map_or(entry.at, |(first, _)| first), entry.at));
        requests += 1;
        if requests % NOW_AND_THEN == 0 {
            progress(&logs.seen, entry.at);
        }
    }
    let besides = [Comparison::Nothing, Comparison::Another];
    let outcomes = trials.iter().zip(besides).map(|(trial, beside)| trial.outcome(beside)).collect();
    Ok(Report { seen: logs.seen, took: Micros(0), span, requests, ours, outcomes, timeline })
}

impl OwnLog {
    fn and(self, entry: &Entry) -> OwnLog {
        match &entry.told {
            EntrySource::Ours(logged) if logged.kind == Kind::Allowed => OwnLog::All,
            EntrySource::Ours(_) if self == OwnLog::None => OwnLog::WithoutAllowed,
            _ => self,
        }
    }
}

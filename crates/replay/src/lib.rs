//! Replay: runs access logs through the rules, by the times in the logs.
//!
//! A [`merge`] of logs yields requests in the order of time. For each file, a [`simulation`] with its own buckets
//! decides about each request. A [`report`] contains the results. Nothing in this crate calls a store or reads a clock.
//!
//! ```
//! use std::path::Path;
//!
//! use config::{Config, Environment};
//! use replay::entry::Format;
//! use replay::line_reader::Lines;
//! use replay::merge::Merge;
//! use replay::{Question, replay};
//!
//! let environment = Environment { variable: &|_| None, folder: Path::new(""), read: &|path| std::fs::read(path) };
//! let rules = "\
//! upstream: http://127.0.0.1:9000
//! policies:
//!   - name: plan
//!     rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 1}}]
//! ";
//! let config = Config::parse("gateway.yaml", rules.as_bytes(), environment).unwrap();
//! let line = "203.0.113.7 - - [24/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"-\"\n";
//! let log = Lines::over("access.log", std::io::Cursor::new(line.repeat(3))).unwrap();
//! let question = Question { file: &config, against: None, absent: &[] };
//! let report = replay(question, Merge::new([(log, Format::Combined)]), &mut |_, _| {}).unwrap();
//! assert_eq!((report.requests, report.outcomes[0].allowed, report.outcomes[0].refused), (3, 1, 2));
//! ```

pub mod line_reader;
mod timestamps;

mod combined;
pub mod field_map;
mod foreign_entry;
mod json_lines;
mod own_entry;

pub mod entry;
mod long_requests;
pub mod merge;

mod bucket;
mod budgets_in_flight;
pub mod counts;
mod destination;
mod logged_cost;
mod logged_decision;
mod open_question;
mod pseudonyms;
pub mod result;
pub mod simulation;
mod slots_in_flight;

pub mod report;
pub mod svg;
mod timeline;

use std::io;

use base::time::{Micros, Timestamp};
use config::Config;
use decision::access_log_line::Kind;
use entry::{Entry, EntrySource};
use merge::{Merge, ReadCounts};
use report::{Comparison, OwnLog, Report};
use request::attribute::Attribute;
use rules::rule::{Action, Limit};
use simulation::Simulation;
use timeline::Timeline;

/// The files and the options of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    pub file: &'q Config,
    /// A second file, to compare its results with those of `file`. If it is set, the logs were written under `file`.
    pub against: Option<&'q Config>,
    /// The attributes that count as missing from a request if the log records no value.
    pub absent: &'q [Attribute],
}

/// Replays the logs under one file, or under two files for a comparison. `progress` is called at intervals, with the
/// counts of lines and the time of the last request.
///
/// # Errors
/// If a log cannot be read, or if the gateway's own log is replayed and the `hash_key` of a file is not known.
pub fn replay(
    question: Question<'_>,
    mut logs: Merge,
    progress: &mut dyn FnMut(&ReadCounts, Timestamp),
) -> io::Result<Report> {
    const NOW_AND_THEN: u64 = 4096;
    let Question { file, against, absent } = question;
    let mut simulations = vec![Simulation::new(file, None, absent)];
    simulations.extend(against.map(|against| Simulation::new(against, Some(file), absent)));
    let (mut timeline, mut requests, mut span, mut ours) = (Timeline::default(), 0, None, OwnLog::None);
    if [Some(file), against].into_iter().flatten().any(has_holds) {
        logs.find_long_requests()?;
    }
    while let Some(entry) = logs.advance()? {
        if matches!(entry.source, EntrySource::Own(_)) && !simulations.iter().all(Simulation::knows_names) {
            return Err(io::Error::other(
                "hash_key: must be known to replay a log of ours, whose names are made with it, but is not known here",
            ));
        }
        let mut results = [None; 2];
        let mut before = None;
        for (result, simulation) in results.iter_mut().zip(&mut simulations) {
            *result = Some(simulation.decide(&entry, before));
            before = *result;
        }
        timeline.add(entry.at, results);
        ours = ours.and(&entry);
        span = Some((span.map_or(entry.at, |(first, _)| first), entry.at));
        requests += 1;
        if requests % NOW_AND_THEN == 0 {
            progress(&logs.counts, entry.at);
        }
    }
    let comparisons = [Comparison::Nothing, Comparison::Another];
    let outcomes =
        simulations.iter().zip(comparisons).map(|(simulation, comparison)| simulation.outcome(comparison)).collect();
    Ok(Report { read: logs.counts, took: Micros(0), span, requests, ours, outcomes, timeline })
}

/// Whether the file has a concurrency limit or a budget. For these, it matters when a request began.
fn has_holds(config: &Config) -> bool {
    let rules = config.rules.source().policies.iter().flat_map(|policy| &policy.rules);
    let is_held = |limit: &Limit| limit.algorithm.is_held();
    rules.into_iter().any(|rule| matches!(&rule.action, Action::Charge(limits) if limits.iter().any(is_held)))
}

impl OwnLog {
    fn and(self, entry: &Entry) -> OwnLog {
        match &entry.source {
            EntrySource::Own(logged) if logged.kind == Kind::Allowed => OwnLog::All,
            EntrySource::Own(_) if self == OwnLog::None => OwnLog::WithoutAllowed,
            _ => self,
        }
    }
}

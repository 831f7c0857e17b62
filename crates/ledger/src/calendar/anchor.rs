//! Parses the settings that define when a calendar period begins: the unit, the day, and the local time of day.

use std::fmt;

use jiff::Span;
use jiff::civil::{Date, DateTime, Time, Weekday};

/// The length of the periods of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    Day,
    Week,
    Month,
    Year,
}

/// The day on which each period of a calendar begins: a weekday, a day of the month or a day of the year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Anchor(AnchorDay);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AnchorDay {
    Every,
    OfWeek(Weekday),
    /// The day of each month, 1 to 31.
    OfMonth(i8),
    /// The day of each year, which may be 29 February.
    OfYear {
        month: i8,
        day: i8,
    },
}

/// The local time at which a period begins, in whole minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TimeOfDay(Time);

/// The part of a calendar's definition that is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidCalendar {
    Zone,
    TimeOfDay,
    /// An anchor is given for days. Only weeks, months and years have an anchor.
    DayAnchor,
    WeekAnchor,
    MonthAnchor,
    YearAnchor,
}

const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

impl CalendarUnit {
    pub const ALL: [CalendarUnit; 4] = [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year];

    /// Parses the name of a unit; `None` if the name is unknown.
    pub fn parse(text: &str) -> Option<CalendarUnit> {
        CalendarUnit::ALL.into_iter().find(|unit| unit.name() == text)
    }

    pub const fn name(self) -> &'static str {
        match self {
            CalendarUnit::Day => "day",
            CalendarUnit::Week => "week",
            CalendarUnit::Month => "month",
            CalendarUnit::Year => "year",
        }
    }
}

impl Anchor {
    /// Returns the default anchor: Monday, or the first day of the month or year.
    pub fn default_of(unit: CalendarUnit) -> Anchor {
        Anchor(match unit {
            CalendarUnit::Day => AnchorDay::Every,
            CalendarUnit::Week => AnchorDay::OfWeek(Weekday::Monday),
            CalendarUnit::Month => AnchorDay::OfMonth(1),
            CalendarUnit::Year => AnchorDay::OfYear { month: 1, day: 1 },
        })
    }

    /// Parses an anchor: `sunday` for a week, `15` for a month, `04-01` for a year.
    ///
    /// # Errors
    ///
    /// If the text is not a valid anchor for this unit. A day has no valid anchor.
    pub fn parse(unit: CalendarUnit, text: &str) -> Result<Anchor, InvalidCalendar> {
        let (day, invalid) = match unit {
            CalendarUnit::Day => (None, InvalidCalendar::DayAnchor),
            CalendarUnit::Week => {
                let weekday = WEEKDAYS.into_iter().find(|(name, _)| *name == text);
                (weekday.map(|(_, weekday)| AnchorDay::OfWeek(weekday)), InvalidCalendar::WeekAnchor)
            }
            CalendarUnit::Month => {
                let day = (1..=31).find(|day: &i8| day.to_string() == text);
                (day.map(AnchorDay::OfMonth), InvalidCalendar::MonthAnchor)
            }
            CalendarUnit::Year => (day_of_year(text), InvalidCalendar::YearAnchor),
        };
        day.map(Anchor).ok_or(invalid)
    }

    pub fn unit(self) -> CalendarUnit {
        match self.0 {
            AnchorDay::Every => CalendarUnit::Day,
            AnchorDay::OfWeek(_) => CalendarUnit::Week,
            AnchorDay::OfMonth(_) => CalendarUnit::Month,
            AnchorDay::OfYear { .. } => CalendarUnit::Year,
        }
    }

    /// Returns the first day of the week, month or year that contains `date`, or `date` itself if the unit is a day. A
    /// week begins on its anchored weekday, a month or year on its first calendar day.
    pub(super) fn first_day(self, date: Date) -> Date {
        match self.0 {
            AnchorDay::Every => date,
            AnchorDay::OfWeek(weekday) => date.saturating_sub(Span::new().days(date.weekday().since(weekday))),
            AnchorDay::OfMonth(_) => date.first_of_month(),
            AnchorDay::OfYear { .. } => date.first_of_year(),
        }
    }

    /// Moves the first day of a calendar unit, such as a month, by this number of units.
    pub(super) fn later(self, first_day: Date, units: i8) -> Date {
        let span = match self.unit() {
            CalendarUnit::Day => Span::new().days(units),
            CalendarUnit::Week => Span::new().weeks(units),
            CalendarUnit::Month => Span::new().months(units),
            CalendarUnit::Year => Span::new().years(units),
        };
        first_day.saturating_add(span)
    }

    /// Returns the day on which a period begins, in the week, month or year with this first day: the anchored day, or
    /// the last day of a month that is too short.
    pub(super) fn anchored(self, first_day: Date) -> Date {
        let in_month = |month: Date, day: i8| {
            let day = day.min(month.days_in_month());
            month.saturating_add(Span::new().days(day - 1))
        };
        match self.0 {
            AnchorDay::Every | AnchorDay::OfWeek(_) => first_day,
            AnchorDay::OfMonth(day) => in_month(first_day, day),
            AnchorDay::OfYear { month, day } => in_month(first_day.saturating_add(Span::new().months(month - 1)), day),
        }
    }
}

impl TimeOfDay {
    /// Parses a time from `00:00` to `23:59`.
    ///
    /// # Errors
    ///
    /// [`InvalidCalendar::TimeOfDay`] for anything else.
    pub fn parse(text: &str) -> Result<TimeOfDay, InvalidCalendar> {
        let time = pair(text, ":").and_then(|(hour, minute)| Time::new(hour, minute, 0, 0).ok());
        time.map(TimeOfDay).ok_or(InvalidCalendar::TimeOfDay)
    }

    pub(super) fn on(self, date: Date) -> DateTime {
        date.to_datetime(self.0)
    }
}

/// Parses a day of the year, such as `04-01`. `None` if no year has this day.
fn day_of_year(text: &str) -> Option<AnchorDay> {
    const LEAP_YEAR: i16 = 2000;
    let (month, day) = pair(text, "-")?;
    Date::new(LEAP_YEAR, month, day).ok().map(|_| AnchorDay::OfYear { month, day })
}

/// Parses two numbers of two digits each, with `separator` between them.
fn pair(text: &str, separator: &str) -> Option<(i8, i8)> {
    let number = |digits: &str| {
        let two = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit());
        two.then(|| digits.parse().ok()).flatten()
    };
    let (first, second) = text.split_once(separator)?;
    Some((number(first)?, number(second)?))
}

impl fmt::Display for CalendarUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Displays an anchor as `sunday`, `the 15th` or `04-01`. Displays nothing if the unit is a day.
impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            AnchorDay::Every => Ok(()),
            AnchorDay::OfWeek(weekday) => {
                let named = WEEKDAYS.into_iter().find(|(_, day)| *day == weekday);
                f.write_str(named.map_or("", |(name, _)| name))
            }
            AnchorDay::OfMonth(day) => {
                let suffix = match day {
                    1 | 21 | 31 => "st",
                    2 | 22 => "nd",
                    3 | 23 => "rd",
                    _ => "th",
                };
                write!(f, "the {day}{suffix}")
            }
            AnchorDay::OfYear { month, day } => write!(f, "{month:02}-{day:02}"),
        }
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0.hour(), self.0.minute())
    }
}

impl fmt::Display for InvalidCalendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidCalendar::Zone => "must be an IANA time zone such as `Europe/Berlin`",
            InvalidCalendar::TimeOfDay => "must be a time from `00:00` to `23:59`",
            InvalidCalendar::DayAnchor => "must be absent where the window is a day",
            InvalidCalendar::WeekAnchor => "must be a weekday, `monday` to `sunday`",
            InvalidCalendar::MonthAnchor => "must be a day of the month, 1 to 31",
            InvalidCalendar::YearAnchor => "must be a month and a day such as `04-01`",
        })
    }
}

impl std::error::Error for InvalidCalendar {}

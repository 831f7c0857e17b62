//! Defines the bounds of numbers and durations.

use std::ops::RangeInclusive;

use super::{Definition, Scalars, Shape, Text};
use crate::language::duration::{self, units};
use base::time::Micros;

pub(crate) const DURATION: Shape = Shape::Defined(&Definition {
    name: "duration",
    shape: Shape::Text(Text::new(Scalars::Spelling, &[concat!("^[0-9]+(ms|", units!(), ")$")], DURATION_MUST)),
});

/// The message for a value that is not a duration.
const DURATION_MUST: &str = "be a duration like 250ms, 20s, 5m, 1h or 1d";

pub(crate) const POSITIVE_DURATION: Shape = Shape::Defined(&Definition {
    name: "positive_duration",
    shape: Shape::Text(Text::new(
        Scalars::Spelling,
        &[concat!("^0*[1-9][0-9]*(ms|", units!(), ")$")],
        "be a duration above 0, like 250ms, 20s, 5m, 1h or 1d",
    )),
});

/// The shape of a whole number within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    pub least: u64,
    /// The largest number. `u64::MAX` means that no number is too large.
    pub most: u64,
    /// Numbers that are rejected although they are within the bounds.
    pub except: &'static [u64],
    /// The reason why the numbers in `except` are rejected, as in "must not be 502, which …".
    pub why: &'static str,
}

/// The shape of a number that may have decimals.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    pub least: Least,
    pub most: Option<u64>,
    /// The largest number of digits that may follow the decimal point.
    pub decimals: usize,
}

/// The lower bound of a number with decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Least {
    Zero,
    AboveZero,
}

/// The shape of a duration within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Duration {
    /// The message for a text that is not a duration, such as "be a duration like 5m".
    pub must: &'static str,
    pub least: DurationBound,
    pub most: DurationBound,
}

/// A lower or upper bound of a duration, with the message for a duration outside of it.
#[derive(Clone, Copy, Debug)]
pub struct DurationBound {
    pub at: Micros,
    pub must: &'static str,
}

impl Whole {
    pub const fn new(least: u64, most: u64) -> Whole {
        Whole { least, most, except: &[], why: "" }
    }

    pub const fn bounds(self) -> RangeInclusive<u64> {
        self.least..=self.most
    }
}

impl Decimal {
    pub fn accepts(self, text: &str) -> bool {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.trim_end_matches('0').len() > self.decimals {
            return false;
        }
        let is_zero = |part: &str| part.bytes().all(|digit| digit == b'0');
        let is_low = |most: u64| {
            // A number that does not fit into 64 bits is above every bound.
            whole.parse::<u64>().is_ok_and(|whole| whole < most || whole == most && is_zero(decimals))
        };
        (self.least == Least::Zero || !is_zero(whole) || !is_zero(decimals)) && self.most.is_none_or(is_low)
    }

    pub(super) fn must(self) -> String {
        let bounds = match (self.least, self.most) {
            (Least::AboveZero, None) => "above 0".to_owned(),
            (Least::AboveZero, Some(most)) => format!("above 0, at most {most},"),
            (Least::Zero, None) => "from 0".to_owned(),
            (Least::Zero, Some(most)) => format!("from 0 to {most}"),
        };
        format!("be a number {bounds} with at most {} decimals", self.decimals)
    }
}

impl Duration {
    /// Makes the shape of durations up to `most`. `must` is the message for a longer duration.
    pub const fn at_most(most: Micros, must: &'static str) -> Duration {
        let least = DurationBound { at: Micros(0), must: DURATION_MUST };
        Duration { must: DURATION_MUST, least, most: DurationBound { at: most, must } }
    }

    /// Makes the shape of durations from `least` to `most`. `must` is the message for any other value.
    pub const fn within(least: Micros, most: Micros, must: &'static str) -> Duration {
        Duration { must, least: DurationBound { at: least, must }, most: DurationBound { at: most, must } }
    }

    /// Returns the shape that the schema uses: a pattern, which cannot compare durations with bounds.
    pub(super) const fn definition(self) -> Shape {
        if self.least.at.0 > 0 { POSITIVE_DURATION } else { DURATION }
    }

    /// Returns the message for a value that is not a duration within these bounds. `text` is `None` if the value has no
    /// text. Returns `None` for a valid duration.
    pub fn mismatch(self, text: Option<&str>) -> Option<&'static str> {
        match text.and_then(duration::parse) {
            None => Some(self.must),
            Some(duration) if duration < self.least.at => Some(self.least.must),
            Some(duration) if duration > self.most.at => Some(self.most.must),
            Some(_) => None,
        }
    }
}

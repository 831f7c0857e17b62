//! Reads the numbers of a sliding window: `limit`, `window` and `steps`.

use super::windowed::{limit, limit_key, numbers, shadow};
use super::{ALGORITHM_OF_LIMIT, LimitNumbers, METER_OF_LIMIT};
use crate::keys::rules::claimed_number::NumberReader;
use crate::keys::rules::cost::{COST_SOURCE, DEFAULT_COST, FIXED_COST, MAX_COST, MIN_COST};
use crate::language::duration;
use crate::language::key::{Key, Mapping, Type, unconstrained};
use crate::language::reader::Section;
use crate::language::shape::{Duration, Shape};
use crate::language::value_kind::{ParseText, ValueKind};
use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::sliding_window::{LEAST_STEPS, LONGEST, MAX_LIMIT, MOST_STEPS, SHORTEST, SlidingWindow};

const LIMIT_KEY: Key = limit_key("What is granted in any window, at most.");

const WINDOW: ValueKind<ParseText<Micros>> = ValueKind::new(
    "duration from `1s` to `31d`",
    Shape::Duration(Duration::within(SHORTEST, LONGEST, "be a duration from 1s to 31d")),
    duration::parse,
);

pub(super) static LIMIT: Mapping = Mapping {
    heading: Some("key of a `sliding_window`"),
    definition: Some("sliding_window"),
    keys: &[
        ALGORITHM_OF_LIMIT,
        METER_OF_LIMIT,
        LIMIT_KEY,
        Key::required("window", WINDOW.declared(), "How long a grant counts, at least."),
        Key::default(
            "steps",
            Type::Whole { least: LEAST_STEPS, most: MOST_STEPS },
            "10",
            "Steps of the window. What was granted counts at most one step too long.",
        ),
        COST_SOURCE,
        FIXED_COST,
        DEFAULT_COST,
        MIN_COST,
        MAX_COST,
        shadow(&NUMBERS),
    ],
    constraints: unconstrained,
};

pub(super) static NUMBERS: Mapping = Mapping {
    heading: None,
    definition: Some("sliding_window_numbers"),
    keys: &[LIMIT_KEY],
    constraints: unconstrained,
};

/// Reads the limit, the window and the steps of a sliding window. `None` after reporting a problem.
pub(super) fn sliding_window(section: &Section<'_>, reader: NumberReader<'_>) -> Option<LimitNumbers> {
    let limit = limit(section, MAX_LIMIT, reader);
    let window = section.need("window").and_then(|field| WINDOW.read(field));
    let steps = section.whole("steps");
    let (limit, window, steps) = (limit?, window?, steps?);
    numbers(limit, |limit| SlidingWindow::new(limit, window, steps).map(Algorithm::SlidingWindow))
}

/// Reads another limit of a sliding window, such as an override's. `window` is the rule's own, or `None` if it is
/// invalid.
pub(super) fn other_limit(
    section: &Section<'_>,
    window: Option<&SlidingWindow>,
    reader: NumberReader<'_>,
) -> Option<LimitNumbers> {
    let limit = limit(section, MAX_LIMIT, reader)?;
    numbers(limit, |limit| window?.with_limit(limit).map(Algorithm::SlidingWindow))
}

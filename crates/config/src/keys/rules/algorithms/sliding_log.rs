//! Reads the numbers of a sliding log: `limit` and `window`.

use super::windowed::{limit, numbers, shadow};
use super::{ALGORITHM_OF_LIMIT, LimitNumbers, METER_OF_LIMIT};
use crate::keys::rules::claimed_number::{CLAIMED, NumberReader};
use crate::keys::rules::cost::{COST_SOURCE, DEFAULT_COST, FIXED_COST, MAX_COST, MIN_COST};
use crate::language::duration::{self, units};
use crate::language::key::{Key, Mapping, Type, unconstrained};
use crate::language::reader::Section;
use crate::language::shape::{Definition, Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::sliding_log::{LONGEST, MAX_LIMIT, SHORTEST, SlidingLog};
use ledger::calendar::CalendarUnit;
use ledger::cost::Cost;
use rules::rule::Price;

const LOG_LIMIT: Shape = Shape::Defined(&Definition { name: "log_limit", shape: Shape::whole(1, MAX_LIMIT) });

const LIMIT_KEY: Key = Key::required(
    "limit",
    Type::OwnOr { text: "1 to 10000, or from a credential", shape: LOG_LIMIT, mapping: &CLAIMED },
    "What is granted in any window, at most.",
);

const WINDOW: ValueKind<ParseText<Micros>> = ValueKind::reporting(
    "duration from `1s` to `366d`",
    Shape::Text(Text::new(
        Scalars::Spelling,
        &[concat!("^[0-9]+(ms|", units!(), ")$")],
        "be a duration from 1s to 366d",
    )),
    |text| duration::parse(text).filter(|window| (SHORTEST..=LONGEST).contains(window)),
    |field, must| {
        let calendar = field.text_if_any().and_then(CalendarUnit::parse);
        field.must_hinting(must, calendar.map(|_| "a calendar is for a fixed_window".to_owned()));
    },
);

pub(super) static LIMIT: Mapping = Mapping {
    heading: Some("key of a `sliding_log`"),
    definition: Some("sliding_log"),
    keys: &[
        ALGORITHM_OF_LIMIT,
        METER_OF_LIMIT,
        LIMIT_KEY,
        Key::required("window", WINDOW.declared(), "How long a grant counts."),
        COST_SOURCE,
        FIXED_COST,
        DEFAULT_COST,
        MIN_COST,
        MAX_COST,
        shadow(&NUMBERS),
    ],
    constraints: unconstrained,
};

pub(super) static NUMBERS: Mapping =
    Mapping { heading: None, definition: Some("sliding_log_numbers"), keys: &[LIMIT_KEY], constraints: unconstrained };

/// Reads the limit and the window of a sliding log. `None` after reporting a problem.
pub(super) fn sliding_log(section: &Section<'_>, reader: NumberReader<'_>) -> Option<LimitNumbers> {
    let limit = limit(section, MAX_LIMIT, reader);
    let window = section.need("window").and_then(|field| WINDOW.read(field));
    let (limit, window) = (limit?, window?);
    numbers(limit, |limit| SlidingLog::new(limit, window).map(Algorithm::SlidingLog))
}

/// Reads another limit of a sliding log, such as an override's. `own` is the rule's own log, or `None` if it is
/// invalid.
pub(super) fn other_limit(
    section: &Section<'_>,
    own: Option<&SlidingLog>,
    reader: NumberReader<'_>,
) -> Option<LimitNumbers> {
    let limit = limit(section, MAX_LIMIT, reader)?;
    numbers(limit, |limit| own?.with_limit(limit).map(Algorithm::SlidingLog))
}

/// Returns the smallest cost that a request may have. With this cost, a window holds at most [`MAX_LIMIT`] grants.
pub(super) fn least_cost(log: &SlidingLog) -> Cost {
    Cost::from_thousandths(log.limit().thousandths().div_ceil(MAX_LIMIT))
}

/// Checks that no cost in `price` is below [`least_cost`]. `None` after reporting a cost that is too small.
pub(super) fn check_price(section: &Section<'_>, log: &SlidingLog, price: &Price) -> Option<()> {
    let least = least_cost(log);
    let costs = match price {
        Price::Fixed(fixed) => [Some(("fixed_cost", *fixed)), None],
        Price::FromRequest { default, min, .. } => [Some(("default_cost", *default)), Some(("min_cost", *min))],
        // A sliding log cannot be a budget, so no limit has this price here.
        Price::Settled(_) => [None, None],
    };
    let mut right = Some(());
    for (key, _) in costs.into_iter().flatten().filter(|(_, cost)| *cost < least) {
        // Only a cost in the file can be too small. The default cost never is.
        let field = section.get(key)?;
        field.must(format_args!("be at least {least}: in a window there are at most {MAX_LIMIT} grants"));
        right = None;
    }
    right
}

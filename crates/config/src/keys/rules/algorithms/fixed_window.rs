//! Reads the numbers of a fixed window: `limit` and `window`.

use serde_json::json;

use super::windowed::{WINDOW_LIMIT, limit, shadow};
use super::{ALGORITHM_OF_LIMIT, LimitNumbers, METER_OF_LIMIT};
use crate::keys::rules::ban::BAN_OF_LIMIT;
use crate::keys::rules::claimed_number::{CLAIMED, Number, NumberReader};
use crate::keys::rules::cost::{FIXED_COST, MAX_COST, MIN_COST};
use crate::keys::rules::reserve::RESERVE;
use crate::keys::rules::scope::{LEASE_OF_LIMIT, SCOPE_OF_LIMIT};
use crate::keys::rules::settled_cost::{COST_SOURCE, COUNT_ON, DEFAULT_COST, RESET_ON};
use crate::keys::rules::weights::WEIGHTS;
use crate::language::duration::{self, units};
use crate::language::key::{Key, Mapping, Type, unconstrained};
use crate::language::other_spellings;
use crate::language::reader::{Field, Section};
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types::{AMOUNT_OR_MONEY, SCALAR};
use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::fixed_window::{FixedWindow, LONGEST, MAX_LIMIT, SHORTEST, Window};
use ledger::calendar::{Anchor, Calendar, CalendarUnit, InvalidCalendar, TimeOfDay, Zone};
use ledger::cost::Cost;

const FIRST_REQUEST: &str = "first_request";
const BESIDE_A_CALENDAR: &str = "must stand beside a calendar window: day, week, month or year";

/// The shape of a limit: a whole number, or an amount of money.
const WINDOW_LIMIT_OR_MONEY: Shape = Shape::either(&[WINDOW_LIMIT, AMOUNT_OR_MONEY]);

const LIMIT_KEY: Key = Key::required(
    "limit",
    Type::OwnOr {
        text: "1 to 9007199254740; with `llm_cost` above 0 to 9007199.25 USD; or from a credential",
        shape: WINDOW_LIMIT_OR_MONEY,
        mapping: &CLAIMED,
    },
    "What is granted in each window.",
);

const CALENDAR_UNITS: [&str; 4] =
    [CalendarUnit::Day.name(), CalendarUnit::Week.name(), CalendarUnit::Month.name(), CalendarUnit::Year.name()];

/// The length of a window that is written as a duration. Names of calendar units are read separately.
const LENGTH: ValueKind<ParseText<Micros>> = ValueKind::reporting(
    "duration from `1s` to `366d`, or `day`, `week`, `month`, `year`",
    Shape::Either {
        of: &[
            Shape::Text(Text::new(Scalars::Spelling, &[concat!("^[0-9]+(ms|", units!(), ")$")], LENGTH_MUST)),
            Shape::Words(&CALENDAR_UNITS),
        ],
        must: Some(LENGTH_MUST),
    },
    |text| duration::parse(text).filter(|length| (SHORTEST..=LONGEST).contains(length)),
    no_length,
);

/// Reports a text that is no length of a window.
fn no_length(field: &Field<'_>, must: &str) {
    field.must_hinting(must, field.text_if_any().and_then(other_spelling));
}

/// Returns the hint for a window in other words, such as `1 month`, `monthly` or `30 days`. `None` for any other text.
fn other_spelling(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let unit_at = text.find(|char: char| !char.is_ascii_digit() && char != ' ').unwrap_or(text.len());
    let (number, name) = text.split_at_checked(unit_at)?;
    let (number, name) = (number.trim(), name.trim_end_matches('s'));
    let name = if name == "daily" { "day" } else { name.strip_suffix("ly").unwrap_or(name) };
    let written = match CalendarUnit::parse(name) {
        Some(_) if matches!(number, "" | "1") => name.to_owned(),
        _ => format!("{number}{name}"),
    };
    let is_window = CalendarUnit::parse(&written).is_some() || duration::parse(&written).is_some();
    let written = if is_window { Some(written) } else { other_spellings::duration(&text) };
    written.filter(|written| *written != text).map(|written| format!("write `{written}`"))
}

const LENGTH_MUST: &str = "be a duration from 1s to 366d, or day, week, month or year";

pub(super) static LIMIT: Mapping = Mapping {
    heading: Some("key of a `fixed_window`"),
    definition: Some("fixed_window"),
    keys: &[
        ALGORITHM_OF_LIMIT,
        METER_OF_LIMIT,
        BAN_OF_LIMIT,
        SCOPE_OF_LIMIT,
        LEASE_OF_LIMIT,
        LIMIT_KEY,
        Key::required("window", LENGTH.declared(), "A duration from the Unix epoch on, or a period of a calendar."),
        Key::default(
            "timezone",
            Type::Own { text: "name of a zone", shape: SCALAR },
            "UTC",
            "The IANA time zone, as in `Europe/Berlin`.",
        ),
        Key::default(
            "at",
            Type::Own { text: "`hh:mm`", shape: SCALAR },
            "\"00:00\"",
            "The local time at which a period begins.",
        ),
        Key::depends(
            "anchor",
            Type::Own {
                text: "`monday` to `sunday`, `1` to `31`, `mm-dd`; for a duration `first_request`",
                shape: SCALAR,
            },
            "`monday`, `1`, `01-01`; the Unix epoch",
            "The first day of a week, month or year. `first_request`: a window begins with the first grant.",
        ),
        COST_SOURCE,
        FIXED_COST,
        DEFAULT_COST,
        MIN_COST,
        MAX_COST,
        RESERVE,
        WEIGHTS,
        COUNT_ON,
        RESET_ON,
        shadow(&NUMBERS),
    ],
    constraints: || json!({"allOf": [{"$ref": "#/definitions/budget"}, {"$ref": "#/definitions/money"}]}),
};

pub(super) static NUMBERS: Mapping =
    Mapping { heading: None, definition: Some("fixed_window_numbers"), keys: &[LIMIT_KEY], constraints: unconstrained };

/// Reads the limit and the window of a fixed window. `None` after reporting a problem.
pub(super) fn fixed_window(section: &Section<'_>, reader: NumberReader<'_>) -> Option<LimitNumbers> {
    let limit = limit(section, MAX_LIMIT, reader);
    let window = section.need("window").and_then(|field| window(section, &field));
    let (limit, window) = (limit?, window?);
    numbers(limit, |limit| FixedWindow::of_amount(limit, window))
}

/// Reads another limit of a fixed window, such as an override's. `window` is the rule's own, or `None` if it is
/// invalid.
pub(super) fn other_limit(
    section: &Section<'_>,
    window: Option<&FixedWindow>,
    reader: NumberReader<'_>,
) -> Option<LimitNumbers> {
    let limit = limit(section, MAX_LIMIT, reader)?;
    numbers(limit, |limit| window?.with_amount(limit))
}

/// Returns the settings of a fixed window with this limit. `window` makes a fixed window from an amount.
fn numbers(limit: Number<'_>, window: impl FnOnce(Cost) -> Option<FixedWindow>) -> Option<LimitNumbers> {
    let base = Algorithm::FixedWindow(window(limit.largest)?);
    Some(LimitNumbers { base, claimed: limit.claimed.into_iter().collect() })
}

fn window(section: &Section<'_>, field: &Field<'_>) -> Option<Window> {
    let text = field.written()?;
    if let Some(unit) = CalendarUnit::parse(text) {
        return calendar(section, unit).map(Window::Calendar);
    }
    section.unwanted("timezone", BESIDE_A_CALENDAR);
    section.unwanted("at", BESIDE_A_CALENDAR);
    let anchor = section.optional("anchor", |field| field.choice(&[(FIRST_REQUEST, ())]));
    let length = LENGTH.read(field.clone());
    let (anchor, length) = (anchor?, length?);
    let alone = !section.has("timezone") && !section.has("at");
    alone.then_some(if anchor.is_some() { Window::FirstRequest(length) } else { Window::Epoch(length) })
}

fn calendar(section: &Section<'_>, unit: CalendarUnit) -> Option<Calendar> {
    let zone = section.value("timezone", |field| valid(&field, Zone::parse));
    let at = section.value("at", |field| valid(&field, TimeOfDay::parse));
    let anchor = section.optional("anchor", |field| valid(&field, |text| Anchor::parse(unit, text)));
    let anchor = anchor?.unwrap_or_else(|| Anchor::default_of(unit));
    Some(Calendar::new(anchor, at?, zone?))
}

/// Parses a part of a calendar's definition. Reports an invalid part.
fn valid<T>(field: &Field<'_>, parse: impl FnOnce(&str) -> Result<T, InvalidCalendar>) -> Option<T> {
    let parsed = parse(field.written()?);
    if let Err(invalid) = &parsed {
        field.must(invalid.to_string().trim_start_matches("must "));
    }
    parsed.ok()
}

//! Reads the numbers of a concurrency limit: `limit` and `max_hold`.

use super::windowed::{limit, numbers, shadow};
use super::{ALGORITHM_OF_LIMIT, LimitNumbers, METER_OF_LIMIT};
use crate::keys::rules::claimed_number::{CLAIMED, NumberReader};
use crate::language::duration;
use crate::language::key::{Key, Mapping, Type, unconstrained};
use crate::language::reader::Section;
use crate::language::shape::{Definition, Duration, Shape};
use crate::language::value_kind::{ParseText, ValueKind};
use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::concurrency::{Concurrency, MAX_LIMIT};
use ledger::cost::Cost;
use rules::rule::Price;

/// Every request holds one slot.
pub(super) const PRICE: Price = Price::Fixed(Cost::ONE);

/// The shortest and the longest `max_hold`.
const SHORTEST_HOLD: Micros = Micros(1_000_000);
const LONGEST_HOLD: Micros = Micros(366 * 86_400_000_000);

const SLOTS: Shape = Shape::Defined(&Definition { name: "slots", shape: Shape::whole(1, MAX_LIMIT) });

const LIMIT_KEY: Key = Key::required(
    "limit",
    Type::OwnOr { text: "1 to 1000000000, or from a credential", shape: SLOTS, mapping: &CLAIMED },
    "How many requests may be in flight at the same time.",
);

const HOLD: ValueKind<ParseText<Micros>> = ValueKind::new(
    "duration from `1s` to `366d`",
    Shape::Duration(Duration::within(SHORTEST_HOLD, LONGEST_HOLD, "be a duration from 1s to 366d")),
    duration::parse,
);

pub(super) static LIMIT: Mapping = Mapping {
    heading: Some("key of a `concurrency` limit"),
    definition: Some("concurrency"),
    keys: &[
        ALGORITHM_OF_LIMIT,
        METER_OF_LIMIT,
        LIMIT_KEY,
        Key::optional(
            "max_hold",
            HOLD.declared(),
            "After this time a slot is given back, though its request is still in flight.",
        ),
        shadow(&NUMBERS),
    ],
    constraints: unconstrained,
};

pub(super) static NUMBERS: Mapping =
    Mapping { heading: None, definition: Some("concurrency_numbers"), keys: &[LIMIT_KEY], constraints: unconstrained };

/// Reads the number of slots, and how long a request may hold a slot. `None` after reporting a problem.
pub(super) fn concurrency(section: &Section<'_>, reader: NumberReader<'_>) -> Option<LimitNumbers> {
    let limit = limit(section, MAX_LIMIT, reader);
    let max_hold = section.optional("max_hold", |field| HOLD.read(field));
    let (limit, max_hold) = (limit?, max_hold?);
    numbers(limit, |limit| Concurrency::new(limit).map(|slots| Algorithm::Concurrency(slots.with_max_hold(max_hold))))
}

/// Reads another number of slots, such as an override's. `own` is the rule's own limit, and `None` if it is invalid.
pub(super) fn other_limit(
    section: &Section<'_>,
    own: Option<&Concurrency>,
    reader: NumberReader<'_>,
) -> Option<LimitNumbers> {
    let limit = limit(section, MAX_LIMIT, reader)?;
    numbers(limit, |limit| {
        let slots = Concurrency::new(limit)?.with_max_hold(own?.max_hold());
        Some(Algorithm::Concurrency(slots))
    })
}

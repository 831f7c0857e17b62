//! Declares and reads what the algorithms share that grant a `limit` in each window, or in any.

use super::LimitNumbers;
use crate::keys::rules::claimed_number::{CLAIMED, Number, NumberReader};
use crate::language::key::{Key, Mapping, Type};
use crate::language::reader::Section;
use crate::language::shape::{Definition, Shape};
use ledger::algorithm::Algorithm;
use ledger::algorithm::fixed_window::MAX_LIMIT;
use rules::claimed_numbers::NumberKind;

const WINDOW_LIMIT: Shape = Shape::Defined(&Definition { name: "window_limit", shape: Shape::whole(1, MAX_LIMIT) });

/// The key `limit`, for an algorithm that can count fractions.
pub(super) const fn limit_key(doc: &'static str) -> Key {
    let text = "1 to 9007199254740, or from a credential";
    Key::required("limit", Type::OwnOr { text, shape: WINDOW_LIMIT, mapping: &CLAIMED }, doc)
}

/// The key `shadow`: numbers that are tried next to those in force.
pub(super) const fn shadow(numbers: &'static Mapping) -> Key {
    let doc = "Numbers to try: counted, never refusing or delaying.";
    Key::optional("shadow", Type::Mapping(numbers), doc)
}

/// Reads `limit`, which is at most `largest`.
pub(super) fn limit<'t>(section: &Section<'t>, largest: u64, reader: NumberReader<'_>) -> Option<Number<'t>> {
    reader.number(NumberKind::Limit, largest, section.need("limit")?)
}

/// The numbers of a limit. `algorithm` makes a limit with a given amount.
pub(super) fn numbers(limit: Number<'_>, algorithm: impl FnOnce(u64) -> Option<Algorithm>) -> Option<LimitNumbers> {
    let base = algorithm(limit.largest.whole())?;
    Some(LimitNumbers { base, claimed: limit.claimed.into_iter().collect() })
}

//! Declares and reads the keys that all algorithms with a window share, such as `limit`.

use super::LimitNumbers;
use crate::keys::rules::claimed_number::{CLAIMED, Number, NumberReader};
use crate::language::key::{Key, Mapping, Type};
use crate::language::reader::Section;
use crate::language::shape::{Definition, Shape};
use ledger::algorithm::Algorithm;
use ledger::algorithm::fixed_window::MAX_LIMIT;
use rules::claimed_numbers::NumberKind;

pub(super) const WINDOW_LIMIT: Shape =
    Shape::Defined(&Definition { name: "window_limit", shape: Shape::whole(1, MAX_LIMIT) });

/// Declares the key `limit`, for an algorithm that can count fractions of a token.
pub(super) const fn limit_key(doc: &'static str) -> Key {
    let text = "1 to 9007199254740, or from a credential";
    Key::required("limit", Type::OwnOr { text, shape: WINDOW_LIMIT, mapping: &CLAIMED }, doc)
}

/// Declares the key `shadow`: a second rate and size that the gateway tries. A shadow never refuses or delays a
/// request.
pub(super) const fn shadow(numbers: &'static Mapping) -> Key {
    let doc = "Numbers to try: counted, never refusing or delaying.";
    Key::optional("shadow", Type::Mapping(numbers), doc)
}

/// Reads the key `limit` of an algorithm with a window. The value may be at most `largest`. `None` after reporting a problem.
pub(super) fn limit<'t>(section: &Section<'t>, largest: u64, reader: NumberReader<'_>) -> Option<Number<'t>> {
    reader.number(NumberKind::Limit, largest, section.need("limit")?)
}

/// Returns the settings of a limit. `algorithm` makes the algorithm for a given number of tokens.
pub(super) fn numbers(limit: Number<'_>, algorithm: impl FnOnce(u64) -> Option<Algorithm>) -> Option<LimitNumbers> {
    let base = algorithm(limit.largest.whole())?;
    Some(LimitNumbers { base, claimed: limit.claimed.into_iter().collect() })
}

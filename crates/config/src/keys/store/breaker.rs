//! Reads `breaker`: when a shared store is not asked for a while.

use crate::language::key::{Key, Mapping, POSITIVE_DURATION, Type, unconstrained};
use crate::language::reader::Field;
use stores::breaker;

pub(crate) static BREAKER: Mapping = Mapping {
    heading: Some("key in `breaker`"),
    definition: None,
    keys: &[
        Key::default("failures", Type::Whole { least: 1, most: 1_000_000 }, "5", "Failed calls in a row that open it."),
        Key::default(
            "cooldown",
            POSITIVE_DURATION,
            "1s",
            "The first pause, random within a quarter in both directions.",
        ),
        Key::default("max_cooldown", POSITIVE_DURATION, "30s", "The longest pause; at least `cooldown`."),
    ],
    constraints: unconstrained,
};

pub(crate) fn breaker(field: Field<'_>) -> Option<breaker::Settings> {
    let section = field.section(&BREAKER)?;
    let failures = section.whole("failures");
    let cooldown = section.positive_duration("cooldown");
    let max_cooldown = section.positive_duration("max_cooldown");
    let max_field = section.get("max_cooldown");
    section.close();
    let (failures, cooldown, max_cooldown) = (failures?, cooldown?, max_cooldown?);
    match max_field {
        Some(field) if max_cooldown < cooldown => {
            field.must("be at least `cooldown`");
            None
        }
        // A `cooldown` above the default of `max_cooldown` is also the longest cooldown.
        _ => Some(breaker::Settings {
            failures: u32::try_from(failures).ok()?,
            cooldown,
            max_cooldown: max_cooldown.max(cooldown),
        }),
    }
}

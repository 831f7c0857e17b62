//! Reads `retry_after_jitter`: how much `Retry-After` is varied.

use crate::language::key::{DURATION, Key, Mapping, unconstrained};
use crate::language::reader::Field;
use crate::language::shape::{Decimal, Least, Shape};
use crate::language::value_kind::{ParseText, ValueKind};
use decision::retry_after::Jitter;

/// A share of the wait, in millionths.
const SHARE: ValueKind<ParseText<u32>> = ValueKind::new(
    "0 to 1, at most 6 decimals",
    Shape::Decimal(Decimal { least: Least::Zero, most: Some(1), decimals: 6 }),
    millionths,
);

pub(crate) static RETRY_AFTER_JITTER: Mapping = Mapping {
    heading: Some("key in `retry_after_jitter`"),
    definition: None,
    keys: &[
        Key::default("share", SHARE.declared(), "0.5", "The most that is added, as a share of the wait."),
        Key::default("max", DURATION, "30s", "The most that is added, as a duration."),
        Key::default(
            "max_period",
            DURATION,
            "60s",
            "The most that is added instead, where a window of an hour or more has to end.",
        ),
    ],
    constraints: unconstrained,
};

pub(crate) fn retry_after_jitter(field: Field<'_>) -> Option<Jitter> {
    let section = field.section(&RETRY_AFTER_JITTER)?;
    let (share, max) = (section.value("share", |field| SHARE.read(field)), section.duration("max"));
    let max_period = section.duration("max_period");
    section.close();
    Some(Jitter { share: share?, max: max?, max_period: max_period? })
}

fn millionths(share: &str) -> Option<u32> {
    let (whole, decimals) = share.split_once('.').unwrap_or((share, "0"));
    let parts = (decimals.len() <= 6).then(|| format!("{decimals:0<6}").parse().ok()).flatten()?;
    whole.parse::<u32>().ok()?.checked_mul(1_000_000)?.checked_add(parts)
}

//! Reads `retry_after_jitter`: how far `Retry-After` is spread.

use serde_json::json;

use crate::language::key::{DURATION, Key, Mapping, unconstrained};
use crate::language::reader::Field;
use crate::language::value_kind::{ReadField, ValueKind};
use crate::language::value_types::reference;
use decision::retry_after::Jitter;

const SHARE: ValueKind<ReadField<u32>> = ValueKind {
    text: "0 to 1, at most 6 decimals",
    schema: || json!({"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, reference()]}),
    read: share,
};

pub static RETRY_AFTER_JITTER: Mapping = Mapping {
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

pub fn retry_after_jitter(field: Field<'_>) -> Option<Jitter> {
    let section = field.section(&RETRY_AFTER_JITTER)?;
    let (share, max) = (section.value("share", SHARE.read), section.duration("max"));
    let max_period = section.duration("max_period");
    section.close();
    Some(Jitter { share: share?, max: max?, max_period: max_period? })
}

/// A share from 0 to 1, in millionths.
fn share(field: Field<'_>) -> Option<u32> {
    let share = field.number().and_then(|text| {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.len() > 6 {
            return None;
        }
        let millionths = format!("{decimals:0<6}").parse::<u32>().ok()?;
        whole.parse::<u32>().ok()?.checked_mul(1_000_000)?.checked_add(millionths)
    });
    let share = share.filter(|millionths| *millionths <= 1_000_000);
    if share.is_none() {
        field.must("be a number from 0 to 1 with at most 6 decimals");
    }
    share
}

//! Reads `drain`: how the process shuts down.

use crate::language::key::{DURATION, Key, Mapping, unconstrained};
use crate::language::reader::Field;
use base::time::Micros;

/// The settings for the shutdown of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// The time for which the listeners stay open after `/readyz` has begun to answer 503.
    pub delay: Micros,
    /// The longest time for which the shutdown waits for requests under way.
    pub timeout: Micros,
}

pub(crate) static DRAIN: Mapping = Mapping {
    heading: Some("key in `drain`"),
    definition: None,
    keys: &[
        Key::default(
            "delay",
            DURATION,
            "0s",
            "At SIGTERM, the time from `/readyz` turning 503 to the closing of listeners.",
        ),
        Key::default("timeout", DURATION, "25s", "The longest wait for requests in flight after that."),
    ],
    constraints: unconstrained,
};

pub(crate) fn drain(field: Field<'_>) -> Option<Drain> {
    let section = field.section(&DRAIN)?;
    let (delay, timeout) = (section.duration("delay"), section.duration("timeout"));
    section.close();
    Some(Drain { delay: delay?, timeout: timeout? })
}

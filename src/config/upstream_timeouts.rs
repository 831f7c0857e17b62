//! Reads `upstream_timeouts`: how long the upstream may take.

use super::key::{Key, Mapping, POSITIVE_DURATION, unconstrained};
use super::reader::Field;
use crate::base::time::Micros;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    pub connect: Micros,
    /// Between bytes.
    pub read: Micros,
    /// Between bytes.
    pub write: Micros,
    /// In the pool.
    pub idle: Micros,
}

pub static UPSTREAM_TIMEOUTS: Mapping = Mapping {
    heading: Some("key in `upstream_timeouts`"),
    definition: None,
    keys: &[
        Key::default("connect", POSITIVE_DURATION, "1s", "To open a connection to one address."),
        Key::default(
            "read",
            POSITIVE_DURATION,
            "30s",
            "For the head of a response, and then between two parts of it. While a body is sent to the upstream, each \
             part restarts this time; a second attempt has what is left of the first one's.",
        ),
        Key::default("write", POSITIVE_DURATION, "30s", "Between two bytes to the upstream."),
        Key::default(
            "idle",
            POSITIVE_DURATION,
            "4s",
            "How long an unused connection is kept for another request. It must be shorter than the upstream's own idle \
             timeout.",
        ),
    ],
    constraints: unconstrained,
};

pub fn upstream_timeouts(field: Field<'_>) -> Option<UpstreamTimeouts> {
    let section = field.section(&UPSTREAM_TIMEOUTS)?;
    let connect = section.positive_duration("connect");
    let read = section.positive_duration("read");
    let write = section.positive_duration("write");
    let idle = section.positive_duration("idle");
    section.close();
    Some(UpstreamTimeouts { connect: connect?, read: read?, write: write?, idle: idle? })
}

//! Reads `upstream_timeouts`: how long an upstream may take.

use crate::language::key::{Key, Mapping, POSITIVE_DURATION, unconstrained};
use crate::language::reader::Field;
use crate::language::shape::Shape;
use crate::language::value_kind::{ReadField, ValueKind};
use crate::language::value_types;
use base::time::Micros;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    pub connect: Micros,
    /// The longest wait for the first byte of a response, after the request was sent. `None`: `read` is this timeout
    /// too.
    pub first_byte: Option<Micros>,
    /// The longest pause while the gateway reads a response from the upstream.
    pub read: Micros,
    /// The longest pause while the gateway writes a request to the upstream.
    pub write: Micros,
    /// The time after which the gateway closes an unused connection to the upstream.
    pub idle: Micros,
    /// The longest duration of a whole request. `None`: only the other timeouts apply.
    pub total: Option<Micros>,
}

/// The kind of value of `total`, the longest duration of a whole request. The value `none` is read as `None`.
pub(crate) const TOTAL: ValueKind<ReadField<Option<Micros>>> = ValueKind::new(
    "`none` or duration above 0",
    Shape::either(&[Shape::Words(&["none"]), value_types::POSITIVE_DURATION]),
    |field| if field.is_written("none") { Some(None) } else { field.positive_duration().map(Some) },
);

// Descriptions of the timeouts, which upstreams and routes share.
pub(crate) const CONNECT_DOC: &str = "To open a connection to one address.";
pub(crate) const READ_DOC: &str =
    "For the head of a response from its first byte, and between two parts of it. Parts of a request body restart it.";
pub(crate) const FIRST_BYTE_DOC: &str = "For the first byte of a response, after the request was sent.";
pub(crate) const AS_READ: &str = "as `read`";
pub(crate) const WRITE_DOC: &str = "Between two bytes to the upstream.";
pub(crate) const IDLE_DOC: &str = "How long an unused connection is kept: less than the upstream keeps it.";
pub(crate) const TOTAL_DOC: &str = "For a whole request with all attempts.";

pub(crate) static UPSTREAM_TIMEOUTS: Mapping = Mapping {
    heading: Some("key in `upstream_timeouts`"),
    definition: None,
    keys: &[
        Key::default("connect", POSITIVE_DURATION, "1s", CONNECT_DOC),
        Key::depends("first_byte", POSITIVE_DURATION, AS_READ, FIRST_BYTE_DOC),
        Key::default("read", POSITIVE_DURATION, "30s", READ_DOC),
        Key::default("write", POSITIVE_DURATION, "30s", WRITE_DOC),
        Key::default("idle", POSITIVE_DURATION, "4s", IDLE_DOC),
        Key::default("total", TOTAL.declared(), "none", TOTAL_DOC),
    ],
    constraints: unconstrained,
};

pub(crate) fn upstream_timeouts(field: Field<'_>) -> Option<UpstreamTimeouts> {
    let section = field.section(&UPSTREAM_TIMEOUTS)?;
    let connect = section.positive_duration("connect");
    let first_byte = section.optional("first_byte", |field| field.positive_duration());
    let read = section.positive_duration("read");
    let write = section.positive_duration("write");
    let idle = section.positive_duration("idle");
    let total = section.value("total", |field| TOTAL.read(field));
    section.close();
    Some(UpstreamTimeouts {
        connect: connect?,
        first_byte: first_byte?,
        read: read?,
        write: write?,
        idle: idle?,
        total: total?,
    })
}

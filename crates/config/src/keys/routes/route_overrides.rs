//! Reads `timeouts`, `retries`, `body_bytes` and `llm` of a route, which replace settings of its upstream and of the
//! file.

use std::sync::Arc;

use crate::keys::limits::INSPECT_BYTES;
use crate::keys::llm::{LlmKeys, llm};
use crate::keys::upstreams::retries::{ROUTE_RETRIES, route_retries};
use crate::keys::upstreams::upstream_timeouts::{CONNECT_DOC, FIRST_BYTE_DOC, READ_DOC, TOTAL, TOTAL_DOC, WRITE_DOC};
use crate::language::key::{Key, Mapping, POSITIVE_DURATION, Type, unconstrained};
use crate::language::reader::{Field, Section};
use crate::language::size;
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types::SIZE;
use rules::route::llm_settings::{LlmOverrides, LlmSettings};
use rules::route::overrides::{Overrides, Timeouts, TotalTimeout};

const OF_UPSTREAM: &str = "as in the upstream";

pub(crate) static ROUTE_TIMEOUTS: Mapping = Mapping {
    heading: None,
    definition: None,
    keys: &[
        Key::depends("connect", POSITIVE_DURATION, OF_UPSTREAM, CONNECT_DOC),
        Key::depends("first_byte", POSITIVE_DURATION, OF_UPSTREAM, FIRST_BYTE_DOC),
        Key::depends("read", POSITIVE_DURATION, OF_UPSTREAM, READ_DOC),
        Key::depends("write", POSITIVE_DURATION, OF_UPSTREAM, WRITE_DOC),
        Key::depends("total", TOTAL.declared(), OF_UPSTREAM, TOTAL_DOC),
    ],
    constraints: unconstrained,
};

const BODY_BYTES: ValueKind<ParseText<u64>> = ValueKind::new("size", SIZE, size::parse);

pub(crate) const TIMEOUTS_OF_ROUTE: Key = Key::optional(
    "timeouts",
    Type::Mapping(&ROUTE_TIMEOUTS),
    "As `upstream_timeouts`, without `idle`. What is missing is that of the upstream.",
);

pub(crate) const RETRIES_OF_ROUTE: Key = Key::optional(
    "retries",
    Type::Mapping(&ROUTE_RETRIES),
    "`max` and `on` for these requests; the budget is that of the upstream.",
);

pub(crate) const BODY_BYTES_OF_ROUTE: Key = Key::optional(
    "body_bytes",
    BODY_BYTES.declared(),
    "Size of a request body, if smaller than in `limits`. Beyond: 413.",
);

pub(crate) const INSPECT_BYTES_OF_ROUTE: Key =
    Key::optional("inspect_bytes", INSPECT_BYTES.declared(), "As in `limits`, for the requests of this route.");

/// Reads the keys of a route that replace settings of its upstream or of `limits`. `None` after reporting a problem.
///
/// `of_file` are the settings for requests to language models, which the route may replace.
pub(crate) fn overrides(section: &Section<'_>, of_file: &LlmSettings) -> Option<Overrides> {
    let timeouts = section.optional("timeouts", timeouts);
    let retries = section.optional("retries", route_retries);
    let body_bytes = section.optional("body_bytes", |field| BODY_BYTES.read(field));
    let inspect_bytes = section.optional("inspect_bytes", |field| INSPECT_BYTES.read(field));
    let llm = section.optional("llm", llm);
    let LlmKeys { error_format, settings } = llm?.unwrap_or_default();
    let llm = (settings != LlmOverrides::default()).then(|| Arc::new(of_file.with(&settings)));
    Some(Overrides {
        timeouts: timeouts?.unwrap_or_default(),
        retries: retries?.unwrap_or_default(),
        body_bytes: body_bytes?,
        inspect_bytes: inspect_bytes?,
        error_format,
        llm,
    })
}

fn timeouts(field: Field<'_>) -> Option<Timeouts> {
    let section = field.section(&ROUTE_TIMEOUTS)?;
    let own = |name: &str| section.optional(name, |field| field.positive_duration());
    let (connect, first_byte, read, write) = (own("connect"), own("first_byte"), own("read"), own("write"));
    let total = section.optional("total", |field| {
        TOTAL.read(field).map(|total| total.map_or(TotalTimeout::None, TotalTimeout::After))
    });
    section.close();
    Some(Timeouts { connect: connect?, first_byte: first_byte?, read: read?, write: write?, total: total? })
}

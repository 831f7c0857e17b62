//! Reads `retries` of an upstream or a route: how often, and after which failures, a request is sent again.

use crate::keys::upstreams::PERCENT;
use crate::language::key::{Key, Mapping, Type, unconstrained};
use crate::language::reader::{Field, all};
use crate::language::shape::{List, Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use rules::route::retries::{RetryCause, RetryCauses, RouteRetries};

/// The settings for retries: when a request fails, the gateway may send the request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// The largest number of retries of one request.
    pub max: u32,
    /// The largest share of retries among all requests, in per cent.
    pub budget: u8,
    /// The failures after which a request is sent again.
    pub on: RetryCauses,
}

impl Retries {
    pub const DEFAULT: Retries = Retries { max: 1, budget: 20, on: RetryCauses::DEFAULT };
}

const MAX_DOC: &str = "Retries of one request, at another endpoint if there is one.";
const ON_DOC: &str = "The failures after which a request is sent again; this list replaces the default.";

const MAX: ValueKind<ParseText<u32>> = ValueKind::new("0 to 7", Shape::whole(0, 7), |max| max.parse().ok());

const CAUSE: ValueKind<ParseText<RetryCause>> = ValueKind::new(
    "`connect`, `reset`, 502, 503, 504",
    Shape::Either {
        of: &[
            Shape::Text(Text::new(Scalars::Spelling, &["^(connect|reset|502|503|504)$"], CAUSE_MUST)),
            Shape::whole(502, 504),
        ],
        must: Some(CAUSE_MUST),
    },
    RetryCause::parse,
);

const CAUSE_MUST: &str = "be connect, reset, 502, 503 or 504";

const ON: ValueKind<ReadField<RetryCauses>> = ValueKind::new(
    "list of `connect`, `reset`, 502, 503, 504",
    Shape::List(List::non_empty(&CAUSE.shape, "have at least one failure: `max: 0` turns retries off")),
    |field| Some(all(field.list()?, |member| CAUSE.read(member))?.into_iter().collect()),
);

pub(crate) static RETRIES: Mapping = Mapping {
    heading: Some("key in `retries`"),
    definition: None,
    keys: &[
        Key::default("max", Type::Whole { least: 0, most: 7 }, "1", MAX_DOC),
        Key::default("budget", PERCENT.declared(), "20%", "Retries, as a share of the requests. Ten are saved up."),
        Key::default("on", ON.declared(), "[connect, reset]", ON_DOC),
    ],
    constraints: unconstrained,
};

pub(crate) static ROUTE_RETRIES: Mapping = Mapping {
    heading: None,
    definition: None,
    keys: &[
        Key::depends("max", MAX.declared(), "as in the upstream", MAX_DOC),
        Key::depends("on", ON.declared(), "as in the upstream", ON_DOC),
    ],
    constraints: unconstrained,
};

/// Reads `retries` of an upstream. `None` after reporting a problem.
pub(crate) fn retries(field: Field<'_>) -> Option<Retries> {
    let section = field.section(&RETRIES)?;
    let (max, budget) = (section.whole("max"), section.value("budget", |field| PERCENT.read(field)));
    let on = section.value("on", |field| ON.read(field));
    section.close();
    Some(Retries { max: u32::try_from(max?).ok()?, budget: budget?, on: on? })
}

/// Reads `retries` of a route. `None` after reporting a problem.
pub(crate) fn route_retries(field: Field<'_>) -> Option<RouteRetries> {
    let section = field.section(&ROUTE_RETRIES)?;
    let max = section.optional("max", |field| MAX.read(field));
    let on = section.optional("on", |field| ON.read(field));
    section.close();
    Some(RouteRetries { max: max?, on: on? })
}

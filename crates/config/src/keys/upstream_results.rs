//! Reads lists of results of requests to an upstream: statuses, classes of statuses, and failures.

use crate::language::reader::{Field, all};
use crate::language::shape::{List, Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use rules::settled_price::UpstreamResults;

const REFUNDED: ValueKind<ParseText<String>> = ValueKind::new(
    "`connect`, status, `5xx`",
    Shape::Either {
        of: &[
            Shape::Text(Text::new(Scalars::Spelling, &["^(connect|[1-5][0-9][0-9]|[1-5]xx)$"], REFUNDED_MUST)),
            Shape::whole(100, 599),
        ],
        must: Some(REFUNDED_MUST),
    },
    |text| Some(text.to_owned()),
);

const REFUNDED_MUST: &str = "be connect, a status like 429, or a class of statuses like 5xx";

const COUNTED: ValueKind<ParseText<String>> = ValueKind::new(
    "`connect`, `timeout`, status, `5xx`, status of gRPC",
    Shape::Either {
        of: &[
            Shape::Text(Text::new(
                Scalars::Spelling,
                &["^(connect|timeout|[1-5][0-9][0-9]|[1-5]xx)$", GRPC],
                COUNTED_MUST,
            )),
            Shape::whole(100, 599),
        ],
        must: Some(COUNTED_MUST),
    },
    |text| Some(text.to_owned()),
);

const COUNTED_MUST: &str =
    "be connect, timeout, a status like 401, a class of statuses like 5xx, or a status of gRPC like UNAUTHENTICATED";

/// The names of the statuses of gRPC.
const GRPC: &str = "^(OK|CANCELLED|UNKNOWN|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|PERMISSION_DENIED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|ABORTED|OUT_OF_RANGE|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|DATA_LOSS|UNAUTHENTICATED)$";

/// The results that cost nothing.
pub(crate) const REFUND_ON: ValueKind<ReadField<UpstreamResults>> = ValueKind::new(
    "list of `connect`, statuses and classes (`5xx`)",
    Shape::List(List::of(&REFUNDED.shape)),
    |field| results(&field, REFUNDED),
);

/// The results that cost something.
pub(crate) const COUNT_ON: ValueKind<ReadField<UpstreamResults>> = ValueKind::new(
    "list of `connect`, `timeout`, statuses, classes (`5xx`) and statuses of gRPC",
    Shape::List(List::non_empty(&COUNTED.shape, "have at least one result")),
    |field| results(&field, COUNTED),
);

const RESET: ValueKind<ParseText<String>> = ValueKind::new(
    "status, `2xx`, status of gRPC",
    Shape::Either {
        of: &[
            Shape::Text(Text::new(Scalars::Spelling, &["^([1-5][0-9][0-9]|[1-5]xx)$", GRPC], RESET_MUST)),
            Shape::whole(100, 599),
        ],
        must: Some(RESET_MUST),
    },
    |text| Some(text.to_owned()),
);

const RESET_MUST: &str = "be a status like 200, a class of statuses like 2xx, or a status of gRPC like OK";

/// The results that forget what was spent.
pub(crate) const RESET_ON: ValueKind<ReadField<UpstreamResults>> = ValueKind::new(
    "list of statuses, classes (`2xx`) and statuses of gRPC",
    Shape::List(List::non_empty(&RESET.shape, "have at least one result")),
    |field| results(&field, RESET),
);

fn results(field: &Field<'_>, entry: ValueKind<ParseText<String>>) -> Option<UpstreamResults> {
    let mut results = UpstreamResults::default();
    for result in all(field.list()?, |member| entry.read(member))? {
        results.add(&result)?;
    }
    Some(results)
}

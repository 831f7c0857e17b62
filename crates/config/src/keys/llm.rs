//! Reads `llm`: settings for requests to models, of the whole file or of a route.

use std::num::NonZeroU64;

use crate::keys::upstream_results::REFUND_ON;
use crate::language::key::{BOOLEAN, Key, Mapping, Type, names, unconstrained};
use crate::language::reader::Field;
use crate::language::shape::Shape;
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types::AMOUNT;
use ledger::cost::{Cost, ExtraDecimals};
use request::request::Request;
use rules::route::error_format::ErrorFormat;
use rules::route::llm_settings::{LlmOverrides, OtherRequests};
use rules::route::route_set::RouteSet;

const ERROR_FORMAT: Key = Key::optional(
    "error_format",
    Type::Choice(&names(&ErrorFormat::ALL)),
    "Own error responses are in the format of this provider, in place of problem documents and `error_pages`.",
);

pub(crate) const LLM_OF_ROUTE: Key =
    Key::optional("llm", Type::Mapping(&LLM), "As `llm`. What is missing is that of the file.");

const OTHER: ValueKind<ParseText<OtherRequests>> = ValueKind::new(
    "`refuse`, `free`, number above 0",
    Shape::either(&[Shape::Words(&["refuse", "free"]), AMOUNT]),
    |text| match text {
        "refuse" => Some(OtherRequests::Refuse),
        "free" => Some(OtherRequests::Free),
        number => {
            let cost = Cost::parse(number.as_bytes(), ExtraDecimals::Refuse).filter(|cost| *cost > Cost::default());
            cost.map(OtherRequests::Cost)
        }
    },
);

pub(crate) static LLM: Mapping = Mapping {
    heading: Some("key in `llm`"),
    definition: None,
    keys: &[
        ERROR_FORMAT,
        Key::depends(
            "refund_on",
            REFUND_ON.declared(),
            "`[connect, 429, 5xx]`; on a route: as in the file",
            "Results of the upstream that cost nothing at limits with a cost of the response, unless the response names one.",
        ),
        Key::depends(
            "other",
            OTHER.declared(),
            "`refuse`; on a route: as in the file",
            "POST requests that are in no known format, and WebSockets, at limits on models: refused (400), free, or the cost.",
        ),
        Key::depends(
            "bytes_per_token",
            Type::Whole { least: 1, most: 1000 },
            "4; on a route: as in the file",
            "Bytes of text that are estimated as one token.",
        ),
        Key::depends(
            "media",
            Type::Whole { least: 0, most: 1_000_000 },
            "1500; on a route: as in the file",
            "Tokens that are estimated for each image, sound or file in a request, in place of its bytes.",
        ),
        Key::depends(
            "ask_for_usage",
            BOOLEAN,
            "true; on a route: as in the file",
            "Whether the gateway asks an OpenAI stream for its usage if the client does not, and takes the event with it out again.",
        ),
        Key::depends(
            "require_usage",
            BOOLEAN,
            "false; on a route: as in the file",
            "Whether all requests whose responses will not tell their usage are refused (400, `usage_required`), at limits on models.",
        ),
    ],
    constraints: unconstrained,
};

/// The settings of one `llm`, of the file or of a route. `None` for a key that is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LlmKeys {
    pub error_format: Option<ErrorFormat>,
    pub settings: LlmOverrides,
}

/// The formats of the gateway's own error responses, in the file and in its routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorFormats {
    /// The format of responses to requests whose route has no format of its own. `None`: problem documents.
    pub of_file: Option<ErrorFormat>,
    /// Whether any route has a format of its own.
    is_in_routes: bool,
}

impl ErrorFormats {
    pub(crate) fn new(of_file: Option<ErrorFormat>, routes: &RouteSet) -> ErrorFormats {
        ErrorFormats { of_file, is_in_routes: routes.routes().iter().any(|route| route.error_format().is_some()) }
    }

    /// Whether some responses are not problem documents.
    pub fn is_used(&self) -> bool {
        self.of_file.is_some() || self.is_in_routes
    }

    /// Returns the format of error responses to this request. `None`: a problem document. The route of a request
    /// depends on its head alone. So a response that precedes the choice of the route also has the route's format.
    pub fn of(&self, request: &Request<'_>, routes: &RouteSet) -> Option<ErrorFormat> {
        let route = || routes.route(routes.choose(request, |_| 0)?.route)?.error_format();
        if self.is_in_routes { route().or(self.of_file) } else { self.of_file }
    }
}

/// Reads `llm`. `None` after reporting a problem.
pub(crate) fn llm(field: Field<'_>) -> Option<LlmKeys> {
    let section = field.section(&LLM)?;
    let error_format = section.optional("error_format", |field| field.choice(&ErrorFormat::ALL));
    let refund_on = section.optional("refund_on", |field| REFUND_ON.read(field));
    let other = section.optional("other", |field| OTHER.read(field));
    let bytes_per_token =
        section.optional("bytes_per_token", |field| field.whole(1..=1000)).map(|bytes| bytes.and_then(NonZeroU64::new));
    let media = section.optional("media", |field| field.whole(0..=1_000_000));
    let ask_for_usage = section.optional("ask_for_usage", |field| field.boolean());
    let require_usage = section.optional("require_usage", |field| field.boolean());
    section.close();
    let settings = LlmOverrides {
        ask_for_usage: ask_for_usage?,
        require_usage: require_usage?,
        media: media?,
        refund_on: refund_on?,
        other: other?,
        bytes_per_token: bytes_per_token?,
    };
    Some(LlmKeys { error_format: error_format?, settings })
}

//! Reads `llm`: settings for requests to models, of the whole file or of a route.

use crate::language::key::{Key, Mapping, Type, names, unconstrained};
use crate::language::reader::Field;
use request::request::Request;
use rules::route::error_format::ErrorFormat;
use rules::route::route_set::RouteSet;

const ERROR_FORMAT: Key = Key::optional(
    "error_format",
    Type::Choice(&names(&ErrorFormat::ALL)),
    "Own error responses are in the format of this provider, in place of problem documents and `error_pages`.",
);

pub(crate) const LLM_OF_ROUTE: Key =
    Key::optional("llm", Type::Mapping(&LLM), "As `llm`. What is missing is that of the file.");

pub(crate) static LLM: Mapping =
    Mapping { heading: Some("key in `llm`"), definition: None, keys: &[ERROR_FORMAT], constraints: unconstrained };

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

    /// Returns the format of error responses to this request. The route of a request depends on its head alone, so the format is
    /// known before the route is chosen. `None`: a problem document.
    pub fn of(&self, request: &Request<'_>, routes: &RouteSet) -> Option<ErrorFormat> {
        let route = || routes.route(routes.choose(request, |_| 0)?.route)?.error_format();
        if self.is_in_routes { route().or(self.of_file) } else { self.of_file }
    }
}

/// Reads `llm`. `None` after reporting a problem, `Some(None)` if it sets no format.
pub(crate) fn llm(field: Field<'_>) -> Option<Option<ErrorFormat>> {
    let section = field.section(&LLM)?;
    let error_format = section.optional("error_format", |field| field.choice(&ErrorFormat::ALL));
    section.close();
    error_format
}

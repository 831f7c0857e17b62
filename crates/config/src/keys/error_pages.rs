//! Reads `error_pages`: the operator's texts for responses of the gateway.

use http::header::{ALLOW, CACHE_CONTROL, HeaderName, HeaderValue, RETRY_AFTER, VARY, WWW_AUTHENTICATE};

use crate::keys::routes::header_names::header_value;
use crate::keys::routes::route_answers::HEADERS;
use crate::keys::rules::restricted_match::{Restriction, is_of_credentials};
use crate::keys::rules::rule_match::CONDITIONS;
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, PATH, TEXT};
use crate::language::reader::{Field, all};
use crate::language::shape::{List, Shape};
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use decision::error_pages::{ErrorPage, ErrorPages, Template};

/// The size of the largest body, in bytes. The size is bounded because bodies are kept in memory.
const LONGEST_BODY: usize = 1 << 20;

/// Header fields that the gateway itself sets in its responses.
const OF_RESPONSES: [HeaderName; 5] = [CACHE_CONTROL, RETRY_AFTER, WWW_AUTHENTICATE, ALLOW, VARY];

const STATUS: ValueKind<ParseText<u16>> =
    ValueKind::new("400 to 599", Shape::whole(400, 599), |text| text.parse().ok());

const STATUSES: ValueKind<ReadField<Vec<u16>>> = ValueKind::new(
    "list of statuses, 400 to 599",
    Shape::List(List::non_empty(&STATUS.shape, "have at least one status")),
    |field| all(field.list()?, |member| STATUS.read(member)),
);

pub(crate) static ERROR_PAGE: Mapping = Mapping {
    heading: Some("key of an entry of `error_pages`"),
    definition: None,
    keys: &[
        Key::optional(
            "match",
            CONDITIONS,
            "Conditions, which may not read credentials: `path`, `host`, `header:accept`.",
        ),
        Key::optional("status", STATUSES.declared(), "The statuses. Without the key: all."),
        Key::required(
            "body_file",
            PATH,
            "The body, at most 1MiB. `{status}`, `{request_id}` and `{retry_after}` are filled in.",
        ),
        Key::default("content_type", TEXT, "text/html; charset=utf-8", "The `Content-Type`."),
        Key::default("headers", HEADERS.declared(), "{}", "Further header fields, by name."),
    ],
    constraints: crate::language::key::unconstrained,
};

pub(crate) fn error_pages(
    field: &Field<'_>,
    restriction: Restriction<'_>,
    environment: Environment<'_>,
) -> Option<ErrorPages> {
    let members = field.list_of_mappings()?;
    if members.is_empty() {
        field.must("have at least one entry");
        return None;
    }
    all(members, |member| error_page(member, restriction, environment)).map(ErrorPages)
}

fn error_page(field: Field<'_>, restriction: Restriction<'_>, environment: Environment<'_>) -> Option<ErrorPage> {
    let section = field.section(&ERROR_PAGE)?;
    let conditions = section.get("match").map_or(Some(Vec::new()), |field| {
        restriction.conditions(&field, |attribute| match attribute {
            attribute if is_of_credentials(attribute) => {
                Some("a request may be refused before its credentials are verified")
            }
            attribute if attribute.needs_body() => Some("a request may be refused before its body is read"),
            _ => None,
        })
    });
    let statuses = section.optional("status", |field| STATUSES.read(field));
    let text = section.need("body_file").and_then(|field| text(&field, environment));
    let content_type = section.value("content_type", |field| header_value(&field));
    let headers = section.value("headers", headers);
    section.close();
    let content_type = content_type?;
    Some(ErrorPage {
        conditions: conditions?,
        statuses: statuses?.unwrap_or_default(),
        body: Template::new(&text?, content_type.to_str().unwrap_or_default()),
        content_type,
        headers: headers?,
    })
}

fn text(field: &Field<'_>, environment: Environment<'_>) -> Option<String> {
    let bytes = environment.file(field)?;
    if bytes.len() > LONGEST_BODY {
        field.wrong("must be at most 1MiB long", None);
        return None;
    }
    let text = String::from_utf8(bytes).ok();
    if text.is_none() {
        field.wrong("must be a file of UTF-8 text", None);
    }
    text
}

fn headers(field: Field<'_>) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let mut valid = true;
    for (name, position, member) in field.pairs()? {
        let known = HeaderName::from_bytes(name.as_bytes()).ok();
        let is_ours = |name: &HeaderName| OF_RESPONSES.contains(name) || name.as_str().starts_with("access-control-");
        if known.as_ref().is_some_and(is_ours) {
            member.at(position).wrong(format_args!("`{}` is set by the gateway", name.to_ascii_lowercase()), None);
            valid = false;
        }
    }
    HEADERS.read(field).filter(|_| valid)
}

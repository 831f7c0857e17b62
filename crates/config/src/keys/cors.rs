//! Reads `cors`: which pages of other origins may send requests and read the responses.

use http::HeaderValue;
use http::header::HeaderName;
use serde_json::json;

use crate::keys::headers::HeaderFormat;
use crate::keys::llm::ErrorFormats;
use crate::keys::rules::restricted_match::{Restriction, is_of_credentials};
use crate::keys::rules::rule_match::CONDITIONS;
use crate::language::duration;
use crate::language::key::{BOOLEAN, Key, Mapping};
use crate::language::reader::{Field, all};
use crate::language::shape::{Duration, List, Scalars, Shape, Text};
use crate::language::suggest::nearest_name;
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use crate::language::value_types::SCALAR;
use base::http_method;
use base::time::Micros;
use decision::cors::{Cors, CorsEntry, Origins, PreflightFields};
use request::attribute::Attribute;

/// The member of a list that allows everything, such as every origin.
const ANY: &str = "*";

const ORIGIN: ValueKind<ParseText<Box<str>>> = ValueKind::reporting(
    "origin",
    Shape::Text(Text::new(
        Scalars::Text,
        &[r"^(\*|[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+)$"],
        "be an origin as browsers send it, like https://app.example.com or http://localhost:3000, or \"*\"",
    )),
    |origin| (origin == ANY || is_origin(origin)).then(|| origin.into()),
    |field, must| {
        let corrected = corrected(field.text_if_any().unwrap_or_default()).filter(|origin| is_origin(origin));
        field.must_hinting(must, corrected.map(|corrected| format!("browsers send `{corrected}`")));
    },
);

const ORIGINS: ValueKind<ReadField<Origins>> = ValueKind::new(
    "list of origins, or of `\"*\"`",
    Shape::List(List::non_empty(&ORIGIN.shape, "have at least one origin")),
    origins,
);

/// Reads a list of methods. The second argument lists unregistered methods that the gateway forwards anyway.
type ReadMethods = fn(Field<'_>, &[String]) -> Option<Vec<String>>;

const METHODS: ValueKind<ReadMethods> = ValueKind::new(
    "list of methods",
    Shape::List(List::non_empty(&SCALAR, "have at least one method")),
    |field, extra| all(field.list()?, |member| method(&member, extra)),
);

const HEADERS: ValueKind<ReadField<Vec<String>>> =
    ValueKind::new("list of header names", Shape::List(List::of(&SCALAR)), |field| {
        all(field.list()?, |member| header(&member))
    });

const MAX_AGE: ValueKind<ParseText<u64>> = ValueKind::new(
    "duration",
    // A longer duration is rejected, because browsers keep permissions for at most one day.
    Shape::Duration(Duration::at_most(Micros(86_400_000_000), "be at most 1d")),
    |text| Some(duration::parse(text)?.0 / 1_000_000),
);

pub(crate) static CORS: Mapping = Mapping {
    heading: Some("key of an entry of `cors`"),
    definition: None,
    keys: &[
        Key::optional("match", CONDITIONS, "Conditions, not on credentials, headers, cookies or the method."),
        Key::required("origins", ORIGINS.declared(), "The origins of these pages. `\"*\"`: any."),
        Key::default("methods", METHODS.declared(), "[GET, HEAD, POST]", "What such pages may send."),
        Key::default(
            "headers",
            HEADERS.declared(),
            "[]",
            "Headers that such pages may set. `\"*\"`: any but `authorization`.",
        ),
        Key::default(
            "credentials",
            BOOLEAN,
            "false",
            "Whether such pages may send cookies; then nothing may be `\"*\"`.",
        ),
        Key::default("max_age", MAX_AGE.declared(), "10m", "How long a browser may remember the answer: at most `1d`."),
    ],
    constraints: || {
        let without_any = json!({"not": {"contains": {"const": ANY}}});
        json!({
            "if": {"required": ["credentials"], "properties": {"credentials": {"const": true}}},
            "then": {"properties": {"origins": without_any, "headers": without_any}}
        })
    },
};

/// Reads `cors`. The fields of this reader are settings of other keys, on which `cors` depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CorsReader<'c> {
    pub restriction: Restriction<'c>,
    pub extra_methods: &'c [String],
    /// The formats of the rate-limit fields in responses. `cors` allows web pages to read these fields.
    pub formats: &'c [HeaderFormat],
    /// The formats of error responses, which have fields of their own.
    pub error_formats: ErrorFormats,
}

impl CorsReader<'_> {
    pub(crate) fn cors(&self, field: &Field<'_>) -> Option<Cors> {
        let entries = all(filled_list(field, "entry")?, |member| self.entry(member))?;
        Some(Cors { entries, exposed: self.exposed()? })
    }

    fn entry(&self, field: Field<'_>) -> Option<CorsEntry> {
        let section = field.section(&CORS)?;
        let conditions = section.get("match").map_or(Some(Vec::new()), |field| {
            self.restriction.conditions(&field, |attribute| match attribute {
                attribute if is_of_credentials(attribute) => Some("a preflight has no credentials"),
                Attribute::Header(_) | Attribute::Cookie(_) | Attribute::Method => {
                    Some("a preflight does not have that of the request which it asks for")
                }
                attribute if attribute.needs_body() => Some("a preflight has no body"),
                Attribute::Route | Attribute::Upstream => Some("a preflight is answered before the route is chosen"),
                Attribute::Descriptor(_) => Some("a preflight is no decision for another proxy"),
                _ => None,
            })
        });
        let origins = section.need("origins").and_then(|field| ORIGINS.read(field));
        let methods = section.value("methods", |field| (METHODS.checked(&field)?)(field, self.extra_methods));
        let headers = section.value("headers", |field| HEADERS.read(field));
        let credentials = section.value("credentials", |field| field.boolean());
        let max_age = section.value("max_age", |field| MAX_AGE.read(field));
        let any_headers = headers.as_ref().is_some_and(|headers| headers.iter().any(|name| name == ANY));
        let mut valid = true;
        for (key, is_any) in [("origins", origins == Some(Origins::Any)), ("headers", any_headers)] {
            if credentials == Some(true) && is_any {
                let why =
                    "must not be `*` beside `credentials: true`: any site could act as the user; browsers refuse it";
                section.unwanted(key, why);
                valid = false;
            }
        }
        section.close();
        let (headers, methods) = (headers?, methods?);
        let preflight = PreflightFields {
            methods: HeaderValue::from_str(&methods.join(", ")).ok()?,
            headers: (!headers.is_empty()).then(|| HeaderValue::from_str(&headers.join(", ")).ok()).flatten(),
            max_age: HeaderValue::from(max_age?),
        };
        let entry = CorsEntry { conditions: conditions?, origins: origins?, credentials: credentials?, preflight };
        valid.then_some(entry)
    }

    fn exposed(&self) -> Option<HeaderValue> {
        let fields = self.formats.iter().map(|format| match format {
            HeaderFormat::RateLimit => "RateLimit-Policy, RateLimit",
            HeaderFormat::Legacy => "RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset",
            HeaderFormat::XRateLimit => "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset",
        });
        let of_formats = self.error_formats.is_used().then_some("Retry-After-Ms, X-Should-Retry");
        let all: Vec<&str> = fields.chain(["Retry-After", "X-Request-Id"]).chain(of_formats).collect();
        HeaderValue::from_str(&all.join(", ")).ok()
    }
}

/// Returns the members of a list. Reports an empty list.
fn filled_list<'t>(field: &Field<'t>, of: &str) -> Option<Vec<Field<'t>>> {
    let members = field.list()?;
    if members.is_empty() {
        field.must(format_args!("have at least one {of}"));
        return None;
    }
    Some(members)
}

fn origins(field: Field<'_>) -> Option<Origins> {
    let members = field.list()?;
    let count = members.len();
    let listed = all(members, |member| member.known_or("https://unknown.invalid", |field| ORIGIN.read(field)))?;
    if !listed.iter().any(|origin| **origin == *ANY) {
        return Some(Origins::Listed(listed));
    }
    if count > 1 {
        field.wrong("must have no other origin beside `*`, which is any", None);
        return None;
    }
    Some(Origins::Any)
}

/// Returns the origin as a browser sends it: in lower case, without a path or a default port.
fn corrected(origin: &str) -> Option<String> {
    let (scheme, rest) = origin.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (scheme, authority) = (scheme.to_ascii_lowercase(), authority.to_ascii_lowercase());
    let usual = if scheme == "https" { ":443" } else { ":80" };
    Some(format!("{scheme}://{}", authority.strip_suffix(usual).unwrap_or(&authority)))
}

/// Whether a text is an origin (RFC 6454, section 6.2): a scheme, a host, and a port that is not the default.
fn is_origin(text: &str) -> bool {
    let Some((scheme, authority)) = text.split_once("://") else { return false };
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'.' | b'-'));
    let usual = matches!((scheme, authority.rsplit_once(':')), ("http", Some((_, "80"))) | ("https", Some((_, "443"))));
    let is_authority = authority.parse::<http::uri::Authority>().is_ok_and(|known| !known.host().is_empty())
        && !authority.contains(['@', '*'])
        && !authority.bytes().any(|byte| byte.is_ascii_uppercase());
    is_scheme && is_authority && !usual && HeaderValue::from_str(text).is_ok()
}

fn method(field: &Field<'_>, extra: &[String]) -> Option<String> {
    let method = field.text()?;
    if http_method::is_registered(method.as_bytes()) || extra.iter().any(|extra| extra == method) {
        return Some(method.to_owned());
    }
    let upper = method.to_ascii_uppercase();
    let hint = match http_method::is_registered(upper.as_bytes()) {
        true => format!("did you mean {upper}?"),
        false => "a method of your own must be in limits.extra_methods as well".to_owned(),
    };
    field.must_hinting("be a registered method, with its case", Some(hint));
    None
}

fn header(field: &Field<'_>) -> Option<String> {
    let name = field.text()?;
    if name == ANY {
        return Some(name.to_owned());
    }
    let Ok(known) = HeaderName::from_bytes(name.as_bytes()) else {
        let hint = nearest_name(name, &["authorization", "content-type", "x-api-key"])
            .map(|near| format!("did you mean `{near}`?"));
        field.must_hinting("be the name of a header", hint);
        return None;
    };
    Some(known.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_a_browser_sends() {
        for origin in ["https://a", "http://localhost:3000", "http://[::1]:8443", "chrome-extension://abc"] {
            assert!(is_origin(origin), "{origin}");
        }
        for (origin, hint) in [
            ("https://a/", Some("https://a")),
            ("https://A.example", Some("https://a.example")),
            ("https://a:443", Some("https://a")),
            ("http://a:80/x", Some("http://a")),
            ("https://*.a", None),
            ("https://u@a", None),
            ("https://", None),
            ("a.example", None),
            ("null", None),
        ] {
            assert!(!is_origin(origin), "{origin}");
            assert_eq!(corrected(origin).filter(|corrected| is_origin(corrected)).as_deref(), hint, "{origin}");
        }
    }
}

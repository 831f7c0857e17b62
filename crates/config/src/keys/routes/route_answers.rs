//! Reads `redirect` and `respond` of a route, which answer requests without an upstream.

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use serde_json::json;

use crate::keys::routes::header_names::{Message, header_name, header_value};
use crate::keys::routes::path_rewrite::{REPLACE_PREFIX, STRIP_PREFIX, path_rewrite};
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, PATH, TEXT, Type, names};
use crate::language::reader::{Field, Section};
use crate::language::shape::{Shape, Whole};
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use crate::language::value_types::SCALAR;
use rules::route::redirect::Redirect;
use rules::route::target::Respond;
use rules::rule::Condition;

const CODES: [(&str, u16); 5] = [("301", 301), ("302", 302), ("303", 303), ("307", 307), ("308", 308)];
const SCHEMES: [(&str, &str); 2] = [("http", "http"), ("https", "https")];

/// The size of the largest body, in bytes. The size is bounded because bodies are kept in memory.
const LONGEST_BODY: usize = 1 << 20;

const CODE: ValueKind<ReadField<u16>> =
    ValueKind::new("`301`, `302`, `303`, `307`, `308`", Shape::Numerals(&names(&CODES)), |field| field.choice(&CODES));

const STATUS: ValueKind<ParseText<u16>> = ValueKind::new(
    "200 to 599",
    Shape::Whole(Whole { except: &[502, 504], why: "which reports that an upstream failed", ..Whole::new(200, 599) }),
    |status| status.parse().ok(),
);

const PORT: ValueKind<ParseText<u16>> = ValueKind::new("1 to 65535", Shape::whole(1, 65_535), |port| port.parse().ok());

pub(crate) static REDIRECT: Mapping = Mapping {
    heading: Some("key in `redirect`"),
    definition: None,
    keys: &[
        Key::default("code", CODE.declared(), "308", "The status. With 307 and 308 clients keep method and body."),
        Key::depends("scheme", Type::Choice(&names(&SCHEMES)), "as in the request", "The scheme to go to."),
        Key::depends("host", HOST.declared(), "as in the request", "The host to go to, without a port."),
        Key::depends(
            "port",
            PORT.declared(),
            "that of the request; with a `scheme` or a `host`, the usual one",
            "The port to go to.",
        ),
        STRIP_PREFIX,
        REPLACE_PREFIX,
    ],
    constraints: || {
        let changes = ["scheme", "host", "port", "strip_prefix", "replace_prefix"];
        json!({
            "anyOf": changes.map(|name| json!({"required": [name]})),
            "not": {"required": ["strip_prefix", "replace_prefix"]}
        })
    },
};

pub(crate) static RESPOND: Mapping = Mapping {
    heading: Some("key in `respond`"),
    definition: None,
    keys: &[
        Key::required("status", STATUS.declared(), "The status, other than 502 and 504."),
        Key::default("body", TEXT, "''", "The body, at most 1MiB; none with 204, 205 and 304."),
        Key::optional("body_file", PATH, "A file that holds the body instead."),
        Key::default("content_type", TEXT, "text/plain; charset=utf-8", "The `Content-Type` of a body."),
        Key::default("headers", HEADERS.declared(), "{}", "Further header fields, by name."),
    ],
    constraints: || json!({"not": {"required": ["body", "body_file"]}}),
};

const HOST: ValueKind<ParseText<String>> = ValueKind::new(
    "host",
    Shape::WithMessage { must: "be a host without a port, like www.example.com", of: &SCALAR },
    |host| {
        let is_bare = http::uri::Authority::try_from(host).is_ok_and(|authority| authority.host() == host);
        is_bare.then(|| host.to_owned())
    },
);

pub(crate) const HEADERS: ValueKind<ReadField<Vec<(HeaderName, HeaderValue)>>> =
    ValueKind::new("mapping of texts", Shape::Map { of: &SCALAR, least: 0, empty: "" }, headers);

/// Reads `redirect` of a route. `conditions` are the conditions of the route, and `None` if they are invalid.
pub(crate) fn redirect(field: Field<'_>, conditions: Option<&[Condition]>) -> Option<Redirect> {
    let section = field.section(&REDIRECT)?;
    let code = section.value("code", |field| CODE.read(field));
    let scheme = section.optional("scheme", |field| field.choice(&SCHEMES));
    // An unknown host becomes a host that no request has, so that the route does not look like a redirection to itself.
    let host = section
        .get("host")
        .map_or(Some(None), |field| field.known_or("unknown.invalid", |field| HOST.read(field)).map(Some));
    let port = section.optional("port", |field| PORT.read(field));
    let path = path_rewrite(&section, conditions);
    let changes = ["scheme", "host", "port", "strip_prefix", "replace_prefix"].iter().any(|name| section.has(name));
    if !changes {
        let what =
            "missing, and so are `host`, `port`, `strip_prefix` and `replace_prefix`: clients would be sent back";
        section.wrong("scheme", what);
    }
    section.close();
    let path = path?.map(|rewrite| rewrite.replacement);
    let redirect = Redirect { code: code?, scheme: scheme?, host: host?, port: port?, path };
    changes.then_some(redirect)
}

pub(crate) fn respond(field: Field<'_>, environment: Environment<'_>) -> Option<Respond> {
    let section: Section<'_> = field.section(&RESPOND)?;
    let status = section.need("status").and_then(|field| STATUS.read(field));
    let body = body(&section, environment);
    let content_type = section.value("content_type", |field| header_value(&field));
    let headers = section.value("headers", |field| HEADERS.read(field));
    if let (Some(204 | 205 | 304), Some(body)) = (status, &body)
        && !body.is_empty()
    {
        let key = if section.has("body") { "body" } else { "body_file" };
        section.unwanted(key, "must be empty: a response of this status has no body");
    }
    section.close();
    Some(Respond { status: status?, body: body?, content_type: content_type?, headers: headers? })
}

fn body(section: &Section<'_>, environment: Environment<'_>) -> Option<Bytes> {
    let text = section.value("body", |field| {
        let body = Bytes::copy_from_slice(field.written()?.as_bytes());
        short(&field, body)
    });
    let file = section.optional("body_file", |field| {
        let body = environment.file(&field)?;
        short(&field, body.into())
    });
    if section.has("body") && section.has("body_file") {
        section.unwanted("body_file", "must not stand beside `body`");
        return None;
    }
    Some(match file? {
        Some(file) => file,
        None => text?,
    })
}

fn short(field: &Field<'_>, body: Bytes) -> Option<Bytes> {
    if body.len() > LONGEST_BODY {
        field.wrong("must be at most 1MiB long", None);
        return None;
    }
    Some(body)
}

fn headers(field: Field<'_>) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let mut taken = Vec::new();
    let read = |(name, position, field): (&str, _, Field<'_>)| {
        let at_key = field.clone().at(position);
        let name = header_name(&at_key, name, Message::Response).filter(|name| {
            let has_key = name == http::header::CONTENT_TYPE;
            if has_key {
                at_key.wrong("`content-type` is set by `content_type`", None);
            }
            let is_new = !taken.contains(name);
            if !is_new {
                at_key.wrong(format_args!("`{name}` is there twice"), None);
            }
            taken.push(name.clone());
            !has_key && is_new
        });
        // The value may be a credential.
        let value = header_value(&field.hidden());
        Some((name?, value?))
    };
    let read: Vec<_> = field.pairs()?.into_iter().map(read).collect();
    read.into_iter().collect()
}

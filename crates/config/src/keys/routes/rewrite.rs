//! Reads `rewrite` of a route: the path and the `Host` in the request to the upstream.

use http::HeaderValue;
use http::uri::Authority;
use serde_json::json;

use crate::keys::routes::path_rewrite::{REPLACE_PREFIX, STRIP_PREFIX, path_rewrite};
use crate::language::key::{Key, Mapping};
use crate::language::reader::Field;
use crate::language::shape::Shape;
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types::SCALAR;
use rules::route::forwarding::Rewrite;
use rules::rule::Condition;

const HOST: ValueKind<ParseText<HeaderValue>> = ValueKind::new(
    "host",
    Shape::WithMessage { must: "be a host, with a port or without one, like api.internal", of: &SCALAR },
    |host| {
        let is_host = Authority::try_from(host).is_ok_and(|authority| !authority.as_str().contains('@'));
        HeaderValue::from_str(host).ok().filter(|_| is_host)
    },
);

pub(crate) static REWRITE: Mapping = Mapping {
    heading: Some("key in `rewrite`"),
    definition: None,
    keys: &[STRIP_PREFIX, REPLACE_PREFIX, Key::optional("host", HOST.declared(), "The `Host` that the upstream gets.")],
    constraints: || json!({"minProperties": 1, "not": {"required": ["strip_prefix", "replace_prefix"]}}),
};

/// Reads `rewrite` of a route. `conditions` are the conditions of the route, and `None` if they are invalid.
pub(crate) fn rewrite(field: Field<'_>, conditions: Option<&[Condition]>) -> Option<Rewrite> {
    let section = field.clone().section(&REWRITE)?;
    let path = path_rewrite(&section, conditions);
    let host = section.optional("host", |field| HOST.read(field));
    let is_empty = field.is_empty();
    if is_empty {
        field.must("rewrite something");
    }
    section.close();
    let (path, stripped) = match path? {
        Some(path) => {
            // A normalised path contains only printable characters, so it is a valid value of a header field.
            let stripped = path.stripped.and_then(|stripped| HeaderValue::try_from(stripped).ok());
            (Some(path.replacement), stripped)
        }
        None => (None, None),
    };
    Some(Rewrite { path, stripped, host: host? }).filter(|_| !is_empty)
}

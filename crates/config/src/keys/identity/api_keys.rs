//! Reads `api_keys`, and the file with the API keys.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use serde_json::{Value, json};

use crate::keys::upstreams::PERCENT;
use crate::language::environment::Environment;
use crate::language::key::{BOOLEAN, Key, Mapping, PATH, Type, names};
use crate::language::reader::{Field, all};
use crate::language::shape::{List, Scalars, Shape, Text};
use crate::language::suggest::nearest;
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use identity::api_key_file;
use identity::api_keys::{ApiKeySet, ApiKeys, KeyForwarding, OnInvalid};
use request::attribute::{Attribute, AttributeError};
use request::key_places::{KeyPlace, KeyPlaces};

/// The key in gateway.yaml that names the file with the API keys.
pub const FILE: &str = "api_keys.file";

const ON_INVALID: [(&str, OnInvalid); 2] = [("reject", OnInvalid::Reject), ("anonymous", OnInvalid::Anonymous)];

/// A part of a request that may contain the API key.
const PLACE: ValueKind<ParseText<KeyPlace>> = ValueKind::reporting(
    "`bearer`, `header:<name>`, `query:<name>`, `cookie:<name>`",
    Shape::Text(Text::new(
        Scalars::Text,
        &[r"^(bearer$|header:[!#$%&'*+.^_`|~0-9A-Za-z-]+$|(query|cookie):[\s\S])"],
        "be bearer, header:<name>, query:<name> or cookie:<name>",
    )),
    |text| match Attribute::parse(text) {
        _ if text == BEARER => Some(KeyPlace::Bearer),
        Ok(from @ (Attribute::Header(_) | Attribute::Query(_) | Attribute::Cookie(_))) => {
            Some(KeyPlace::Attribute(from))
        }
        _ => None,
    },
    no_place,
);

const BEARER: &str = "bearer";

const FROM: ValueKind<ReadField<Vec<KeyPlace>>> = ValueKind::new(
    "`bearer`, `header:<name>`, `query:<name>`, `cookie:<name>`, or a list of them",
    Shape::OneOrList(List { unique: true, ..List::non_empty(&PLACE.shape, "name at least one place") }),
    places,
);

pub(crate) static API_KEYS: Mapping = Mapping {
    heading: Some("key in `api_keys`"),
    definition: None,
    keys: &[
        Key::required(
            "from",
            FROM.declared(),
            "Where a request may carry its key. Different keys in two of the places: 400.",
        ),
        Key::required("file", PATH, "The file of keys."),
        Key::default(
            "on_invalid",
            Type::Choice(&names(&ON_INVALID)),
            "reject",
            "With an unknown key. `reject`: 401 `key_invalid`. `anonymous`: as a request without a key.",
        ),
        Key::default("forward", BOOLEAN, "true", "Whether the upstream gets the key."),
        Key::default(
            "max_shrink",
            PERCENT.declared(),
            "50%",
            "How much of the file may be lost at once; if more is lost, nothing changes.",
        ),
    ],
    constraints: api_keys_constraints,
};

fn api_keys_constraints() -> Value {
    json!({
        "if": {"properties": {"from": {"type": "array"}}},
        "then": {"properties": {"from": {"not": {"allOf": [
            {"contains": {"const": "bearer"}},
            {"contains": {"pattern": "^header:[Aa][Uu][Tt][Hh][Oo][Rr][Ii][Zz][Aa][Tt][Ii][Oo][Nn]$"}}
        ]}}}}
    })
}

/// Reads `api_keys`. `token_from` are the attributes that may carry a token.
pub(crate) fn api_keys(
    field: Field<'_>,
    token_from: &[Attribute],
    environment: Environment<'_>,
) -> Option<Arc<ApiKeys>> {
    let section = field.section(&API_KEYS)?;
    let from = section.need("from").and_then(|field| FROM.read(field));
    let file = section.need("file");
    let keys = file.as_ref().and_then(|field| keys(field, environment));
    let on_invalid = section.choice("on_invalid", &ON_INVALID);
    let forward = section.value("forward", |field| field.boolean());
    let max_shrink = section.value("max_shrink", |field| PERCENT.read(field));
    section.close();
    let (file, keys, max_shrink) = (file?, keys?, max_shrink?);
    let written = file.written()?;
    file.note_list(written, keys.len(), max_shrink);
    let path = environment.folder.join(written);
    let from = KeyPlaces::new(from?, token_from);
    let forwarding = if forward? { KeyForwarding::Forwarded } else { KeyForwarding::Withheld };
    let api_keys = ApiKeys::new(from, on_invalid?, path, keys).losing_at_most(max_shrink);
    Some(Arc::new(api_keys.forwarding(forwarding)))
}

/// Reads one place or a list of places. Each may be listed only once.
fn places(field: Field<'_>) -> Option<Vec<KeyPlace>> {
    let members = field.one_or_list()?;
    let places = all(members.clone(), |member| PLACE.read(member))?;
    let mut seen = HashSet::new();
    for (member, place) in members.iter().zip(&places) {
        if !seen.insert(place) {
            member.wrong(format_args!("`{place}` is listed twice"), None);
            return None;
        }
    }
    let whole = KeyPlace::Attribute(Attribute::Header(AUTHORIZATION));
    if places.contains(&KeyPlace::Bearer) && places.contains(&whole) {
        let hint = "header:authorization has the scheme in it, so that it differs from bearer";
        field.wrong("must have bearer or header:authorization, not both", Some(hint.to_owned()));
        return None;
    }
    Some(places)
}

fn no_place(field: &Field<'_>, must: &str) {
    let written = field.text_if_any().unwrap_or_default();
    if matches!(Attribute::parse(written), Err(AttributeError::BadHeaderName)) {
        return field.must("name a header that can exist");
    }
    let kinds = ["header:", "query:", "cookie:", BEARER];
    let kind = written.split_inclusive(':').next().unwrap_or_default();
    field.must_hinting(must, nearest(kind, &kinds).filter(|_| !kinds.contains(&kind)));
}

/// Reads the API keys in the file. Problems are reported with their positions in that file.
fn keys(field: &Field<'_>, environment: Environment<'_>) -> Option<ApiKeySet> {
    let path = field.written()?;
    match api_key_file::parse(&environment.file(field)?) {
        Ok(keys) => Some(keys),
        Err(faults) => {
            let file = environment.folder.join(Path::new(path)).display().to_string();
            for fault in faults {
                field.elsewhere(&file, fault.position, fault.kind.to_string());
            }
            None
        }
    }
}

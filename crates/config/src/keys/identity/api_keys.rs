//! Reads `api_keys`, and the file with the API keys.

use std::path::Path;
use std::sync::Arc;

use crate::keys::upstreams::PERCENT;
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, PATH, Type, names, unconstrained};
use crate::language::reader::Field;
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::suggest::nearest;
use crate::language::value_kind::{ParseText, ValueKind};
use identity::api_key_file;
use identity::api_keys::{ApiKeySet, ApiKeys, OnInvalid};
use request::attribute::{Attribute, AttributeError};

/// The key in gateway.yaml that names the file with the API keys. Used to recognise problems and lists of that file.
pub const FILE: &str = "api_keys.file";

const ON_INVALID: [(&str, OnInvalid); 2] = [("reject", OnInvalid::Reject), ("anonymous", OnInvalid::Anonymous)];

/// The part of a request that contains the API key.
const FROM: ValueKind<ParseText<Attribute>> = ValueKind::reporting(
    "`header:<name>`, `query:<name>`, `cookie:<name>`",
    Shape::Text(Text::new(
        Scalars::Text,
        &[r"^(header:[!#$%&'*+.^_`|~0-9A-Za-z-]+$|(query|cookie):[\s\S])"],
        "be header:<name>, query:<name> or cookie:<name>",
    )),
    |text| match Attribute::parse(text) {
        Ok(from @ (Attribute::Header(_) | Attribute::Query(_) | Attribute::Cookie(_))) => Some(from),
        _ => None,
    },
    no_carrier,
);

pub(crate) static API_KEYS: Mapping = Mapping {
    heading: Some("key in `api_keys`"),
    definition: None,
    keys: &[
        Key::required("from", FROM.declared(), "Where a request carries its key."),
        Key::required("file", PATH, "The file of keys."),
        Key::default(
            "on_invalid",
            Type::Choice(&names(&ON_INVALID)),
            "reject",
            "With an unknown key. `reject`: 401 `key_invalid`. `anonymous`: as a request without a key.",
        ),
        Key::default(
            "max_shrink",
            PERCENT.declared(),
            "50%",
            "How much of the file may be lost at once; if more is lost, nothing changes.",
        ),
    ],
    constraints: unconstrained,
};

pub(crate) fn api_keys(field: Field<'_>, environment: Environment<'_>) -> Option<Arc<ApiKeys>> {
    let section = field.section(&API_KEYS)?;
    let from = section.need("from").and_then(|field| FROM.read(field));
    let file = section.need("file");
    let keys = file.as_ref().and_then(|field| keys(field, environment));
    let on_invalid = section.choice("on_invalid", &ON_INVALID);
    let max_shrink = section.value("max_shrink", |field| PERCENT.read(field));
    section.close();
    let (file, keys, max_shrink) = (file?, keys?, max_shrink?);
    let written = file.written()?;
    file.note_list(written, keys.len(), max_shrink);
    let path = environment.folder.join(written);
    Some(Arc::new(ApiKeys::new(from?, on_invalid?, path, keys).losing_at_most(max_shrink)))
}

fn no_carrier(field: &Field<'_>, must: &str) {
    let written = field.text_if_any().unwrap_or_default();
    if matches!(Attribute::parse(written), Err(AttributeError::BadHeaderName)) {
        return field.must("name a header that can exist");
    }
    let kinds = ["header:", "query:", "cookie:"];
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

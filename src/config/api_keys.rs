//! Reads `api_keys`, and the file that it names.

use std::path::Path;
use std::sync::Arc;

use super::Environment;
use super::document::or_default;
use super::reader::{Field, nearest};
use super::store::read;
use crate::auth::api_keys::{ApiKeys, Keys, OnInvalid};
use crate::auth::key_file;
use crate::base::position::Position;
use crate::limit::attribute::{Attribute, NotAnAttribute};

pub fn api_keys(field: Field<'_>, surroundings: Environment<'_>) -> Option<Arc<ApiKeys>> {
    let section = field.section()?;
    let from = section.need("from").and_then(|field| from(&field));
    let file = section.need("file");
    let keys = file.as_ref().and_then(|field| keys(field, surroundings));
    let on_invalid = or_default(section.get("on_invalid"), OnInvalid::Reject, |field| {
        field.choice(&[("reject", OnInvalid::Reject), ("anonymous", OnInvalid::Anonymous)])
    });
    section.close();
    let path = surroundings.folder.join(file?.written()?);
    Some(Arc::new(ApiKeys::new(from?, on_invalid?, path, keys?)))
}

/// Where a credential may stand in a request.
fn from(field: &Field<'_>) -> Option<Attribute> {
    let written = field.text()?;
    match Attribute::parse(written) {
        Ok(from @ (Attribute::Header(_) | Attribute::Query(_) | Attribute::Cookie(_))) => return Some(from),
        Err(NotAnAttribute::BadHeaderName) => field.must("name a header that can exist"),
        _ => {
            let kinds = ["header:", "query:", "cookie:"];
            let kind = written.split_inclusive(':').next().unwrap_or_default();
            let hint = nearest(kind, &kinds).filter(|_| !kinds.contains(&kind));
            field.must_hinting("be header:<name>, query:<name> or cookie:<name>", hint);
        }
    }
    None
}

/// What is wrong in that file is reported at its place there.
fn keys(field: &Field<'_>, surroundings: Environment<'_>) -> Option<Keys> {
    let path = field.written()?;
    match key_file::parse(&read(field, surroundings)?) {
        Ok(keys) => Some(keys),
        Err(faults) => {
            let file = surroundings.folder.join(Path::new(path)).display().to_string();
            for fault in faults {
                let place = fault.place.map(|(line, column)| Position { line, column });
                field.elsewhere(&file, place, fault.wrong.to_string());
            }
            None
        }
    }
}

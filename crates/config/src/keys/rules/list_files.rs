//! Reads `in_file` and `cidr_file`, which name files with a list of values or networks.

use std::sync::Arc;

use serde_json::json;

use crate::keys::upstreams::PERCENT;
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, PATH, Type};
use crate::language::network;
use crate::language::problem::{ListForm, ReadList};
use crate::language::reader::Field;
use crate::language::value_types;
use base::position::Position;
use request::attribute::Attribute;
use request::list_file::{NetworkList, TextList, WrongLine};
use request::matcher::{Expectation, Text};

pub(crate) static LIST_FILE: Mapping = Mapping {
    heading: Some("key of a list in a file"),
    definition: Some("list_file"),
    keys: &[
        Key::required("file", PATH, "The file with the entries."),
        Key::default(
            "max_shrink",
            PERCENT.declared(),
            "50%",
            "How much of the file may be lost at once; if more is lost, nothing changes.",
        ),
    ],
    constraints: || json!({}),
};

/// The type of a key that names a file with a list. The value is a path, or a mapping that has the path.
pub(crate) const LIST: Type = Type::OwnOr { text: "path, or mapping", shape: value_types::PATH, mapping: &LIST_FILE };

pub(crate) fn in_file(
    field: &Field<'_>,
    attribute: Option<&Attribute>,
    environment: Environment<'_>,
) -> Option<Expectation> {
    let (source, folding) = (attribute.map(Attribute::source), attribute.map(Attribute::folding).unwrap_or_default());
    if source == Some(&Attribute::Address) {
        field.wrong(
            "`in_file` is not for ip:address",
            Some("write cidr_file, which takes single addresses too".to_owned()),
        );
        return None;
    }
    let is_host = source == Some(&Attribute::Host);
    let is_path = source == Some(&Attribute::Path);
    let form = |text: &str| match text {
        _ if is_path && text.ends_with("/*") => Err("must be a whole path, without `/*` at its end"),
        _ if is_host && matches!(Text::for_host(text), Text::Subdomain(_)) => Err("must be a whole name, without `*.`"),
        _ if is_host => Ok(text.to_ascii_lowercase().into_bytes()),
        _ => Ok(folding.of_text(text).as_bytes().to_vec()),
    };
    let kind = match source {
        Some(Attribute::Host) => ListForm::Hosts,
        Some(Attribute::Path) => ListForm::Paths(folding),
        _ => ListForm::Texts(folding),
    };
    list_file(field, kind, environment, |file, content| {
        let list = TextList::parse(file, content, form)?;
        Ok(ReadList { entries: list.entries(), list: Expectation::InFile(Arc::new(list)) })
    })
}

pub(crate) fn cidr_file(
    field: &Field<'_>,
    attribute: Option<&Attribute>,
    environment: Environment<'_>,
) -> Option<Expectation> {
    if attribute.is_some_and(|attribute| *attribute != Attribute::Address) {
        field.wrong("`cidr_file` is for ip:address only", None);
        return None;
    }
    list_file(field, ListForm::Networks, environment, |file, content| {
        let list = NetworkList::parse(file, content, network::parse)?;
        Ok(ReadList { entries: list.entries(), list: Expectation::CidrFile(Arc::new(list)) })
    })
}

fn list_file(
    field: &Field<'_>,
    form: ListForm,
    environment: Environment<'_>,
    parse: impl FnOnce(&str, &[u8]) -> Result<ReadList, Vec<WrongLine>>,
) -> Option<Expectation> {
    let NamedList { name, max_shrink } = named_list(field)?;
    let file = name.written()?;
    let ReadList { list, entries } = name.list_once((file.to_owned(), form), || {
        let content = environment.file(&name)?;
        match parse(file, &content) {
            Ok(list) => Some(list),
            Err(wrong) => {
                for WrongLine { line, what } in wrong {
                    name.elsewhere(file, Some(Position { line, column: 1 }), what);
                }
                None
            }
        }
    })?;
    name.note_list(file, entries, max_shrink?);
    Some(list)
}

/// The file of a list, as gateway.yaml names it.
#[derive(Debug)]
pub(crate) struct NamedList<'t> {
    /// The value in gateway.yaml that is the path of the list's file.
    pub name: Field<'t>,
    /// How many per cent of the list may be removed at once. `None` if the value is invalid, which has been reported.
    pub max_shrink: Option<u8>,
}

/// Reads a value that names a file with a list: a path, or a mapping that has the path. `None` after reporting a problem.
pub(crate) fn named_list<'t>(field: &Field<'t>) -> Option<NamedList<'t>> {
    if !field.is_map() {
        return Some(NamedList { name: field.clone(), max_shrink: Some(50) });
    }
    let section = field.clone().section(&LIST_FILE)?;
    let (name, max_shrink) = (section.need("file"), section.value("max_shrink", |field| PERCENT.read(field)));
    section.close();
    Some(NamedList { name: name?, max_shrink })
}

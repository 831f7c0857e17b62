//! Reads `access_log`: which requests are written down, where, and what of their clients by name.

use std::path::PathBuf;

use super::Environment;
use super::reader::{Field, all, nearest};
use super::rules::RuleDefaults;
use crate::access_log_line::Kind;
use crate::limit::attribute::Attribute;

/// Each costs a keyed hash for every line.
const MOST_ATTRIBUTES: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLog {
    pub to: Destination,
    pub when: Vec<Kind>,
    pub attributes: Vec<Named>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Stdout,
    Stderr,
    File(PathBuf),
}

/// An attribute whose value a line has the name of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// As printed.
    pub text: String,
    pub attribute: Attribute,
}

pub fn access_log(field: Field<'_>, given: RuleDefaults, surroundings: Environment<'_>) -> Option<AccessLog> {
    let section = field.section()?;
    let to = section.need("to").and_then(|field| destination(&field, surroundings));
    let when = match section.get("when") {
        Some(field) => kinds(&field),
        None => Some(Kind::ALL.to_vec()),
    };
    let attributes = match section.get("attributes") {
        Some(field) => attributes(&field, given),
        None => Some(Vec::new()),
    };
    section.close();
    Some(AccessLog { to: to?, when: when?, attributes: attributes? })
}

fn destination(field: &Field<'_>, surroundings: Environment<'_>) -> Option<Destination> {
    const STREAMS: [&str; 2] = ["stdout", "stderr"];
    let text = field.text()?;
    match text {
        "stdout" => return Some(Destination::Stdout),
        "stderr" => return Some(Destination::Stderr),
        "" => {}
        // A file of such a name is rather a slip.
        text => match nearest(text, &STREAMS) {
            None => return Some(Destination::File(surroundings.folder.join(text))),
            Some(hint) => {
                let hint = format!("{hint} For a file of that name write `./{text}`");
                field.must_hinting("be stdout, stderr or a path", Some(hint));
                return None;
            }
        },
    }
    field.must("be stdout, stderr or a path");
    None
}

fn kinds(field: &Field<'_>) -> Option<Vec<Kind>> {
    let choices = [
        ("allowed", &[Kind::Allowed][..]),
        ("refused", &[Kind::Refused]),
        ("error", &[Kind::Error]),
        ("all", &Kind::ALL),
    ];
    if field.is_empty() {
        field.must("have at least one of allowed, refused, error, or be all");
        return None;
    }
    let chosen = all(field.one_or_list()?, |member| member.choice(&choices))?.concat();
    Some(Kind::ALL.into_iter().filter(|kind| chosen.contains(kind)).collect())
}

fn attributes(field: &Field<'_>, given: RuleDefaults) -> Option<Vec<Named>> {
    let members = field.list()?;
    if members.len() > MOST_ATTRIBUTES {
        field.wrong(format_args!("must have at most {MOST_ATTRIBUTES} attributes, has {}", members.len()), None);
        return None;
    }
    let mut known = Vec::new();
    all(members, |member| {
        let text = member.text()?;
        if text.contains(['|', '(']) {
            let hint = "alternatives and lower() are for limit_keys; list each attribute by itself".to_owned();
            member.must_hinting("be one attribute", Some(hint));
            return None;
        }
        let attribute = given.attribute(&member, text)?;
        let text = attribute.to_string();
        if known.contains(&text) {
            member.wrong(format_args!("`{text}` stands twice"), None);
            return None;
        }
        known.push(text.clone());
        Some(Named { text, attribute })
    })
}

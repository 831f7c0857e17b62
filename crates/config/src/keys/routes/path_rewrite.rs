//! Reads `strip_prefix` and `replace_prefix`, which remove or replace the first segments of a path.

use crate::language::key::Key;
use crate::language::reader::{Field, Section};
use crate::language::shape::{self, Scalars, Shape};
use crate::language::value_kind::{ParseText, ValueKind};
use request::attribute::Attribute;
use request::matcher::{Expectation, Text};
use request::path::normalise;
use rules::route::prefix_replacement::PrefixReplacement;
use rules::rule::Condition;

pub(crate) const STRIP_PREFIX: Key = Key::optional(
    "strip_prefix",
    PREFIX.declared(),
    "Segments taken off the path. Every path in the `match` must begin with them.",
);

pub(crate) const REPLACE_PREFIX: Key = Key::optional(
    "replace_prefix",
    PREFIX.declared(),
    "Replaces the segments before `/*` in the one `path` of the `match`.",
);

const PREFIX: ValueKind<ParseText<String>> = ValueKind::new(
    "path",
    Shape::Text(shape::Text::new(Scalars::Spelling, &["^/"], "be a path in its normalised form, like /v1")),
    normal_path,
);

/// Returns the path if it is in its normalised form.
pub(crate) fn normal_path(path: &str) -> Option<String> {
    let is_normal = normalise(path.as_bytes()).is_ok_and(|normal| *normal == *path.as_bytes());
    is_normal.then(|| path.to_owned())
}

/// A change of the path: the prefix that is replaced, and its replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathRewrite {
    pub replacement: PrefixReplacement,
    /// The prefix that the gateway removes. `None` for `replace_prefix`.
    pub stripped: Option<String>,
}

/// Reads `strip_prefix` and `replace_prefix`. `conditions` are the conditions of the route, and `None` if they are
/// invalid. `Some(None)`: both keys are missing. `None` after a problem.
pub(crate) fn path_rewrite(section: &Section<'_>, conditions: Option<&[Condition]>) -> Option<Option<PathRewrite>> {
    let strip = section.optional("strip_prefix", |field| strip_prefix(&field, conditions));
    let replace = section.optional("replace_prefix", |field| replace_prefix(&field, conditions));
    if section.has("strip_prefix") && section.has("replace_prefix") {
        section.unwanted("replace_prefix", "must not stand beside `strip_prefix`");
        return None;
    }
    Some(strip?.or(replace?))
}

fn strip_prefix(field: &Field<'_>, conditions: Option<&[Condition]>) -> Option<PathRewrite> {
    let prefix = PREFIX.read(field.clone())?.trim_end_matches('/').to_owned();
    if prefix.is_empty() {
        field.must("be at least one segment, like /v1");
        return None;
    }
    let is_below = |text: &Text| match text {
        Text::Exact(path) | Text::Subtree(path) => {
            path.strip_prefix(prefix.as_bytes()).is_some_and(|below| matches!(below, [] | [b'/', ..]))
        }
        Text::Subdomain(_) => false,
    };
    if !paths(conditions?).is_some_and(|paths| paths.iter().all(is_below)) {
        field.wrong(format_args!("needs a `path` in `match` of which every text is {prefix} or below"), None);
        return None;
    }
    let replacement = PrefixReplacement::new(vec![prefix.clone().into_bytes()], "");
    Some(PathRewrite { replacement, stripped: Some(prefix) })
}

fn replace_prefix(field: &Field<'_>, conditions: Option<&[Condition]>) -> Option<PathRewrite> {
    let new = PREFIX.read(field.clone())?;
    let prefixes: Option<Vec<Vec<u8>>> = match paths(conditions?) {
        Some([Text::Exact(path)]) => Some(vec![path.clone()]),
        Some(texts) => texts
            .iter()
            .map(|text| match text {
                Text::Subtree(prefix) => Some(prefix.clone()),
                Text::Exact(_) | Text::Subdomain(_) => None,
            })
            .collect(),
        None => None,
    };
    if prefixes.is_none() {
        field.wrong("needs a `path` in `match` whose texts end in /*, or a single text", None);
    }
    Some(PathRewrite { replacement: PrefixReplacement::new(prefixes?, &new), stripped: None })
}

/// Returns the paths that the conditions list. `None` if they list no paths.
fn paths(conditions: &[Condition]) -> Option<&[Text]> {
    let paths = conditions.iter().filter(|condition| condition.attribute == Attribute::Path);
    let mut expected = paths.flat_map(|condition| condition.expectation.operators());
    expected.find_map(|expectation| match expectation {
        Expectation::AnyOf(texts) => Some(&**texts),
        _ => None,
    })
}

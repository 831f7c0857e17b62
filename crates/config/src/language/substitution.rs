//! Replaces `${NAME}` by environment variables after the YAML is parsed, so that their values are never read as YAML.

use std::cell::Cell;

use crate::language::disclosure::Disclosure;
use crate::language::environment::CREDENTIALS_FOLDER;
use crate::language::key_path::{push_index, push_key};
use crate::language::problem::{MUST_BE_SET, NOT_SET, Report};
use crate::language::tree::{Node, Style, Value};

/// Replaces `${NAME}` and `${NAME:-default}` in every scalar by the value that `lookup` returns. The default also
/// applies if the variable is empty. `$$` becomes one dollar sign, and every other `$` stays.
pub(crate) fn expand(root: &mut Node, lookup: &dyn Fn(&str) -> Option<String>, report: &Report) {
    expand_at(root, &mut String::new(), lookup, report);
}

fn expand_at(node: &mut Node, path: &mut String, lookup: &dyn Fn(&str) -> Option<String>, report: &Report) {
    let above = path.len();
    match &mut node.value {
        Value::List(list) => {
            for (index, node) in list.iter_mut().enumerate() {
                push_index(path, index);
                expand_at(node, path, lookup, report);
                path.truncate(above);
            }
        }
        Value::Map(map) => {
            for entry in map {
                push_key(path, &entry.key);
                expand_at(&mut entry.value, path, lookup, report);
                path.truncate(above);
            }
        }
        Value::Scalar(scalar) if scalar.text.contains('$') => {
            let before = report.count();
            let unknown = Cell::new(false);
            let missing = |name: &str| {
                let what = format!("`${{{name}}}`{NOT_SET}");
                if report.is_for_running(path) && report.allows_unknown(node.position, path, what) {
                    unknown.set(true);
                } else {
                    report.add(node.position, &*path, format!("`${{{name}}}` {MUST_BE_SET}"));
                }
            };
            let wrong = |what: String, hint: Option<String>| report.add_with_hint(node.position, &*path, what, hint);
            let has_value = Cell::new(false);
            let found = |name: &str| {
                let value = lookup(name)?;
                if name != CREDENTIALS_FOLDER {
                    report.conceal(&value);
                    has_value.set(has_value.get() || !value.is_empty());
                }
                Some(value)
            };
            let (text, whole) = expand_text(&scalar.text, &found, Faults { missing: &missing, wrong: &wrong });
            if has_value.get() {
                scalar.disclosure = Disclosure::FromVariable;
            }
            if unknown.get() && report.count() == before {
                scalar.style = Style::Unknown;
                return;
            }
            scalar.text = text;
            if report.count() > before {
                scalar.style = Style::Unresolved;
            } else if whole {
                scalar.style = Style::Reference;
            }
        }
        Value::Scalar(_) => {}
    }
}

/// How references that cannot be resolved are reported.
#[derive(Clone, Copy)]
struct Faults<'f> {
    /// Called if the variable is not set and has no default.
    missing: &'f dyn Fn(&str),
    /// Called with a message and a hint if the text is not a valid reference.
    wrong: &'f dyn Fn(String, Option<String>),
}

/// Returns the expanded text, and whether the whole text was a single reference.
fn expand_text(text: &str, lookup: &dyn Fn(&str) -> Option<String>, faults: Faults<'_>) -> (String, bool) {
    let mut expanded = String::with_capacity(text.len());
    let mut whole = false;
    let mut rest = text;
    while let Some((plain, tail)) = rest.split_once('$') {
        expanded.push_str(plain);
        if let Some(after) = tail.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some(reference) = tail.strip_prefix('{') {
            let Some((reference, after)) = reference.split_once('}') else {
                (faults.wrong)("`${` must be closed by `}`".to_owned(), None);
                return (expanded, false);
            };
            whole = plain.is_empty() && rest.len() == text.len() && after.is_empty();
            expanded.push_str(&value(reference, lookup, faults));
            rest = after;
        } else {
            expanded.push('$');
            rest = tail;
        }
    }
    expanded.push_str(rest);
    (expanded, whole)
}

fn value(reference: &str, lookup: &dyn Fn(&str) -> Option<String>, faults: Faults<'_>) -> String {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    let valid = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if !valid {
        let (shown, hint) = shown_reference(reference);
        (faults.wrong)(format!("`{shown}` must name a variable, in letters, digits and `_`"), hint);
        return String::new();
    }
    match (lookup(name), default) {
        (Some(value), None) => value,
        (Some(value), Some(_)) if !value.is_empty() => value,
        (_, Some(default)) => default.to_owned(),
        (None, None) => {
            (faults.missing)(name);
            String::new()
        }
    }
}

/// Returns an invalid reference as it is shown, and a hint. Only the name of a variable with a default is shown: a secret may have
/// braces in it, and so may a default.
fn shown_reference(reference: &str) -> (String, Option<String>) {
    let Some(end) = reference.find(|char: char| !char.is_ascii_alphanumeric() && char != '_') else {
        let inner = if reference.is_empty() { "" } else { "…" };
        return (format!("${{{inner}}}"), None);
    };
    match reference.split_at_checked(end) {
        Some((name, rest)) if !name.is_empty() && rest.starts_with(['-', '=', '?', '+', ':']) => {
            let hint = format!("a default follows `:-`, as in `${{{name}:-…}}`");
            (format!("${{{name}…}}"), Some(hint))
        }
        _ => ("${…}".to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str, whole: bool) {
        let lookup = |name: &str| match name {
            "NUMBER" => Some("12345".to_owned()),
            "EMPTY" => Some(String::new()),
            "YAML" => Some("{a: [b]}".to_owned()),
            _ => None,
        };
        let faults = Faults {
            missing: &|name| panic!("{name} is missing in {text}"),
            wrong: &|what, _| panic!("{what} in {text}"),
        };
        assert_eq!(expand_text(text, &lookup, faults), (expected.to_owned(), whole), "{text}");
    }

    #[test]
    fn references_are_replaced_and_dollars_kept() {
        check("${NUMBER}", "12345", true);
        check("a${NUMBER}b", "a12345b", false);
        check("${NUMBER}${NUMBER}", "1234512345", false);
        check("${MISSING:-x y}", "x y", true);
        check("${EMPTY:-x}", "x", true);
        check("${EMPTY}", "", true);
        check("${MISSING:-}", "", true);
        check("${YAML}", "{a: [b]}", true);
        check("$$", "$", false);
        check("$${NUMBER}", "${NUMBER}", false);
        check("5$ $x", "5$ $x", false);
    }

    #[test]
    fn a_reference_that_cannot_be_resolved_is_a_problem() {
        for text in ["${MISSING}", "${", "${}", "${1A}", "${A B}"] {
            let problems = Cell::new(0);
            let count = || problems.set(problems.get() + 1);
            expand_text(text, &|_| None, Faults { missing: &|_| count(), wrong: &|_, _| count() });
            assert_eq!(problems.get(), 1, "{text}");
        }
    }
}

//! Replaces references to the environment, after parsing: a value can never inject YAML.

use super::problem::Report;
use super::tree::{Node, Style, Value};
use crate::place::Place;

/// Expands `${NAME}` and `${NAME:-default}` in every scalar; `$$` is a dollar sign, and a lone `$` is itself. The
/// default also holds when the variable is empty, as in a shell.
pub fn expand(node: &mut Node, lookup: &dyn Fn(&str) -> Option<String>, report: &Report) {
    match &mut node.value {
        Value::List(list) => list.iter_mut().for_each(|node| expand(node, lookup, report)),
        Value::Map(map) => map.iter_mut().for_each(|entry| expand(&mut entry.value, lookup, report)),
        Value::Scalar(scalar) if scalar.text.contains('$') => {
            let before = report.count();
            let (text, whole) = expand_text(&scalar.text, node.place, lookup, report);
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

/// The expanded text, and whether it was one reference and nothing else.
fn expand_text(text: &str, place: Place, lookup: &dyn Fn(&str) -> Option<String>, report: &Report) -> (String, bool) {
    let mut expanded = String::with_capacity(text.len());
    let mut whole = false;
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        if let Some(after) = tail.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some(reference) = tail.strip_prefix('{') {
            let Some(end) = reference.find('}') else {
                report.add(place, "`${` must be closed by `}`");
                return (expanded, false);
            };
            whole = at == 0 && rest.len() == text.len() && end + 1 == reference.len();
            expanded.push_str(&value(&reference[..end], place, lookup, report));
            rest = &reference[end + 1..];
        } else {
            expanded.push('$');
            rest = tail;
        }
    }
    expanded.push_str(rest);
    (expanded, whole)
}

fn value(reference: &str, place: Place, lookup: &dyn Fn(&str) -> Option<String>, report: &Report) -> String {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    let valid = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if !valid {
        report.add(place, format!("`${{{reference}}}` must name a variable, in letters, digits and `_`"));
        return String::new();
    }
    match (lookup(name), default) {
        (Some(value), None) => value,
        (Some(value), Some(_)) if !value.is_empty() => value,
        (_, Some(default)) => default.to_owned(),
        (None, None) => {
            report.add(place, format!("`${{{name}}}` must be set in the environment or have a default, is neither"));
            String::new()
        }
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
        let report = Report::default();
        assert_eq!(expand_text(text, Place::default(), &lookup, &report), (expected.to_owned(), whole), "{text}");
        assert_eq!(report.into_problems(), [], "{text}");
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
    fn what_cannot_be_replaced_is_a_problem() {
        for text in ["${MISSING}", "${", "${}", "${1A}", "${A B}"] {
            let report = Report::default();
            expand_text(text, Place::default(), &|_| None, &report);
            assert_eq!(report.into_problems().len(), 1, "{text}");
        }
    }
}

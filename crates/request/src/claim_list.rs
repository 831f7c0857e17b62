//! Holds the elements of a claim with several elements: a list of texts and integers, or the words of a text.
//!
//! `match` checks each element, but a limit key never counts by an element.

use std::borrow::Cow;

use serde_json::{Number, Value};

use super::attribute::Folding;

/// The elements of a claim: the members of a list, or words. There is at least one element.
#[derive(Clone, Copy, Debug)]
pub struct ClaimList<'r> {
    claim: &'r Value,
    split: Split,
    /// How each element is changed.
    folding: Folding,
}

/// How a claim is split into elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// An element is a member of the list.
    Members,
    /// An element is a word of the text, or of a member.
    Words,
}

impl<'r> ClaimList<'r> {
    /// Returns the members of a claim that is a list. `None` if the claim is not a list, is empty, or has a member that
    /// is neither a text nor an integer.
    pub fn members(claim: &'r Value) -> Option<ClaimList<'r>> {
        let members = claim.as_array()?;
        let usable = !members.is_empty() && members.iter().all(is_text_or_integer);
        usable.then_some(ClaimList { claim, split: Split::Members, folding: Folding::default() })
    }

    /// Returns the words of a claim: the words of a text, or of each member of a list. An integer or a boolean is one
    /// word. `None` if there are no words, or if the claim is of another type.
    pub(crate) fn words(claim: &'r Value) -> Option<ClaimList<'r>> {
        let usable = match claim {
            Value::Array(members) => members.iter().all(is_text_or_integer),
            one => scalar_text(one).is_some(),
        };
        let list = ClaimList { claim, split: Split::Words, folding: Folding::default() };
        (usable && list.any(|_| true)).then_some(list)
    }

    /// Returns the same list with each element changed. An element that `trim` makes empty is left out.
    pub(crate) fn folded(self, folding: Folding) -> ClaimList<'r> {
        ClaimList { folding, ..self }
    }

    /// Whether `is_it` returns `true` for at least one element.
    pub fn any(&self, mut is_it: impl FnMut(&[u8]) -> bool) -> bool {
        let mut is_it = |element: &[u8]| match self.folding.is_none() {
            true => is_it(element),
            false => self.folding.of_value(Cow::Borrowed(element)).is_some_and(|element| is_it(&element)),
        };
        match self.claim {
            Value::Array(members) => members.iter().any(|member| self.any_of(member, &mut is_it)),
            one => self.any_of(one, &mut is_it),
        }
    }

    fn any_of(&self, member: &Value, is_it: &mut impl FnMut(&[u8]) -> bool) -> bool {
        match (member, self.split) {
            (Value::String(text), Split::Members) => is_it(text.as_bytes()),
            (Value::String(text), Split::Words) => words(text.as_bytes()).any(is_it),
            (Value::Number(number), _) => with_integer(number, |text| is_it(text.as_bytes())).unwrap_or(false),
            (Value::Bool(flag), _) => is_it(boolean_text(*flag).as_bytes()),
            (Value::Null | Value::Array(_) | Value::Object(_), _) => false,
        }
    }

    /// Returns all elements in their order.
    pub fn elements(&self) -> Vec<Vec<u8>> {
        let mut elements = Vec::new();
        self.any(|element| {
            elements.push(element.to_vec());
            false
        });
        elements
    }
}

/// Splits a text into words at spaces, as OAuth does with `scope` (RFC 6749, section 3.3).
pub fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// Returns the text of a claim that is a text, an integer or a boolean. `None` for any other claim.
pub(crate) fn scalar_text(claim: &Value) -> Option<Cow<'_, str>> {
    match claim {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Bool(flag) => Some(Cow::Borrowed(boolean_text(*flag))),
        // 42 and "42" count as equal. Other numbers are rejected, because they have more than one spelling.
        Value::Number(number) => with_integer(number, |text| Cow::Owned(text.to_owned())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the text of a claim that should be a number: a text unchanged, or the digits of a number. `None` for null,
/// which counts as missing. For a claim of another type, returns a text that is not a number.
///
/// The JSON parser keeps a number that is not an integer as the nearest double. With up to fifteen digits, this double
/// prints as the number was written.
pub fn amount_text(claim: &Value) -> Option<Cow<'_, str>> {
    match claim {
        Value::Null => None,
        Value::Array(_) => Some(Cow::Borrowed("[…]")),
        Value::Object(_) => Some(Cow::Borrowed("{…}")),
        Value::Number(number) if number.is_f64() => number.as_f64().map(|number| Cow::Owned(number.to_string())),
        other => scalar_text(other),
    }
}

fn is_text_or_integer(member: &Value) -> bool {
    match member {
        Value::String(_) => true,
        Value::Number(number) => number.is_i64() || number.is_u64(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

fn boolean_text(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

/// Calls `take` with the text of an integer. `None` for a number with a fraction or an exponent.
fn with_integer<T>(number: &Number, take: impl FnOnce(&str) -> T) -> Option<T> {
    let mut digits = itoa::Buffer::new();
    match (number.as_u64(), number.as_i64()) {
        (Some(number), _) => Some(take(digits.format(number))),
        (None, Some(number)) => Some(take(digits.format(number))),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(read: impl Fn(&Value) -> Option<ClaimList<'_>>, claim: &str, expected: &[&str]) {
        let claim: Value = serde_json::from_str(claim).unwrap();
        let elements = read(&claim).map(|list| list.elements()).unwrap_or_default();
        let elements: Vec<_> = elements.iter().map(|element| std::str::from_utf8(element).unwrap()).collect();
        assert_eq!(elements, expected, "{claim}");
    }

    #[test]
    fn a_list_has_texts_and_integers_and_nothing_else() {
        let members = |claim: &str, expected: &[&str]| check(|claim| ClaimList::members(claim), claim, expected);
        members(r#"["admin","dev"]"#, &["admin", "dev"]);
        members(r#"["read write", "", "é"]"#, &["read write", "", "é"]);
        members(r#"[7, -7, "7", 18446744073709551615]"#, &["7", "-7", "7", "18446744073709551615"]);
        for other in [
            "[]",
            r#"["a", true]"#,
            r#"["a", null]"#,
            r#"["a", 1.5]"#,
            r#"["a", 1e3]"#,
            r#"["a", ["b"]]"#,
            r#"["a", {"b": 1}]"#,
            r#"[[]]"#,
            r#""a""#,
            "7",
            "true",
            "null",
            r#"{"a": 1}"#,
        ] {
            members(other, &[]);
        }
    }

    #[test]
    fn an_amount_is_the_text_of_a_number() {
        for (claim, text) in [
            ("12", Some("12")),
            ("12.5", Some("12.5")),
            ("12.50", Some("12.5")),
            ("0.001", Some("0.001")),
            ("1e3", Some("1000")),
            ("-0.5", Some("-0.5")),
            ("9007199254740993", Some("9007199254740993")),
            ("1e30", Some("1000000000000000000000000000000")),
            ("1.00000000000000000001", Some("1")),
            ("1e-9", Some("0.000000001")),
            (r#""12""#, Some("12")),
            (r#"" 12""#, Some(" 12")),
            (r#""""#, Some("")),
            ("true", Some("true")),
            ("[12]", Some("[…]")),
            (r#"{"a":12}"#, Some("{…}")),
            ("null", None),
        ] {
            let claim: Value = serde_json::from_str(claim).unwrap();
            assert_eq!(amount_text(&claim).as_deref(), text, "{claim}");
        }
    }

    #[test]
    fn words_are_separated_by_spaces() {
        let words = |claim: &str, expected: &[&str]| check(|claim| ClaimList::words(claim), claim, expected);
        words(r#""read write""#, &["read", "write"]);
        words(r#""  read  write ""#, &["read", "write"]);
        words(r#""read\twrite,all""#, &["read\twrite,all"]);
        words(r#"["read write", "all", 7, ""]"#, &["read", "write", "all", "7"]);
        words("7", &["7"]);
        words("true", &["true"]);
        for other in [r#""""#, r#"" ""#, "[]", r#"[""]"#, r#"["a", true]"#, "1.5", "null", r#"{"a": 1}"#] {
            words(other, &[]);
        }
    }
}

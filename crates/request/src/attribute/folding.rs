//! Changes the values of attributes before rules compare them or count by them: `lower(…)` and `trim(…)`.

use std::borrow::Cow;
use std::fmt;

/// How the value of an attribute is changed. The default changes nothing.
///
/// A value that `trim` makes empty counts as missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Folding {
    /// ASCII letters become lower case. All other characters stay unchanged.
    lower: bool,
    /// White space at both ends is removed. If the value is not UTF-8, only ASCII white space is.
    trim: bool,
}

impl Folding {
    /// Splits a text such as `lower(trim(query:user))` into the folding and the name in the parentheses.
    pub fn split(text: &str) -> (Folding, &str) {
        let (mut folding, mut text) = (Folding::default(), text.trim());
        loop {
            let inner = |function: &str| text.strip_prefix(function)?.strip_prefix('(')?.strip_suffix(')');
            text = match (inner("lower"), inner("trim")) {
                (Some(inner), _) => {
                    folding.lower = true;
                    inner.trim()
                }
                (None, Some(inner)) => {
                    folding.trim = true;
                    inner.trim()
                }
                (None, None) => return (folding, text),
            };
        }
    }

    /// Returns whether a value is never changed.
    pub fn is_none(self) -> bool {
        self == Folding::default()
    }

    /// Returns whether letters become lower case.
    pub fn is_lower(self) -> bool {
        self.lower
    }

    /// Returns whether white space at the ends is removed.
    pub fn is_trim(self) -> bool {
        self.trim
    }

    /// Returns the changed value, which may be empty.
    pub fn of(self, value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
        let value = match (self.trim, value) {
            (true, Cow::Borrowed(value)) => Cow::Borrowed(trimmed(value)),
            (true, Cow::Owned(value)) => Cow::Owned(trimmed(&value).to_vec()),
            (false, value) => value,
        };
        match self.lower && value.iter().any(u8::is_ascii_uppercase) {
            true => Cow::Owned(value.to_ascii_lowercase()),
            false => value,
        }
    }

    /// Returns a text of the configuration, changed like a value.
    pub fn of_text(self, text: &str) -> Cow<'_, str> {
        let text = if self.trim { text.trim() } else { text };
        if self.lower { Cow::Owned(text.to_ascii_lowercase()) } else { Cow::Borrowed(text) }
    }

    /// Returns the changed value. `None` if `trim` leaves nothing of it.
    pub fn of_value(self, value: Cow<'_, [u8]>) -> Option<Cow<'_, [u8]>> {
        Some(self.of(value)).filter(|value| !self.trim || !value.is_empty())
    }

    /// Returns the parentheses that end the functions.
    pub(crate) fn end(self) -> &'static str {
        match (self.lower, self.trim) {
            (true, true) => "))",
            (true, false) | (false, true) => ")",
            (false, false) => "",
        }
    }
}

/// Displays the functions before a name: `lower(trim(`.
impl fmt::Display for Folding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.lower { "lower(" } else { "" })?;
        f.write_str(if self.trim { "trim(" } else { "" })
    }
}

fn trimmed(value: &[u8]) -> &[u8] {
    std::str::from_utf8(value).map_or_else(|_| value.trim_ascii(), |text| text.trim().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_stand_in_any_order_and_any_number() {
        for (text, functions, name) in [
            ("path", "", "path"),
            (" lower( query:a b ) ", "lower(", "query:a b"),
            ("trim(header:x)", "trim(", "header:x"),
            ("lower(trim(header:x))", "lower(trim(", "header:x"),
            ("trim(lower(header:x))", "lower(trim(", "header:x"),
            ("lower(lower(host))", "lower(", "host"),
            ("lower(host", "", "lower(host"),
            ("upper(host)", "", "upper(host)"),
            ("lower()", "lower(", ""),
        ] {
            let (folding, found) = Folding::split(text);
            assert_eq!((folding.to_string().as_str(), found), (functions, name), "{text}");
        }
    }

    #[test]
    fn a_value_is_changed_by_each_function() {
        let of = |functions: &str, value: &str| {
            let (folding, _) = Folding::split(functions);
            folding.of_value(value.as_bytes().into()).map(|value| String::from_utf8(value.into_owned()).unwrap())
        };
        assert_eq!(of("x", " A "), Some(" A ".to_owned()));
        assert_eq!(of("lower(x)", " AÄ "), Some(" aÄ ".to_owned()));
        assert_eq!(of("trim(x)", "\t\u{a0}A b\u{2003}\r\n"), Some("A b".to_owned()));
        assert_eq!(of("trim(lower(x))", " A "), Some("a".to_owned()));
        assert_eq!((of("trim(x)", " \u{a0}"), of("trim(x)", "")), (None, None));
        assert_eq!(of("lower(x)", ""), Some(String::new()));
        assert_eq!(Folding::split("trim(x)").0.of(b" \xff\xa0 ".as_slice().into()).as_ref(), b"\xff\xa0");
    }
}

//! Says what a text must be, by a pattern that the schema and the reader share.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::Regex;

/// A single value that matches a pattern.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    pub scalars: Scalars,
    /// Regular expressions with the same meaning in ECMAScript, for the schema, and in Rust. One of them must match.
    pub patterns: &'static [&'static str],
    /// Texts that match a pattern but are rejected.
    pub except: Option<Exception>,
    /// The message for any other value: "be a duration like 5m". Editors show it too, from the schema.
    pub must: &'static str,
}

/// Texts that match a pattern but are rejected.
#[derive(Clone, Copy, Debug)]
pub struct Exception {
    pub pattern: &'static str,
    /// The message for such a text, in the form of [`Text::must`].
    pub must: &'static str,
}

/// The types of single values that can be a [`Text`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalars {
    /// Text alone. What text a number means, such as `1.10`, would be a guess.
    Text,
    /// Any single value that is not a number, as it is written.
    Spelling,
    /// Any single value, as it is written, also a number.
    Written,
}

impl Text {
    pub const fn new(scalars: Scalars, patterns: &'static [&'static str], must: &'static str) -> Text {
        Text { scalars, patterns, except: None, must }
    }

    /// Whether a text matches a pattern and is not an exception.
    pub fn accepts(&self, text: &str) -> bool {
        let is_excepted = self.except.is_some_and(|except| matches(except.pattern, text));
        !is_excepted && self.patterns.iter().any(|pattern| matches(pattern, text))
    }

    /// The message for a text that [`Text::accepts`] rejects, if it matches and is an exception.
    pub fn exception(&self, text: &str) -> Option<&'static str> {
        let except = self.except.filter(|except| matches(except.pattern, text))?;
        self.patterns.iter().any(|pattern| matches(pattern, text)).then_some(except.must)
    }
}

/// Whether a text matches a pattern. Each pattern is compiled once.
pub(crate) fn matches(pattern: &'static str, text: &str) -> bool {
    static COMPILED: LazyLock<Mutex<HashMap<&str, Option<Regex>>>> = LazyLock::new(Mutex::default);
    let regex = {
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.entry(pattern).or_insert_with(|| Regex::new(pattern).ok()).clone()
    };
    debug_assert!(regex.is_some(), "{pattern}");
    regex.is_some_and(|regex| regex.is_match(text))
}

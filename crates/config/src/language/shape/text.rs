//! Defines what a text must be, by a pattern that the schema and the reader share.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::Regex;

/// The shape of a single value whose text matches a pattern.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    pub scalars: Scalars,
    /// Regular expressions. The text must match one of them. Each means the same in Rust and in ECMAScript.
    pub patterns: &'static [&'static str],
    /// The texts that are rejected although they match a pattern.
    pub except: Option<Exception>,
    /// The message for any other value, such as "be a duration like 5m". Editors take this message from the schema.
    pub must: &'static str,
}

/// A pattern of texts that are rejected although they match a pattern of the [`Text`].
#[derive(Clone, Copy, Debug)]
pub struct Exception {
    pub pattern: &'static str,
    /// The message for a text that is rejected for this reason, written in the same way as [`Text::must`].
    pub must: &'static str,
}

/// The types of single values that the shape [`Text`] accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalars {
    /// Text only. Numbers are rejected, because the intended text of a number such as `1.10` is not clear.
    Text,
    /// Any single value except a number. The text is taken as written.
    Spelling,
    /// Any single value, also a number. The text is taken as written.
    Written,
}

impl Text {
    pub const fn new(scalars: Scalars, patterns: &'static [&'static str], must: &'static str) -> Text {
        Text { scalars, patterns, except: None, must }
    }

    /// Whether a text matches one of the patterns and is not an exception.
    pub fn accepts(&self, text: &str) -> bool {
        let is_excepted = self.except.is_some_and(|except| matches(except.pattern, text));
        !is_excepted && self.patterns.iter().any(|pattern| matches(pattern, text))
    }

    /// Returns the message for a text that matches a pattern and is still rejected as an exception. `None` for any other text.
    pub fn exception(&self, text: &str) -> Option<&'static str> {
        let except = self.except.filter(|except| matches(except.pattern, text))?;
        self.patterns.iter().any(|pattern| matches(pattern, text)).then_some(except.must)
    }
}

/// Whether a text matches this regular expression. Each pattern is compiled only once.
pub(crate) fn matches(pattern: &'static str, text: &str) -> bool {
    static COMPILED: LazyLock<Mutex<HashMap<&str, Option<Regex>>>> = LazyLock::new(Mutex::default);
    let regex = {
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.entry(pattern).or_insert_with(|| Regex::new(pattern).ok()).clone()
    };
    debug_assert!(regex.is_some(), "{pattern}");
    regex.is_some_and(|regex| regex.is_match(text))
}

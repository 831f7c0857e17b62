//! Reads environment variables. For each invalid variable, reports which values are valid and which value was found.

use std::collections::HashSet;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

pub(crate) struct Variables<'v> {
    read: &'v dyn Fn(&str) -> Option<OsString>,
    wrong: Vec<String>,
}

/// An environment variable that is set, with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub name: &'static str,
    pub text: String,
}

impl Variables<'_> {
    pub(crate) fn new(read: &dyn Fn(&str) -> Option<OsString>) -> Variables<'_> {
        Variables { read, wrong: Vec::new() }
    }

    /// Returns the first of these variables that is set. An empty variable counts as not set, as OpenTelemetry specifies.
    pub(crate) fn first(&mut self, names: &[&'static str]) -> Option<Variable> {
        let set = |name: &'static str| Some((name, (self.read)(name).filter(|value| !value.is_empty())?));
        let (name, value) = names.iter().copied().find_map(set)?;
        match value.into_string() {
            Ok(text) => Some(Variable { name, text: text.trim().to_owned() }),
            Err(_) => {
                self.wrong.push(format!("{name}: must be text, is not UTF-8"));
                None
            }
        }
    }

    /// Uses `read` to convert the value of the first of these variables that is set. `must` describes a valid value,
    /// for the message about an invalid value. Returns `None` if no variable is set, or if the value is invalid.
    pub(crate) fn read<T>(
        &mut self,
        names: &[&'static str],
        must: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<(Variable, T)> {
        let found = self.first(names)?;
        match read(&found.text) {
            Some(value) => Some((found, value)),
            None => {
                self.add(&found, must);
                None
            }
        }
    }

    /// Reads a number within `bounds`. Returns `otherwise` if no variable is set, or if the value is invalid.
    pub(crate) fn number<N>(&mut self, names: &[&'static str], bounds: RangeInclusive<N>, otherwise: N) -> N
    where
        N: FromStr + PartialOrd + std::fmt::Display,
    {
        let must = format!("must be a number from {} to {}", bounds.start(), bounds.end());
        let read = |text: &str| text.parse().ok().filter(|number| bounds.contains(number));
        self.read(names, &must, read).map_or(otherwise, |(_, number)| number)
    }

    /// Reads a duration in milliseconds within `bounds`. Returns `otherwise` if no variable is set, or if the value is invalid.
    pub(crate) fn duration(
        &mut self,
        names: &[&'static str],
        bounds: RangeInclusive<Duration>,
        otherwise: Duration,
    ) -> Duration {
        let must = format!("must be a number from {} to {}", bounds.start().as_millis(), bounds.end().as_millis());
        let read = |text: &str| text.parse().ok().map(Duration::from_millis).filter(|span| bounds.contains(span));
        self.read(names, &must, read).map_or(otherwise, |(_, duration)| duration)
    }

    pub(crate) fn add(&mut self, found: &Variable, must: &str) {
        self.wrong.push(format!("{}: {must}, is `{}`", found.name, found.text));
    }

    /// Reports a variable with an invalid value, but does not show the value, because it may contain a password.
    pub(crate) fn add_secret(&mut self, found: &Variable, must: &str) {
        self.wrong.push(format!("{}: {must}", found.name));
    }

    /// Ends the reading of variables. Returns `value` if all variables were valid.
    ///
    /// # Errors
    /// If variables were invalid. The error has one line for each of them.
    pub(crate) fn done<T>(mut self, value: T) -> Result<T, Vec<String>> {
        // A variable of all signals is read by each of them.
        let mut said = HashSet::new();
        self.wrong.retain(|line| said.insert(line.clone()));
        if self.wrong.is_empty() { Ok(value) } else { Err(self.wrong) }
    }
}

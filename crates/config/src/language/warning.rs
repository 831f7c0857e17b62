//! Defines warnings about parts of a file that are valid but unwise. Several warnings can have one name.
//! docs/warnings.md explains each name, and a name in `check.allow` turns off its warnings.

use std::collections::HashSet;
use std::fmt;

use base::position::Position;
use base::time::Timestamp;

/// A warning about a setting that is valid, but that a lint found to be unwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub name: &'static str,
    pub position: Position,
    /// The path of the value to which the warning refers, such as `rules[2].limit_keys`.
    pub path: String,
    /// The message: the weakness, and what it can lead to.
    pub what: String,
    /// The advice that says how to correct the weakness.
    pub hint: String,
    /// The time from which the warning holds, such as the time at which a rule expires. `None`: the warning always holds.
    pub from: Option<Timestamp>,
}

impl Warning {
    /// Returns what stays the same if only the warning's position in the file changes.
    fn identity(&self) -> (&'static str, &str, &str) {
        (self.name, &self.path, &self.what)
    }
}

/// All warnings of a file, in the order of position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings {
    pub file: String,
    pub warnings: Vec<Warning>,
}

impl Warnings {
    /// Returns the warnings that hold at this moment.
    pub fn at(&self, moment: Timestamp) -> Warnings {
        let warnings = self.warnings.iter().filter(|warning| warning.from.is_none_or(|from| from <= moment));
        Warnings { file: self.file.clone(), warnings: warnings.cloned().collect() }
    }

    /// Returns the warnings of the lint with this name.
    pub fn named(&self, name: &str) -> Warnings {
        let warnings = self.warnings.iter().filter(|warning| warning.name == name);
        Warnings { file: self.file.clone(), warnings: warnings.cloned().collect() }
    }

    /// Returns the warnings that are not among `others`. A warning at another position in the file counts as the same.
    pub fn beyond(mut self, others: &Warnings) -> Warnings {
        let known: HashSet<_> = others.warnings.iter().map(Warning::identity).collect();
        self.warnings.retain(|warning| !known.contains(&warning.identity()));
        self
    }

    /// Returns the lines of a whole report: each warning, followed by its hint, and at the end the number of warnings.
    pub fn report(&self) -> Vec<String> {
        let mut report = Vec::new();
        for Warning { name, position, path, what, hint, .. } in &self.warnings {
            report.push(format!("{}:{position}: warning {name}: {path}: {what}", self.file));
            report.push(format!("  hint: {hint}"));
        }
        report.push(match self.warnings.len() {
            1 => "1 warning".to_owned(),
            count => format!("{count} warnings"),
        });
        report
    }
}

impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report().join("\n"))
    }
}

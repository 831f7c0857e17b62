//! Holds what is right but unwise in a file: its warnings, each under a name by which it is explained and can be silenced.

use std::collections::HashSet;
use std::fmt;

use crate::base::position::Position;
use crate::base::time::Timestamp;

/// One remark of a lint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub name: &'static str,
    pub place: Position,
    /// In the file, like `rules[2].limit_keys`.
    pub path: String,
    /// What is weak, and what may come of it.
    pub what: String,
    /// How to put it right.
    pub hint: String,
    /// Before this moment it is none; none: it always is.
    pub from: Option<Timestamp>,
}

impl Warning {
    /// All but where it stands.
    fn said(&self) -> (&'static str, &str, &str) {
        (self.name, &self.path, &self.what)
    }
}

/// All warnings of a file, in order of position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings {
    pub file: String,
    pub warnings: Vec<Warning>,
}

impl Warnings {
    /// Those that hold at this moment.
    pub fn at(&self, moment: Timestamp) -> Warnings {
        let warnings = self.warnings.iter().filter(|warning| warning.from.is_none_or(|from| from <= moment));
        Warnings { file: self.file.clone(), warnings: warnings.cloned().collect() }
    }

    /// Those that are not among `others`, wherever they stand in the file now.
    pub fn beyond(mut self, others: &Warnings) -> Warnings {
        let told: HashSet<_> = others.warnings.iter().map(Warning::said).collect();
        self.warnings.retain(|warning| !told.contains(&warning.said()));
        self
    }
}

impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Warning { name, place, path, what, hint, .. } in &self.warnings {
            writeln!(f, "{}:{}:{}: warning {name}: {path}: {what}", self.file, place.line, place.column)?;
            writeln!(f, "  hint: {hint}")?;
        }
        match self.warnings.len() {
            1 => write!(f, "1 warning"),
            count => write!(f, "{count} warnings"),
        }
    }
}

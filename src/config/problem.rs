//! Collects what is wrong with a file: every fault of it at once, each at its place.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use crate::base::position::Position;

/// One fault in the file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Another file than the one that is reported on, which that one names.
    pub file: Option<String>,
    /// None for a fault of the file as a whole.
    pub place: Option<Position>,
    /// In the file, like `rules[2].match`; empty for the file as a whole.
    pub path: String,
    /// What must hold, and what was found.
    pub what: String,
    pub hint: Option<String>,
}

/// All faults of a file and of those that it names, in order of position; its own come first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    pub file: String,
    pub problems: Vec<Problem>,
}

impl Problems {
    /// Each in one line: where, and what, without its hint.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = String> {
        self.problems.iter().map(|problem| {
            let file = problem.file.as_ref().unwrap_or(&self.file);
            let path = if problem.path.is_empty() { String::new() } else { format!("{}: ", problem.path) };
            match problem.place {
                Some(place) => format!("{file}:{}:{}: {path}{}", place.line, place.column, problem.what),
                None => format!("{file}: {path}{}", problem.what),
            }
        })
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (problem, line) in self.problems.iter().zip(self.lines()) {
            writeln!(f, "{line}")?;
            if let Some(hint) = &problem.hint {
                writeln!(f, "  hint: {hint}")?;
            }
        }
        match self.problems.len() {
            1 => write!(f, "1 problem"),
            count => write!(f, "{count} problems"),
        }
    }
}

impl std::error::Error for Problems {}

/// Where the readers of a file report to.
#[derive(Debug, Default)]
pub struct Report {
    problems: RefCell<Vec<Problem>>,
}

impl Report {
    /// How many problems there are so far.
    pub fn count(&self) -> usize {
        self.problems.borrow().len()
    }

    pub fn add(&self, place: Position, path: impl Into<String>, what: impl Into<String>) {
        self.add_with_hint(place, path, what, None);
    }

    pub fn add_with_hint(
        &self,
        place: Position,
        path: impl Into<String>,
        what: impl Into<String>,
        hint: Option<String>,
    ) {
        let (path, what) = (path.into(), what.into());
        self.problems.borrow_mut().push(Problem { file: None, place: Some(place), path, what, hint });
    }

    /// In a file that this one names.
    pub fn add_elsewhere(&self, file: &str, place: Option<Position>, what: impl Into<String>) {
        let (file, path) = (Some(file.to_owned()), String::new());
        self.problems.borrow_mut().push(Problem { file, place, path, what: what.into(), hint: None });
    }

    /// Sorted by place; what was found first stays first within one.
    pub fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by(|a, b| (&a.file, a.place).cmp(&(&b.file, b.place)));
        // At one place several may take turns.
        let mut told = HashSet::new();
        problems.retain(|problem| told.insert(problem.clone()));
        problems
    }
}

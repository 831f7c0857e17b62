//! Collects the problems of a file, each with its position, so that all are reported at once.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;

use crate::language::key::{FileKeys, Mapping};
use crate::language::misplaced_keys::belongs_elsewhere;
use crate::language::remarks::{ListSize, Remark, Remarks};
use crate::language::warning::Warning;
use base::position::Position;
use request::matcher::Expectation;

/// One problem in the file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The file with the problem, if that is another file, which the reported file names. `None`: the reported file itself.
    pub file: Option<String>,
    /// `None` for a problem of the file as a whole.
    pub position: Option<Position>,
    /// The path of the value, such as `rules[2].match`; empty for the file as a whole.
    pub path: String,
    /// The message: what must hold, and what was found.
    pub what: String,
    pub hint: Option<String>,
}

/// All problems of a file and of the files that it names: first its own, then those of each other file, in order of position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    pub file: String,
    pub problems: Vec<Problem>,
    /// Warnings about the valid keys, if they do not depend on invalid ones.
    pub warnings: Vec<Warning>,
}

impl Problems {
    /// Each problem in one line, without its hint.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = String> {
        self.problems.iter().map(|problem| {
            let file = problem.file.as_ref().unwrap_or(&self.file);
            let path = if problem.path.is_empty() { String::new() } else { format!("{}: ", problem.path) };
            match problem.position {
                Some(position) => format!("{file}:{position}: {path}{}", problem.what),
                None => format!("{file}: {path}{}", problem.what),
            }
        })
    }

    /// The lines of a report: each problem with its hint, and the number of problems.
    pub fn report(&self) -> Vec<String> {
        let mut report = Vec::new();
        for (problem, line) in self.problems.iter().zip(self.lines()) {
            report.push(line);
            report.extend(problem.hint.as_ref().map(|hint| format!("  hint: {hint}")));
        }
        report.push(match self.problems.len() {
            1 => "1 problem".to_owned(),
            count => format!("{count} problems"),
        });
        report
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report().join("\n"))
    }
}

impl std::error::Error for Problems {}

/// The message for a value that is unknown because a variable is not set. The name of the variable stands before it.
pub(crate) const NOT_SET: &str = " is not set, so that the value is not known here";

/// The message for a secret that only the running gateway can read. The path of its file stands before it.
pub(crate) const HIDDEN: &str = " is a credential, and systemd does not show it to this command";

/// The message for a variable that must be set. The name of the variable stands before it.
pub(crate) const MUST_BE_SET: &str = "must be set in the environment or have a default, is neither";

/// The purpose for which a file is read, which decides the values that must be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// To run: all of its values must be known.
    #[default]
    Run,
    /// To check it before a start: all of its values must be known. Unlike at a start, it may be read twice.
    CheckToRun,
    /// To examine it, perhaps on a machine without its secrets.
    Examine,
    /// To examine it and to connect to its store: the values in `store` must be known.
    ReachStore,
}

/// Collects the problems of a file, and the remarks about it, while it is read.
#[derive(Debug, Default)]
pub(crate) struct Report {
    purpose: Purpose,
    /// The keys of the whole file, for hints where an unknown key belongs; `None` for other files.
    keys: Option<FileKeys>,
    problems: RefCell<Vec<Problem>>,
    remarks: RefCell<Remarks>,
    lists: RefCell<HashMap<ListKey, Option<ReadList>>>,
}

/// The key of a list in a file: its path, and how its entries are read.
pub(crate) type ListKey = (String, ListForm);

/// The form in which the entries of a list in a file are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ListForm {
    Networks,
    Texts,
    Hosts,
    Paths,
}

/// A list that was read, with the number of its entries.
#[derive(Clone, Debug)]
pub(crate) struct ReadList {
    pub list: Expectation,
    pub entries: usize,
}

impl Report {
    pub(crate) fn new(purpose: Purpose) -> Report {
        Report { purpose, ..Report::default() }
    }

    /// Makes a report about a file with these keys.
    #[must_use]
    pub(crate) fn of_keys(self, keys: FileKeys) -> Report {
        Report { keys: Some(keys), ..self }
    }

    /// The hint that an unknown key of this mapping belongs elsewhere, if that is known.
    pub(crate) fn belongs_elsewhere(&self, mapping: &Mapping, key: &str) -> Option<String> {
        belongs_elsewhere(self.keys?, mapping, key)
    }

    /// Whether the value at this path must be known only if the file is run, not if it is examined.
    pub(crate) fn is_for_running(&self, path: &str) -> bool {
        self.keys.is_some_and(|keys| (keys.is_for_running)(path))
    }

    /// Records that a value is unknown, if that is allowed. Returns whether it is allowed.
    pub(crate) fn allows_unknown(&self, position: Position, path: &str, what: String) -> bool {
        let is_needed = match self.purpose {
            Purpose::Run | Purpose::CheckToRun => true,
            Purpose::Examine => false,
            Purpose::ReachStore => self.keys.is_some_and(|keys| {
                path.strip_prefix(keys.store).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }),
        };
        if !is_needed {
            self.note_unknown(position, path, what);
        }
        !is_needed
    }

    /// Records that a value is hidden from this check, but known to the gateway: a secret of its service. Returns whether this
    /// is such a check.
    pub(crate) fn allows_hidden(&self, position: Position, path: &str, what: String) -> bool {
        let is_beside = self.purpose == Purpose::CheckToRun;
        if is_beside {
            self.note_unknown(position, path, what);
        }
        is_beside
    }

    fn note_unknown(&self, position: Position, path: &str, what: String) {
        let unknown = &mut self.remarks.borrow_mut().unknown_values;
        let remark = Remark { position, path: path.to_owned(), what };
        // A value may be read more than once.
        if !unknown.contains(&remark) {
            unknown.push(remark);
        }
    }

    /// Reports that a value must be known, and which variables are not set.
    pub(crate) fn add_unknown(&self, position: Position, path: &str) {
        let unknown = self.remarks();
        let of_value = unknown.unknown_values.iter().filter(|one| one.position == position && one.path == path);
        let variables: Vec<&str> =
            of_value.filter_map(|one| one.what.split_once(NOT_SET)).map(|(name, _)| name).collect();
        for variable in &variables {
            self.add(position, path, format!("{variable} {MUST_BE_SET}"));
        }
        if variables.is_empty() {
            self.add(position, path, "must be known");
        }
    }

    /// Records that a network is written with bits of a host. A value may be read more than once.
    pub(crate) fn note_host_bits(&self, position: Position, path: &str, what: String) {
        let noted = &mut self.remarks.borrow_mut().host_bits;
        let remark = Remark { position, path: path.to_owned(), what };
        if !noted.contains(&remark) {
            noted.push(remark);
        }
    }

    /// Records a file that holds a secret.
    pub(crate) fn note_secret_file(&self, path: PathBuf) {
        self.remarks.borrow_mut().secret_files.push(path);
    }

    /// Records the length of a list. A value may be read more than once.
    pub(crate) fn note_list(&self, list: ListSize) {
        let noted = &mut self.remarks.borrow_mut().lists;
        if !noted.contains(&list) {
            noted.push(list);
        }
    }

    /// Returns the list of a file. The first call reads it with `read`; later calls return the same result. `None` after a
    /// problem.
    pub(crate) fn list_once(&self, key: ListKey, read: impl FnOnce() -> Option<ReadList>) -> Option<ReadList> {
        if let Some(known) = self.lists.borrow().get(&key) {
            return known.clone();
        }
        let list = read();
        self.lists.borrow_mut().insert(key, list.clone());
        list
    }

    /// Adds at most `most` problems of another file, which the reported file names.
    pub(crate) fn adopt(&self, file: &str, most: usize, of_file: Report) {
        let problems = of_file.into_problems().into_iter().take(most);
        let named = problems.map(|problem| Problem { file: Some(file.to_owned()), ..problem });
        self.problems.borrow_mut().extend(named);
    }

    /// The remarks so far, in the order in which they were noted.
    pub(crate) fn remarks(&self) -> Remarks {
        self.remarks.borrow().clone()
    }

    /// The number of problems so far.
    pub(crate) fn count(&self) -> usize {
        self.problems.borrow().len()
    }

    /// Adds a problem of the reported file.
    pub(crate) fn add(&self, position: Position, path: impl Into<String>, what: impl Into<String>) {
        self.add_with_hint(position, path, what, None);
    }

    /// Adds a problem of the reported file, with a hint.
    pub(crate) fn add_with_hint(
        &self,
        position: Position,
        path: impl Into<String>,
        what: impl Into<String>,
        hint: Option<String>,
    ) {
        let (path, what) = (path.into(), what.into());
        self.problems.borrow_mut().push(Problem { file: None, position: Some(position), path, what, hint });
    }

    /// Adds a problem of a file that the reported file names.
    pub(crate) fn add_elsewhere(&self, file: &str, position: Option<Position>, what: impl Into<String>) {
        let (file, path) = (Some(file.to_owned()), String::new());
        self.problems.borrow_mut().push(Problem { file, position, path, what: what.into(), hint: None });
    }

    /// Returns the problems, sorted by file and position. Problems at one position stay in the order in which they were found.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by(|a, b| (&a.file, a.position).cmp(&(&b.file, b.position)));
        // Two readers of one value may report the same problem.
        let mut reported = HashSet::new();
        problems.retain(|problem| reported.insert(problem.clone()));
        problems
    }
}

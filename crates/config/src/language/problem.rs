//! Collects the problems of a file, each with its position, so that all problems are reported at once.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;

use crate::language::disclosure::ConcealedTexts;
use crate::language::key::{FileKeys, Mapping};
use crate::language::misplaced_keys::belongs_elsewhere;
use crate::language::remarks::{FileRole, ListSize, NamedFileRemark, Remark, Remarks};
use crate::language::warning::Warning;
use base::position::Position;
use request::attribute::Folding;
use request::matcher::Expectation;

/// A problem in a file, which makes the file invalid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The file that has the problem. `None`: gateway.yaml itself, and not a file that gateway.yaml names.
    pub file: Option<String>,
    /// The position of the problem. `None` for a problem of the file as a whole.
    pub position: Option<Position>,
    /// The path of the value that has the problem, such as `rules[2].match`. Empty for a problem of the file as a whole.
    pub path: String,
    /// The message. It says what the value must be, and what was found.
    pub what: String,
    pub hint: Option<String>,
}

/// All problems of a reported file, and then the problems of the files that it names. Each file's problems are in the
/// order of position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    pub file: String,
    pub problems: Vec<Problem>,
    /// Warnings about keys that are valid and do not depend on invalid keys.
    pub warnings: Vec<Warning>,
}

impl Problems {
    /// Returns one line for each problem, without hints.
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

    /// Returns the lines of a whole report: each problem, followed by its hint, and at the end the number of problems.
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

/// The end of the message for a value whose variable is not set. The message begins with the variable's name.
pub(crate) const NOT_SET: &str = " is not set, so that the value is not known here";

/// The end of the message for a secret that only the running gateway can read, after the path of the secret's file.
pub(crate) const HIDDEN: &str = " is a credential, and systemd does not show it to this command";

/// The end of the message for a variable that must be set. The message begins with the variable's name.
pub(crate) const MUST_BE_SET: &str = "must be set in the environment or have a default, is neither";

/// The purpose for which a file is read. The purpose decides which values must be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// The gateway runs with the file. All values must be known.
    #[default]
    Run,
    /// A command checks the file before a start. All values must be known, except for secrets that systemd shows only
    /// to the gateway. The command may read the file twice.
    CheckToRun,
    /// A command examines the file, perhaps on a machine without the file's secrets. Values may be unknown.
    Examine,
    /// A command examines the file and connects to its store. The values in `store` must be known.
    ReachStore,
}

/// Collects the problems of a file, and the remarks for the lints, while the file is read.
#[derive(Debug, Default)]
pub(crate) struct Report {
    purpose: Purpose,
    /// The keys of the whole file, for hints about where an unknown key belongs. `None` for other files.
    keys: Option<FileKeys>,
    problems: RefCell<Vec<Problem>>,
    remarks: RefCell<Remarks>,
    lists: RefCell<HashMap<ListKey, Option<ReadList>>>,
    concealed: RefCell<ConcealedTexts>,
}

/// Identifies a list in a separate file: the path of the file, and the form of its entries.
pub(crate) type ListKey = (String, ListForm);

/// The form of the entries in a file with a list. The form decides how each entry is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ListForm {
    Networks,
    /// Texts, each changed like a value of an attribute.
    Texts(Folding),
    Hosts,
    Paths(Folding),
}

/// A list that was read from a separate file, with the number of its entries.
#[derive(Clone, Debug)]
pub(crate) struct ReadList {
    pub list: Expectation,
    pub entries: usize,
}

impl Report {
    pub(crate) fn new(purpose: Purpose) -> Report {
        Report { purpose, ..Report::default() }
    }

    /// Returns the report with the declared keys of its file. Used to give hints about unknown keys.
    #[must_use]
    pub(crate) fn of_keys(self, keys: FileKeys) -> Report {
        Report { keys: Some(keys), ..self }
    }

    /// Returns a hint for a key that is unknown in this mapping: the place to which the key belongs. `None` if no place
    /// is known.
    pub(crate) fn belongs_elsewhere(&self, mapping: &Mapping, key: &str) -> Option<String> {
        belongs_elsewhere(self.keys?, mapping, key)
    }

    /// Whether the value at this path may be unknown while the file is only examined.
    pub(crate) fn is_for_running(&self, path: &str) -> bool {
        self.keys.is_some_and(|keys| (keys.is_for_running)(path))
    }

    /// Returns whether the value at this path may be unknown. If so, records that it is unknown.
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

    /// Returns whether the file is checked before a start. If so, records that only the running gateway can read this
    /// secret.
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
        // The same value may be read more than once.
        if !unknown.contains(&remark) {
            unknown.push(remark);
        }
    }

    /// Reports that the value at this path must be known, and names the variables that are not set.
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

    /// Records that a network has bits after the prefix, such as `10.1.2.3/8`. Ignores a value that is already
    /// recorded.
    pub(crate) fn note_host_bits(&self, position: Position, path: &str, what: String) {
        let noted = &mut self.remarks.borrow_mut().host_bits;
        let remark = Remark { position, path: path.to_owned(), what };
        if !noted.contains(&remark) {
            noted.push(remark);
        }
    }

    /// Records that the value at this path names a file.
    pub(crate) fn note_named_file(&self, position: Position, path: &str, file: PathBuf, role: FileRole) {
        let what = format!("every user of this machine can read `{}`", file.display());
        let remark = Remark { position, path: path.to_owned(), what };
        self.remarks.borrow_mut().named_files.push(NamedFileRemark { remark, file, role });
    }

    /// Records the length of a list that was read from a separate file. Ignores a list that is already recorded.
    pub(crate) fn note_list(&self, list: ListSize) {
        let noted = &mut self.remarks.borrow_mut().lists;
        if !noted.contains(&list) {
            noted.push(list);
        }
    }

    /// Returns the list in a file. Only the first call with a `key` reads the list. `None` if the list has a problem.
    pub(crate) fn list_once(&self, key: ListKey, read: impl FnOnce() -> Option<ReadList>) -> Option<ReadList> {
        if let Some(known) = self.lists.borrow().get(&key) {
            return known.clone();
        }
        let list = read();
        self.lists.borrow_mut().insert(key, list.clone());
        list
    }

    /// Adds the problems of another file that the reported file names, but at most `most` of them.
    pub(crate) fn adopt(&self, file: &str, most: usize, of_file: Report) {
        let problems = of_file.into_problems().into_iter().take(most);
        let named = problems.map(|problem| Problem { file: Some(file.to_owned()), ..problem });
        self.problems.borrow_mut().extend(named);
    }

    /// Returns the remarks that have been noted, in the order of noting.
    pub(crate) fn remarks(&self) -> Remarks {
        self.remarks.borrow().clone()
    }

    /// Keeps a text out of all messages: the value of an environment variable, or a secret in the file.
    pub(crate) fn conceal(&self, text: &str) {
        self.concealed.borrow_mut().add(text);
    }

    /// Takes the concealed texts out of warnings about the file.
    pub(crate) fn conceal_in(&self, warnings: &mut [Warning]) {
        let concealed = self.concealed.borrow();
        for warning in warnings {
            concealed.remove_from(&mut warning.what);
            concealed.remove_from(&mut warning.hint);
        }
    }

    /// Returns the number of problems that have been added.
    pub(crate) fn count(&self) -> usize {
        self.problems.borrow().len()
    }

    /// Adds a problem of the reported file, without a hint.
    pub(crate) fn add(&self, position: Position, path: impl Into<String>, what: impl Into<String>) {
        self.add_with_hint(position, path, what, None);
    }

    /// Adds a problem of the reported file, together with a hint.
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

    /// Adds a problem of another file. `path` is the path of the value that names it in the reported file.
    pub(crate) fn add_elsewhere(&self, file: &str, position: Option<Position>, path: &str, what: impl Into<String>) {
        let (file, path) = (Some(file.to_owned()), path.to_owned());
        self.problems.borrow_mut().push(Problem { file, position, path, what: what.into(), hint: None });
    }

    /// Returns the problems, sorted by file and position, each once. Problems at the same position keep their order.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems()
    }

    /// Returns the problems so far, as [`Report::into_problems`] does.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = self.problems.borrow().clone();
        let concealed = self.concealed.borrow();
        for problem in &mut problems {
            concealed.remove_from(&mut problem.what);
            problem.hint.iter_mut().for_each(|hint| concealed.remove_from(hint));
        }
        problems.sort_by(|a, b| (&a.file, a.position).cmp(&(&b.file, b.position)));
        // Two readers of the same value may report the same problem.
        let mut reported = HashSet::new();
        problems.retain(|problem| reported.insert(problem.clone()));
        problems
    }
}

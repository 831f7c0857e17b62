//! Reads the files of other programs, and writes a gateway.yaml: of the service envoyproxy/ratelimit (here), of
//! [nginx], and of [Kong](kong).
//!
//! A file of envoyproxy/ratelimit is a tree of descriptors. At each level, the service goes to the node with exactly the value in the call,
//! else to the first pattern that matches, else to the node without a value. The service never goes back. The limit of
//! the last node applies. In Tollgate, the first rule of a policy that matches decides. So each sequence of keys
//! becomes a sequence of rules, in the order in which the service searches ([`shapes`]).

mod gateway_yaml;
mod kong;
mod names;
mod nginx;
mod shapes;
mod tree;
mod written_rules;

pub use kong::import_kong;
pub use nginx::import_nginx;

use std::path::Path;

use crate::config::Config;
use crate::language::environment::Environment;
use crate::language::problem::{Problem, Problems, Report};
use crate::language::remarks::Remark;
use base::position::Position;
use tree::Domain;

/// A file to import: its name in messages, and its text.
#[derive(Clone, Copy, Debug)]
pub struct ImportedFile<'f> {
    pub name: &'f str,
    pub bytes: &'f [u8],
}

/// The result of an import: the text of a gateway.yaml, and the settings that the text lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The text of the gateway.yaml that the import made.
    pub text: String,
    /// The settings of the imported files that the text lacks, in the order of files and positions.
    pub losses: Vec<Loss>,
}

/// A setting of an imported file that gateway.yaml cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub file: String,
    pub remark: Remark,
}

impl Loss {
    /// Returns the loss as one line, in the format of problems.
    pub fn line(&self) -> String {
        let Loss { file, remark: Remark { position, path, what } } = self;
        format!("{file}:{position}: {path}: {what}")
    }
}

/// The losses that the import has found.
#[derive(Debug, Default)]
struct Losses(Vec<Loss>);

impl Losses {
    fn add(&mut self, file: &str, position: Position, path: &str, what: impl Into<String>) {
        let remark = Remark { position, path: path.to_owned(), what: what.into() };
        let loss = Loss { file: file.to_owned(), remark };
        // A node in several shapes would add the same loss several times.
        if !self.0.contains(&loss) {
            self.0.push(loss);
        }
    }
}

/// Returns the import if its text is a valid gateway.yaml.
///
/// # Errors
/// What the text has that gateway.yaml does not accept, each with the place in the imported files that the text names.
fn checked(import: Import) -> Result<Import, Problems> {
    // The file with the keys of clients does not exist yet.
    let read = |path: &Path| match path == Path::new(API_KEYS_FILE) {
        true => Ok(format!("{} client plan", "0".repeat(64)).into_bytes()),
        false => Err(std::io::ErrorKind::NotFound.into()),
    };
    let environment = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
    let Err(problems) = Config::parse("gateway.yaml", import.text.as_bytes(), environment) else { return Ok(import) };
    let place = |position: Position| {
        let before = import.text.lines().take(position.line);
        before.filter_map(|line| line.strip_prefix("      # ")).last().map(str::to_owned)
    };
    let named = |problem: Problem| Problem {
        file: problem.position.and_then(&place),
        position: None,
        what: format!("cannot be imported: {}", problem.what),
        ..problem
    };
    Err(Problems { problems: problems.problems.into_iter().map(named).collect(), ..problems })
}

/// The file with the keys of clients, in an imported gateway.yaml.
const API_KEYS_FILE: &str = "api-keys.txt";

/// Converts the files of envoyproxy/ratelimit to a gateway.yaml. Several files may describe one domain.
///
/// # Errors
/// All problems of all files. The service envoyproxy/ratelimit rejects these files too.
pub fn import(files: &[ImportedFile<'_>]) -> Result<Import, Problems> {
    let (mut domains, mut losses): (Vec<Domain>, _) = (Vec::new(), Losses::default());
    let mut problems: Vec<Problem> = Vec::new();
    for file in files {
        let report = Report::default();
        let read = tree::read(file, &report, &mut domains, &mut losses);
        let named = |problem: Problem| Problem { file: Some(file.name.to_owned()), ..problem };
        problems.extend(report.into_problems().into_iter().chain(read.err()).map(named));
    }
    if !problems.is_empty() {
        let file = files.first().map_or("", |file| file.name).to_owned();
        return Err(Problems { file, problems, warnings: Vec::new() });
    }
    let policies = shapes::policies(&domains, &mut losses);
    let order = |loss: &Loss| files.iter().position(|file| file.name == loss.file);
    let mut losses = losses.0;
    losses.sort_by_key(|loss| (order(loss), loss.remark.position));
    checked(Import { text: gateway_yaml::write(&policies, &losses), losses })
}

#[cfg(test)]
mod tests;

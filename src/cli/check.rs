//! `tollgate check`: reports every problem of a file, or its warnings and `ok`, and which buckets a change resets.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::failure::Failure;
use super::output;
use super::output::Page;
use crate::base::time::Clock;
use crate::config::Config;
use crate::config::diff::Reset;
use crate::config::problem::{Problem, Problems};
use crate::config::warning::{Warning, Warnings};

const EXAMPLE: &str = "\
Example: put a new file into use if it is valid, and list the limits whose buckets it resets.

  tollgate check --against gateway.yaml new.yaml && mv new.yaml gateway.yaml";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Arguments {
    /// The configuration
    #[arg(value_name = "FILE", default_value = "gateway.yaml")]
    file: PathBuf,
    /// The file in force: list the limits whose buckets the new file resets
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Treat warnings as problems: exit with 1 if there are any
    #[arg(long)]
    strict: bool,
    /// Print one JSON document to standard output instead
    #[arg(long)]
    json: bool,
}

/// The warnings of a file without problems, and the limits whose buckets it resets.
struct Findings {
    warnings: Warnings,
    resets: Vec<Reset>,
}

/// Whether the file may be put into use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Fail,
}

/// Checks a file. Its problems are not an error but the verdict.
///
/// # Errors
/// When the report cannot be written.
pub fn run(arguments: &Arguments) -> Result<Verdict, Failure> {
    let findings = examine(arguments);
    let verdict = match &findings {
        Ok(findings) if findings.warnings.warnings.is_empty() || !arguments.strict => Verdict::Pass,
        _ => Verdict::Fail,
    };
    let (mut page, mut errors) = (Page::default(), Page::default());
    match (&findings, arguments.json) {
        (_, true) => page.json(&document(arguments, &findings, verdict))?,
        (Err(problems), false) => errors.lines(problems.report()),
        (Ok(findings), false) => {
            page.lines(findings.resets.iter().map(|reset| format!("buckets reset: {reset}")));
            if !findings.warnings.warnings.is_empty() {
                errors.lines(findings.warnings.report());
            }
            if verdict == Verdict::Pass {
                page.line("ok");
            }
        }
    }
    output::print_errors(&errors);
    output::print(&page)?;
    Ok(verdict)
}

fn examine(arguments: &Arguments) -> Result<Findings, Problems> {
    let config = Config::examine(&arguments.file)?;
    let resets = match &arguments.against {
        Some(before) => config.reset_buckets(&Config::examine(before)?),
        None => Vec::new(),
    };
    Ok(Findings { warnings: config.warnings.at(Clock::system().wall()), resets })
}

fn document(arguments: &Arguments, findings: &Result<Findings, Problems>, verdict: Verdict) -> Value {
    let file = arguments.file.display().to_string();
    let (problems, warnings, resets): (Vec<Value>, Vec<Value>, Vec<Value>) = match findings {
        Err(problems) => {
            let list = problems.problems.iter().map(|problem| problem_object(&problems.file, problem));
            (list.collect(), Vec::new(), Vec::new())
        }
        Ok(Findings { warnings, resets }) => (
            Vec::new(),
            warnings.warnings.iter().map(|warning| warning_object(&warnings.file, warning)).collect(),
            resets.iter().map(|reset| reset.to_string().into()).collect(),
        ),
    };
    let ok = verdict == Verdict::Pass;
    json!({"file": file, "ok": ok, "problems": problems, "warnings": warnings, "starts_anew": resets})
}

/// A problem as JSON: a position, path or hint that it lacks is null.
fn problem_object(file: &str, Problem { file: other, position, path, what, hint }: &Problem) -> Value {
    let (file, path) = (other.as_deref().unwrap_or(file), (!path.is_empty()).then_some(path));
    let (line, column) = (position.map(|position| position.line), position.map(|position| position.column));
    json!({"file": file, "line": line, "column": column, "path": path, "what": what, "hint": hint})
}

fn warning_object(file: &str, Warning { name, position, path, what, hint, .. }: &Warning) -> Value {
    let (line, column) = (position.line, position.column);
    json!({"name": name, "file": file, "line": line, "column": column, "path": path, "what": what, "hint": hint})
}

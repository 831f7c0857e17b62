//! `tollgate check`: every problem of a file, or its warnings and `ok`; and whose buckets start anew where another file is
//! in force.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::base::time::Clock;
use crate::config::Config;
use crate::config::diff::Reset;
use crate::config::problem::{Problem, Problems};
use crate::config::warning::{Warning, Warnings};

const EXAMPLE: &str = "\
Example: take a new file into use when it is right, and say whose buckets start anew.

  tollgate check --against gateway.yaml new.yaml && mv new.yaml gateway.yaml";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Arguments {
    /// The configuration
    #[arg(value_name = "FILE", default_value = "gateway.yaml")]
    file: PathBuf,
    /// Another file, which is in force: name the limits whose buckets start anew
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Take warnings for problems: exit with 1 where there is one
    #[arg(long)]
    strict: bool,
    /// Print one JSON document to standard output instead
    #[arg(long)]
    json: bool,
}

/// What is to be said of a file without problems.
struct Fine {
    warnings: Warnings,
    anew: Vec<Reset>,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let looked = look(arguments);
    let passes = looked.as_ref().is_ok_and(|fine| fine.warnings.warnings.is_empty() || !arguments.strict);
    match (&looked, arguments.json) {
        (_, true) => println!("{}", document(arguments, &looked, passes)),
        (Err(problems), false) => eprintln!("{problems}"),
        (Ok(fine), false) => tell(fine, passes),
    }
    if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn look(arguments: &Arguments) -> Result<Fine, Problems> {
    let config = Config::load(&arguments.file)?;
    let anew = match &arguments.against {
        Some(before) => config.reset_buckets(&Config::load(before)?),
        None => Vec::new(),
    };
    Ok(Fine { warnings: config.warnings.at(Clock::system().wall()), anew })
}

fn tell(fine: &Fine, passes: bool) {
    for anew in &fine.anew {
        println!("buckets reset: {anew}");
    }
    if !fine.warnings.warnings.is_empty() {
        eprintln!("{}", fine.warnings);
    }
    if passes {
        println!("ok");
    }
}

fn document(arguments: &Arguments, looked: &Result<Fine, Problems>, passes: bool) -> Value {
    let file = arguments.file.display().to_string();
    let (problems, warnings, anew): (Vec<Value>, Vec<Value>, Vec<Value>) = match looked {
        Err(problems) => {
            (problems.problems.iter().map(|problem| wrong(&problems.file, problem)).collect(), Vec::new(), Vec::new())
        }
        Ok(Fine { warnings, anew }) => (
            Vec::new(),
            warnings.warnings.iter().map(|warning| unwise(&warnings.file, warning)).collect(),
            anew.iter().map(|anew| anew.to_string().into()).collect(),
        ),
    };
    json!({"file": file, "ok": passes, "problems": problems, "warnings": warnings, "starts_anew": anew})
}

/// Null is what there is none of.
fn wrong(file: &str, Problem { file: other, position, path, what, hint }: &Problem) -> Value {
    let (file, path) = (other.as_deref().unwrap_or(file), (!path.is_empty()).then_some(path));
    let (line, column) = (position.map(|position| position.line), position.map(|position| position.column));
    json!({"file": file, "line": line, "column": column, "path": path, "what": what, "hint": hint})
}

fn unwise(file: &str, Warning { name, position, path, what, hint, .. }: &Warning) -> Value {
    let (line, column) = (position.line, position.column);
    json!({"name": name, "file": file, "line": line, "column": column, "path": path, "what": what, "hint": hint})
}

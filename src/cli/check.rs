//! `tollgate check`: reports every problem of a file, or its warnings and `ok`. With `--against`, also reports the
//! effects of a change on buckets, limits, routes and upstreams.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::failure::Failure;
use super::output;
use super::output::{Colour, ColourMode, Page};
use base::time::Clock;
use config::diff::Reset;
use config::problem::{Problem, Problems, Purpose};
use config::warning::{Warning, Warnings};
use config::{Config, HomeFailure};
use rules::number_changes::ChangedLimit;
use rules::rule::{Mode, OnStoreFailure};
use rules::without_store::{named_without_home, named_without_store};

const EXAMPLE: &str = "\
Example: put a new file into use if it is valid, and list the limits whose buckets it resets, and those with other numbers.

  tollgate check --against gateway.yaml new.yaml && mv new.yaml gateway.yaml";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    /// The configuration; - is standard input
    #[arg(value_name = "FILE", default_value = "gateway.yaml")]
    file: PathBuf,
    /// The same as FILE
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
    /// The file in force. Lists what the new file changes: limits whose buckets are reset, limits with other numbers, removed
    /// limits, routes and upstreams, `store.home`, and keys that need a restart
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Treat warnings as problems: exit with 1 if there are any
    #[arg(long)]
    strict: bool,
    /// Exit with 1 if a variable is not set or a secret file cannot be read, as at a start of the gateway
    #[arg(long)]
    require_secrets: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The warnings of a valid file, and its differences from the file of `--against`.
#[derive(Default)]
struct Findings {
    warnings: Warnings,
    resets: Vec<Reset>,
    kept: Vec<ChangedLimit>,
    /// The routes that are added, removed or changed.
    routes: Vec<String>,
    /// The upstreams that are added, removed or changed.
    upstreams: Vec<String>,
    /// What has changed in `store.home`.
    home: Vec<String>,
    /// The limits that the new file no longer has.
    gone: Vec<String>,
    /// The keys of the configuration that were changed and need a restart.
    restart: Vec<&'static str>,
    /// The enforced limits that answer 503 while the store gives no answer.
    denied_without_store: Vec<String>,
    /// The enforced limits that answer 503 beyond their leases while home gives no answer.
    denied_without_home: Vec<String>,
}

/// Whether a command found no problem.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Fail,
}

/// Checks a file, and prints the report. With problems, the verdict is `Fail`.
///
/// # Errors
/// When the report cannot be written.
pub(super) fn run(arguments: &Arguments) -> Result<Verdict, Failure> {
    let findings = examine(arguments);
    let verdict = match &findings {
        Ok(findings) if findings.warnings.warnings.is_empty() || !arguments.strict => Verdict::Pass,
        _ => Verdict::Fail,
    };
    let (mut page, mut errors) = (Page::default(), Page::default());
    match (&findings, arguments.json) {
        (_, true) => page.json(&document(arguments, &findings, verdict))?,
        (Err(problems), false) => {
            errors.report(problems.report(), Colour::Red, ColourMode::of_errors());
            let warnings = Warnings { file: problems.file.clone(), warnings: problems.warnings.clone() };
            let warnings = warnings.at(Clock::system().wall());
            if !warnings.warnings.is_empty() {
                errors.report(warnings.report(), Colour::Yellow, ColourMode::of_errors());
            }
        }
        (Ok(findings), false) => {
            page.lines(findings.resets.iter().map(|reset| format!("buckets reset: {reset}")));
            page.lines(findings.kept.iter().map(|changed| format!("buckets kept: {changed}")));
            page.lines(findings.gone.iter().map(|gone| format!("gone: {gone}")));
            page.lines(findings.routes.iter().map(|changed| format!("routes changed: {changed}")));
            page.lines(findings.upstreams.iter().map(|changed| format!("upstreams changed: {changed}")));
            page.lines(findings.home.iter().map(|changed| format!("home changed: {changed}")));
            page.lines(findings.restart.iter().map(|key| format!("needs a restart: {key}")));
            if !findings.warnings.warnings.is_empty() {
                errors.report(findings.warnings.report(), Colour::Yellow, ColourMode::of_errors());
            }
            let denied: Vec<&str> = findings.denied_without_store.iter().map(String::as_str).collect();
            let denied = named_without_store(&denied, OnStoreFailure::Deny);
            page.lines(denied.map(|denied| format!("while the store is away: {denied}")));
            let denied: Vec<&str> = findings.denied_without_home.iter().map(String::as_str).collect();
            page.lines(named_without_home(&denied, false).map(|denied| format!("while home is away: {denied}")));
            if verdict == Verdict::Pass {
                page.painted_line("ok", Colour::Green, ColourMode::of_output());
            }
        }
    }
    output::print_errors(&errors);
    output::print(&page)?;
    Ok(verdict)
}

impl Arguments {
    fn file(&self) -> &Path {
        self.config.as_ref().unwrap_or(&self.file)
    }
}

fn examine(arguments: &Arguments) -> Result<Findings, Problems> {
    let purpose = if arguments.require_secrets { Purpose::CheckToRun } else { Purpose::Examine };
    let config = Config::examine(arguments.file(), purpose)?;
    let warnings = config.warnings.at(Clock::system().wall());
    let denied_without_store = denied_without_store(&config);
    let denied_without_home = denied_without_home(&config);
    let Some(before) = &arguments.against else {
        return Ok(Findings { warnings, denied_without_store, denied_without_home, ..Findings::default() });
    };
    let before = Config::examine(before, Purpose::Examine)?;
    Ok(Findings {
        warnings,
        resets: config.reset_buckets(&before),
        kept: config.changed_limits(&before),
        routes: config.changed_routes(&before),
        upstreams: config.changed_upstreams(&before),
        home: config.changed_home(&before),
        gone: config.gone_limits(&before),
        restart: config.restart_keys(&before),
        denied_without_store,
        denied_without_home,
    })
}

/// Returns the names of the enforced limits with `on_store_failure: deny`, if the store is shared.
fn denied_without_store(config: &Config) -> Vec<String> {
    let limits = config.rules.limits().iter().filter(|limit| {
        config.store.is_shared() && limit.mode == Mode::Enforce && limit.on_store_failure == OnStoreFailure::Deny
    });
    limits.map(|limit| limit.name.clone()).collect()
}

/// Returns the names of the enforced limits over several regions, if home has `on_failure: deny`.
fn denied_without_home(config: &Config) -> Vec<String> {
    let denies = config.home.as_ref().is_some_and(|home| home.on_failure == HomeFailure::Deny);
    let limits = config.rules.limits().iter();
    let global = limits.filter(|limit| denies && limit.mode == Mode::Enforce && limit.purse().is_some());
    global.map(|limit| limit.name.clone()).collect()
}

fn document(arguments: &Arguments, findings: &Result<Findings, Problems>, verdict: Verdict) -> Value {
    let file = arguments.file().display().to_string();
    let mut lists = [const { Vec::<Value>::new() }; 11];
    let [problems, warnings, resets, kept, routes, upstreams, home, gone, restart, denied, without_home] = &mut lists;
    match findings {
        Err(found) => {
            problems.extend(found.problems.iter().map(|problem| problem_object(&found.file, problem)));
            warnings.extend(found.warnings.iter().map(|warning| warning_object(&found.file, warning)));
        }
        Ok(found) => {
            let Warnings { file, warnings: all } = &found.warnings;
            warnings.extend(all.iter().map(|warning| warning_object(file, warning)));
            resets.extend(found.resets.iter().map(|reset| Value::from(reset.to_string())));
            kept.extend(found.kept.iter().map(|changed| Value::from(changed.to_string())));
            routes.extend(found.routes.iter().map(|changed| Value::from(changed.as_str())));
            upstreams.extend(found.upstreams.iter().map(|changed| Value::from(changed.as_str())));
            home.extend(found.home.iter().map(|changed| Value::from(changed.as_str())));
            gone.extend(found.gone.iter().map(|limit| Value::from(limit.as_str())));
            restart.extend(found.restart.iter().map(|key| Value::from(*key)));
            denied.extend(found.denied_without_store.iter().map(|limit| Value::from(limit.as_str())));
            without_home.extend(found.denied_without_home.iter().map(|limit| Value::from(limit.as_str())));
        }
    }
    let ok = verdict == Verdict::Pass;
    json!({
        "file": file, "ok": ok, "problems": problems, "warnings": warnings, "starts_anew": resets, "kept": kept,
        "routes": routes, "upstreams": upstreams, "home": home, "gone": gone, "needs_restart": restart,
        "denied_without_store": denied, "denied_without_home": without_home
    })
}

/// Returns a problem as JSON. A missing position, path or hint is null.
fn problem_object(file: &str, Problem { file: other, position, path, what, hint }: &Problem) -> Value {
    let (file, path) = (other.as_deref().unwrap_or(file), (!path.is_empty()).then_some(path));
    let (line, column) = (position.map(|position| position.line), position.map(|position| position.column));
    json!({"file": file, "line": line, "column": column, "path": path, "what": what, "hint": hint})
}

fn warning_object(file: &str, Warning { name, position, path, what, hint, .. }: &Warning) -> Value {
    let (line, column) = (position.line, position.column);
    json!({"name": name, "file": file, "line": line, "column": column, "path": path, "what": what, "hint": hint})
}

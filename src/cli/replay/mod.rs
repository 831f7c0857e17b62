//! `tollgate replay`: shows how a file would have decided the requests of access logs.

mod progress;
mod share;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use serde_json::json;

use super::config_file::{ConfigFile, examine};
use super::failure::{Failure, MultiLine};
use super::output;
use super::output::Page;
use base::time::Clock;
use config::Config;
use config::problem::Purpose;
use progress::Progress;
use replay::entry::Format;
use replay::field_map::{FieldMap, FieldMapping};
use replay::line_reader::Lines;
use replay::merge::Merge;
use replay::report::{Outcome, Report};
use replay::{Question, replay, svg};
use request::attribute::{Attribute, AttributeError, MAX_PATH_SEGMENT};
use share::Share;

const EXAMPLE: &str = "\
Example: which clients would new numbers refuse that today's do not?

  tollgate replay -c gateway.yaml --against tomorrow.yaml access.*.jsonl.gz
  tollgate replay -c tomorrow.yaml --fail-above 1% /var/log/nginx/access.log*
  tollgate replay -c tomorrow.yaml --map time=ts,ip:address=client,path=req.uri,jwt:sub=user.id app.jsonl";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Another file, to show what it changes. -c is then the file under which the log was written
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// The format of the lines; by default detected for each line
    #[arg(long, value_enum)]
    format: Option<LogFormat>,
    /// Map fields of JSON lines to attributes and the time; dots select nested fields: time=ts,jwt:sub=user.id
    #[arg(long, value_name = "ATTRIBUTE=FIELD", value_delimiter = ',', value_parser = FieldMapping::parse)]
    map: Vec<FieldMapping>,
    /// Treat an attribute that the log lacks as missing from the request: jwt:plan
    #[arg(long, value_name = "ATTRIBUTE", value_delimiter = ',', value_parser = attribute)]
    absent: Vec<Attribute>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Exit with 1 when more than this share of the decided requests is refused: 1%
    #[arg(long, value_name = "SHARE", value_parser = Share::parse)]
    fail_above: Option<Share>,
    /// Write a chart of allowed and refused requests over time, as SVG
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// The access logs, compressed or not; - is standard input
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<String>,
}

/// The format of the lines of an access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// The access log of this gateway
    Tollgate,
    /// The formats of nginx and Apache: combined, common, main
    Combined,
    /// JSON, with --map
    Json,
}

/// Replays logs, and prints the report.
///
/// # Errors
/// When a file has problems, a log cannot be read, or a larger share of requests is refused than `--fail-above` allows.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let format = format(arguments)?;
    let file = read(&arguments.file.config)?;
    let against = arguments.against.as_deref().map(read).transpose()?;
    // There may be many logs, so the limit of open files is raised, if possible.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let mut logs = Vec::new();
    for name in &arguments.logs {
        let lines = Lines::open(name).map_err(|error| format!("{name}: must be a readable file: {error}"))?;
        logs.push((lines, format.clone()));
    }
    let clock = Clock::system();
    let start = clock.now();
    let mut progress = Progress::new(&clock);
    let question = Question { file: &file, against: against.as_ref(), absent: &arguments.absent };
    let report = replay(question, Merge::new(logs), &mut |read, at| progress.show(read, at));
    progress.clear();
    let report = Report { took: clock.now().since(start), ..report? };
    if let (0, Some(first)) = (report.requests + report.read.before_rules, &report.read.first_unreadable) {
        let none = format!("no line could be read, of {}", report.read.lines);
        return Err(MultiLine(vec![first.clone(), none]).into());
    }
    let names = names(arguments);
    let mut page = Page::default();
    match arguments.json {
        true => page.json(&in_json(&report, &names))?,
        false => page.lines(table::table(&report, &names)),
    }
    if let Some(path) = &arguments.picture {
        std::fs::write(path, svg::draw(&report.timeline, &names))
            .map_err(|error| format!("{}: must be writable: {error}", path.display()))?;
        if !arguments.json {
            page.line(format_args!("picture  {}", path.display()));
        }
    }
    output::print(&page)?;
    match (arguments.fail_above, report.outcomes.last(), names.last()) {
        (Some(bound), Some(outcome), Some(name)) => check_share(bound, outcome, name),
        _ => Ok(()),
    }
}

/// Reads a file. A log is that of one region, so limits over several regions are replayed as if there were no other.
fn read(path: &Path) -> Result<Config, Failure> {
    let config = examine(path, Purpose::Examine)?;
    Ok(Config { rules: config.rules.clone().in_one_region(), ..config })
}

fn format(arguments: &Arguments) -> Result<Format, Failure> {
    match (arguments.format, &arguments.map[..]) {
        (None, []) => Ok(Format::Detect),
        (Some(LogFormat::Tollgate), []) => Ok(Format::Own),
        (Some(LogFormat::Combined), []) => Ok(Format::Combined),
        (Some(LogFormat::Json), []) => Err("--format json: needs --map, which names its fields".into()),
        (Some(LogFormat::Tollgate | LogFormat::Combined), _) => Err("--map: applies only to --format json".into()),
        (None | Some(LogFormat::Json), map) => {
            let fields = FieldMap::new(map).map_err(|wrong| format!("--map: {wrong}"))?;
            Ok(Format::Mapped(Arc::new(fields)))
        }
    }
}

/// Returns the names of the configuration files, as they were given.
fn names(arguments: &Arguments) -> Vec<String> {
    let files = std::iter::once(&arguments.file.config).chain(&arguments.against);
    files.map(|path: &PathBuf| Path::display(path).to_string()).collect()
}

/// Fails if the last file refuses more than this share of the decided requests, or if no request was decided.
fn check_share(bound: Share, outcome: &Outcome, name: &str) -> Result<(), Failure> {
    let (refused, decided) = outcome.decided();
    let requests = outcome.allowed + outcome.refused + outcome.undecided;
    if decided == 0 && requests > 0 {
        return Err(format!("--fail-above: {name}: none of {requests} requests could be decided").into());
    }
    match outcome.refuses_above(bound.millionths()) {
        true => {
            Err(format!("--fail-above: {name}: refuses {refused} of {decided} decided requests, more than {bound}")
                .into())
        }
        false => Ok(()),
    }
}

fn in_json(report: &Report, names: &[String]) -> serde_json::Value {
    let mut files = Vec::new();
    for (number, (name, outcome)) in names.iter().zip(&report.outcomes).enumerate() {
        let mut file = json!(outcome);
        let worst = report.timeline.worst(number).map(
            |worst| json!({"start": worst.start, "seconds": worst.length, "refused": worst.part.refused_by(number)}),
        );
        if let Some(file) = file.as_object_mut() {
            file.insert("file".to_owned(), name.clone().into());
            file.insert("worst".to_owned(), worst.into());
        }
        files.push(file);
    }
    let read = &report.read;
    json!({
        "lines": read.lines,
        "unreadable": read.unreadable,
        "first_unreadable": read.first_unreadable,
        "before_any_rule": read.before_rules,
        "late": read.late,
        "spread_within_the_second": read.spread,
        "requests": report.requests,
        "first": report.span.map(|(first, _)| first.0),
        "last": report.span.map(|(_, last)| last.0),
        "warnings": table::warnings(report, names),
        "files": files,
    })
}

fn attribute(text: &str) -> Result<Attribute, String> {
    Attribute::parse(text).map_err(|wrong| match wrong {
        AttributeError::Unknown => "is not an attribute".to_owned(),
        AttributeError::WordsOfOther => "takes a claim: words(jwt:scope)".to_owned(),
        AttributeError::NameMissing => "needs a name after the colon".to_owned(),
        AttributeError::BadSegment => format!("must be path_segment:<n>, with n from 1 to {MAX_PATH_SEGMENT}"),
        AttributeError::BadHeaderName => "is not a header name".to_owned(),
        AttributeError::BadPointer(invalid) => format!("is not a JSON pointer: {invalid}"),
    })
}

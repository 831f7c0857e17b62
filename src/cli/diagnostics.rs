//! Sets up the log: one line per record on standard error, as text or as JSON.

use std::io::Write;
use std::sync::Arc;

use arc_swap::ArcSwap;
use env_logger::fmt::Formatter;
use env_logger::{Logger, Target};
use log::kv::{Key, Value, VisitSource};
use log::{Level, LevelFilter, Metadata, Record};

use super::failure::{Failure, MultiLine};
use super::nonblocking_stderr::NonblockingStderr;
use base::printable::{Printable, write_json};
use base::rfc3339::format_seconds;
use base::time::{Clock, Timestamp};
use config::problem::Problems;
use config::{Log, LogFormat};

/// The current logger of the process. A reload may replace it.
#[derive(Clone)]
pub(super) struct Diagnostics {
    logger: Arc<ArcSwap<Logger>>,
    lines: NonblockingStderr,
}

impl Diagnostics {
    pub(super) fn change(&self, log: Log) {
        let logger = logger(log, &self.lines);
        log::set_max_level(logger.filter());
        self.logger.store(Arc::new(logger));
    }
}

impl log::Log for Diagnostics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.logger.load().enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        self.logger.load().log(record);
    }

    fn flush(&self) {
        self.lines.finish();
    }
}

/// Starts to log to standard error. A separate thread writes the lines.
///
/// # Errors
/// When the thread cannot be started, or the process has a logger already.
pub(super) fn start(log: Log) -> Result<Diagnostics, Failure> {
    #[expect(clippy::disallowed_methods, reason = "each record is escaped by the formats below")]
    let lines = NonblockingStderr::to(std::io::stderr())?;
    let logger = Arc::new(ArcSwap::from_pointee(logger(log, &lines)));
    let diagnostics = Diagnostics { logger, lines };
    log::set_boxed_logger(Box::new(diagnostics.clone()))?;
    diagnostics.change(log);
    Ok(diagnostics)
}

fn logger(log: Log, lines: &NonblockingStderr) -> Logger {
    let clock = Clock::system();
    let mut builder = env_logger::Builder::new();
    builder.filter_level(log.level).target(Target::Pipe(Box::new(lines.clone())));
    if log.level < LevelFilter::Debug {
        // At level info, Pingora logs each of its own steps.
        for module in ["pingora_core", "pingora"] {
            builder.filter_module(module, LevelFilter::Error.min(log.level));
        }
    }
    if log.level >= LevelFilter::Debug {
        // At debug level, these modules would log credentials.
        for module in ["pingora_core::protocols::http", "pingora_core::apps"] {
            builder.filter_module(module, LevelFilter::Info);
        }
    }
    builder.format(move |out, record| {
        let seconds = clock.now().0 / 1_000_000;
        match log.format {
            LogFormat::Text => text(out, record, seconds),
            LogFormat::Json => json(out, record, seconds),
        }
    });
    builder.build()
}

/// Writes a record in the form `2026-11-20T03:02:01Z WARN message key=value`.
fn text(out: &mut Formatter, record: &Record<'_>, seconds: u64) -> std::io::Result<()> {
    write!(out, "{} {} {}", rfc3339(seconds), record.level(), Printable(record.args()))?;
    let mut fields = Fields::default();
    let _ = record.key_values().visit(&mut fields);
    for (key, value) in fields.0 {
        match value {
            serde_json::Value::String(text) if text.contains([' ', '"']) => {
                write!(out, " {key}={}", Printable(format_args!("{text:?}")))?;
            }
            serde_json::Value::String(text) => write!(out, " {key}={}", Printable(text.escape_debug()))?,
            other => write!(out, " {key}={other}")?,
        }
    }
    writeln!(out)
}

/// Turns the error of a start into lines of the log in JSON: one for each problem.
pub(super) fn as_json_lines(failure: &Failure) -> Failure {
    let lines = match (failure.downcast_ref::<Problems>(), failure.downcast_ref::<MultiLine>()) {
        (Some(problems), _) => problems.report().split_last().map(|(_, lines)| lines.to_vec()).unwrap_or_default(),
        (_, Some(MultiLine(lines))) => lines.clone(),
        (None, None) => vec![failure.to_string()],
    };
    let seconds = Clock::system().now().0 / 1_000_000;
    let mut records: Vec<serde_json::Map<String, serde_json::Value>> = Vec::new();
    for line in lines {
        match (records.last_mut(), line.strip_prefix("  hint: ")) {
            (Some(record), Some(hint)) => _ = record.insert("hint".to_owned(), hint.into()),
            _ => {
                let mut record = json_record(seconds, Level::Error, "not started");
                record.insert("error".to_owned(), line.into());
                records.push(record);
            }
        }
    }
    let written = |record| {
        let mut text = Vec::new();
        write_json(&mut text, record).map(|()| String::from_utf8_lossy(&text).into_owned())
    };
    match records.iter().map(written).collect::<Result<_, _>>() {
        Ok(lines) => MultiLine(lines).into(),
        Err(error) => error.into(),
    }
}

fn json_record(seconds: u64, level: Level, message: &str) -> serde_json::Map<String, serde_json::Value> {
    let mut line = serde_json::Map::new();
    line.insert("time".to_owned(), rfc3339(seconds).into());
    line.insert("level".to_owned(), level.as_str().to_lowercase().into());
    line.insert("message".to_owned(), message.into());
    line
}

fn json(out: &mut Formatter, record: &Record<'_>, seconds: u64) -> std::io::Result<()> {
    let mut line = json_record(seconds, record.level(), &record.args().to_string());
    let mut fields = Fields::default();
    let _ = record.key_values().visit(&mut fields);
    line.extend(fields.0);
    let mut text = Vec::new();
    write_json(&mut text, &line)?;
    text.push(b'\n');
    out.write_all(&text)
}

#[derive(Default)]
struct Fields(Vec<(String, serde_json::Value)>);

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), log::kv::Error> {
        let json = match (value.to_u64(), value.to_bool()) {
            (Some(number), _) => number.into(),
            (_, Some(boolean)) => boolean.into(),
            _ => value.to_string().into(),
        };
        self.0.push((key.to_string(), json));
        Ok(())
    }
}

/// Formats seconds since the epoch as a date and time in UTC.
fn rfc3339(seconds: u64) -> String {
    format_seconds(Timestamp(seconds.saturating_mul(1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_a_date() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(1_795_219_199), "2026-11-20T23:59:59Z");
    }
}

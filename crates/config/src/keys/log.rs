//! Reads `log`: which diagnostics go to standard error, and in which format.

use ::log::LevelFilter;

use crate::language::key::{Key, Mapping, Type, names, unconstrained};
use crate::language::reader::Field;

/// The settings of the log that the gateway writes to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    pub level: LevelFilter,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

const LEVELS: [(&str, LevelFilter); 5] = [
    ("error", LevelFilter::Error),
    ("warn", LevelFilter::Warn),
    ("info", LevelFilter::Info),
    ("debug", LevelFilter::Debug),
    ("trace", LevelFilter::Trace),
];
const FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

pub(crate) static LOG: Mapping = Mapping {
    heading: Some("key in `log`"),
    definition: None,
    keys: &[
        Key::default("level", Type::Choice(&names(&LEVELS)), "info", "The least important level that is logged."),
        Key::default("format", Type::Choice(&names(&FORMATS)), "text", "The format."),
    ],
    constraints: unconstrained,
};

pub(crate) fn log(field: Field<'_>) -> Option<Log> {
    let section = field.section(&LOG)?;
    let (level, format) = (section.choice("level", &LEVELS), section.choice("format", &FORMATS));
    section.close();
    Some(Log { level: level?, format: format? })
}

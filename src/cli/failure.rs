//! Defines the errors of commands. Their exit codes are in `exit_code`.

use std::fmt::{self, Display};

/// The error of a command. It is printed as one line, except for `Problems` and [`MultiLine`].
pub(super) type Failure = Box<dyn std::error::Error>;

/// An error that is printed as several lines.
#[derive(Debug)]
pub(super) struct MultiLine(pub Vec<String>);

impl Display for MultiLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for MultiLine {}

/// Makes an error about arguments that clap itself does not detect, with exit code 2.
pub(super) fn wrong_usage(what: impl Display) -> Failure {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{what}\n")).into()
}

/// Makes an error with a hint, which is printed on its own line.
pub(super) fn with_hint(what: impl Into<String>, hint: impl Display) -> Failure {
    MultiLine(vec![what.into(), format!("  hint: {hint}")]).into()
}

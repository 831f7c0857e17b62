//! The exit codes: 0 success, 1 a problem in the input or the result, 2 invalid usage.
//!
//! The exit code of `run` is 0 after a drain, and 1 if a needed task has panicked.

use std::process::ExitCode;

use clap::Error;

use super::check::Verdict;
use super::failure::Failure;
use super::{output, usage};

/// The section about exit codes in `--help`.
pub(super) const HELP: &str = "Exit codes: 0 success, 1 a problem in the input or the result, 2 invalid usage.";

const PROBLEM: u8 = 1;
const INVALID_USAGE: u8 = 2;

/// Returns the exit code for the result of a command. Prints its error.
pub(super) fn report(result: Result<Verdict, Failure>) -> ExitCode {
    match result {
        Ok(Verdict::Pass) => ExitCode::SUCCESS,
        Ok(Verdict::Fail) => PROBLEM.into(),
        Err(failure) => match failure.downcast::<Error>() {
            Ok(error) => report_usage(*error),
            Err(failure) => {
                output::print_failure(&failure);
                PROBLEM.into()
            }
        },
    }
}

/// Prints clap's error or help, and returns the exit code.
pub(super) fn report_usage(error: Error) -> ExitCode {
    let is_error = error.use_stderr();
    usage::print(error);
    if is_error { INVALID_USAGE.into() } else { ExitCode::SUCCESS }
}

//! Writes long texts to standard output.

use std::io::{self, Write};

use super::failure::Failure;

/// Prints what is longer than a screen. Who reads it may stop early, as `head` does: that is no problem.
pub fn print_long(text: &[u8]) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("standard output: {error}").into()),
        _ => Ok(()),
    }
}

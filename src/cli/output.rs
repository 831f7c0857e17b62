//! Writes long texts to standard output.

use std::io::{self, Write};

use super::failure::Failure;

/// Prints a text that may be longer than a screen. A reader that stops early, as `head` does, is not an error.
///
/// # Errors
///
/// When standard output cannot be written for another reason.
pub fn print_long(text: &[u8]) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("standard output: {error}").into()),
        _ => Ok(()),
    }
}

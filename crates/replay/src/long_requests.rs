//! Finds the lines about requests that took longer than [`TOLERANCE`].

use std::io;

use memchr::memmem;

use super::entry::{Entry, Format, ReadResult};
use super::line_reader::{Line, Lines};
use super::merge::TOLERANCE;

/// Reads a log to its end. Returns at most `most` requests that took longer than [`TOLERANCE`], in the order of the
/// log. Each has the number of its line.
///
/// # Errors
/// When the log cannot be read.
pub(super) fn long_requests(lines: &mut Lines, format: &Format, most: usize) -> io::Result<Vec<(u64, Entry)>> {
    let mut found = Vec::new();
    while found.len() < most
        && let Some(line) = lines.read()?
    {
        let entry = match line {
            Line::Text(text) if may_be_long(text) => format.read(text),
            Line::Text(_) | Line::TooLong => continue,
        };
        match entry {
            ReadResult::Entry(entry) if is_long(&entry) => found.push((lines.number, entry)),
            ReadResult::Entry(_) | ReadResult::BeforeRules | ReadResult::Unreadable(_) => {}
        }
    }
    Ok(found)
}

fn is_long(entry: &Entry) -> bool {
    entry.end.is_some_and(|end| entry.at.plus(TOLERANCE) < end)
}

/// Whether the line may be about a long request. All other lines are not parsed.
fn may_be_long(line: &[u8]) -> bool {
    const NAME: &[u8] = b"\"duration_us\":";
    // TOLERANCE has this number of digits.
    const DIGITS: usize = 8;
    let value = memmem::find(line, NAME).and_then(|start| line.get(start + NAME.len()..));
    value
        .is_some_and(|value| value.trim_ascii_start().iter().take_while(|byte| byte.is_ascii_digit()).count() >= DIGITS)
}

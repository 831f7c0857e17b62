//! Writes to standard output and standard error, and escapes every text.

#![expect(clippy::disallowed_methods, reason = "the file that writes to the standard streams")]

use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::failure::{Failure, MultiLine};
use base::printable::{Printable, printable_json, write_json};
use config::problem::Problems;
use stores::{Event, EventSink, NoticeLevel};

/// The colour of a line on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    Red,
    Yellow,
    Green,
}

/// Whether printed lines have colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColourMode {
    Plain,
    Coloured,
}

impl ColourMode {
    /// Returns whether lines on standard output have colours.
    pub(super) fn of_output() -> ColourMode {
        ColourMode::of(io::stdout().is_terminal())
    }

    /// Returns whether lines on standard error have colours.
    pub(super) fn of_errors() -> ColourMode {
        ColourMode::of(io::stderr().is_terminal())
    }

    /// A terminal has colours, if `NO_COLOR` (<https://no-color.org>) is not set and `TERM` is not `dumb`.
    fn of(is_terminal: bool) -> ColourMode {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if is_terminal && !is_set("NO_COLOR") && !is_dumb { ColourMode::Coloured } else { ColourMode::Plain }
    }
}

impl Colour {
    /// Returns the escape sequence that begins the colour (ECMA-48, SGR).
    fn begin(self) -> &'static str {
        match self {
            Colour::Red => "\x1b[31m",
            Colour::Yellow => "\x1b[33m",
            Colour::Green => "\x1b[32m",
        }
    }
}

const END: &str = "\x1b[0m";

/// Lines to print. Characters that a terminal would interpret are escaped.
#[derive(Debug, Default)]
pub(super) struct Page(String);

impl Page {
    pub(super) fn line(&mut self, line: impl Display) {
        let _ = writeln!(self.0, "{}", Printable(line));
    }

    pub(super) fn lines<L: Display>(&mut self, lines: impl IntoIterator<Item = L>) {
        lines.into_iter().for_each(|line| self.line(line));
    }

    /// Adds a line, in this colour if `painting` has colours.
    pub(super) fn painted_line(&mut self, line: impl Display, colour: Colour, painting: ColourMode) {
        match painting {
            ColourMode::Plain => self.line(line),
            ColourMode::Coloured => {
                let _ = writeln!(self.0, "{}{}{END}", colour.begin(), Printable(line));
            }
        }
    }

    /// Adds the lines of a report. Hints, which begin with a space, get no colour.
    pub(super) fn report(&mut self, report: Vec<String>, colour: Colour, painting: ColourMode) {
        for line in report {
            match line.starts_with(' ') {
                true => self.line(line),
                false => self.painted_line(line, colour, painting),
            }
        }
    }

    /// Adds a JSON document on one line.
    ///
    /// # Errors
    ///
    /// When the value cannot be written as JSON.
    pub(super) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let mut json = Vec::new();
        write_json(&mut json, value)?;
        self.0 += &String::from_utf8(json)?;
        self.0.push('\n');
        Ok(())
    }

    /// Adds a JSON document on many lines.
    ///
    /// # Errors
    ///
    /// When the value cannot be written as JSON.
    pub(super) fn pretty_json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.written_json(&serde_json::to_string_pretty(value)?);
        Ok(())
    }

    /// Adds a text that is already a JSON document.
    pub(super) fn written_json(&mut self, json: &str) {
        self.0 += &printable_json(json);
        self.0.push('\n');
    }
}

/// Prints lines to standard output.
///
/// # Errors
///
/// When standard output cannot be written. A reader that stops early, as `head` does, is not an error.
pub(super) fn print(page: &Page) -> Result<(), Failure> {
    print_own(page.0.as_bytes())
}

/// Prints one line to standard output.
///
/// # Errors
///
/// As for [`print()`].
pub(super) fn print_line(line: impl Display) -> Result<(), Failure> {
    let mut page = Page::default();
    page.line(line);
    print(&page)
}

/// Prints a text of this program, which needs no escape.
///
/// # Errors
///
/// As for [`print()`].
pub(super) fn print_own(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("standard output: {error}").into()),
        _ => Ok(()),
    }
}

/// Prints lines to standard error.
pub(super) fn print_errors(page: &Page) {
    let _ = io::stderr().write_all(page.0.as_bytes());
}

/// Prints the error of a command to standard error.
pub(super) fn print_failure(failure: &Failure) {
    let mut page = Page::default();
    match (failure.downcast_ref::<Problems>(), failure.downcast_ref::<MultiLine>()) {
        (Some(problems), _) => page.report(problems.report(), Colour::Red, ColourMode::of_errors()),
        (_, Some(MultiLine(lines))) => page.lines(lines),
        (None, None) => page.line(failure),
    }
    print_errors(&page);
}

/// Returns a sink that prints the notices of a server to standard error, with the name of the server.
pub(super) fn server_notices(server: &impl Display) -> EventSink {
    let server = server.to_string();
    EventSink::new(move |event| {
        let Event::ServerNotice(notice) = event else { return };
        let line = format!("{server}: {}: {}", notice.level_name(), notice.text);
        let mut page = Page::default();
        match notice.level {
            NoticeLevel::Warning => page.painted_line(line, Colour::Yellow, ColourMode::of_errors()),
            NoticeLevel::Notice | NoticeLevel::Debug => page.line(line),
        }
        print_errors(&page);
    })
}

/// Whether standard error is a terminal. Progress is shown only on a terminal.
pub(super) fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Prints the text to standard error in place of the current line of progress.
pub(super) fn print_progress(text: impl Display) {
    let _ = write!(io::stderr(), "\r{}", Printable(text));
}

/// Ends the line of progress, so that further text begins on a new line.
pub(super) fn end_progress() {
    let _ = writeln!(io::stderr());
}

/// Moves the cursor to the beginning of the line of progress.
pub(super) fn restart_progress() {
    let _ = write!(io::stderr(), "\r");
}

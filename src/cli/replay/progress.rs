//! Shows the progress of a replay on a terminal.

use super::share::grouped;
use crate::cli::output;
use base::time::{Clock, Micros, Timestamp};
use replay::merge::ReadCounts;
use replay::svg::moment;

const INTERVAL: Micros = Micros(200_000);

/// Shows the progress of a replay in one line of the terminal.
#[derive(Debug)]
pub(super) struct Progress<'c> {
    clock: &'c Clock,
    /// The time of the start or of the last update. `None` if standard error is not a terminal.
    last: Option<Timestamp>,
    shown: usize,
}

impl<'c> Progress<'c> {
    pub(super) fn new(clock: &'c Clock) -> Progress<'c> {
        Progress { clock, last: output::is_watched().then(|| clock.now()), shown: 0 }
    }

    pub(super) fn show(&mut self, read: &ReadCounts, at: Timestamp) {
        let now = self.clock.now();
        if self.last.is_none_or(|last| now.since(last) < INTERVAL) {
            return;
        }
        self.last = Some(now);
        let text = format!("{} lines, {}", grouped(read.lines), moment(at.0 / 1_000_000));
        // Spaces overwrite the rest of a longer text.
        output::print_progress(format_args!("{text:<width$}", width = self.shown));
        self.shown = text.len();
    }

    pub(super) fn clear(&mut self) {
        if self.shown > 0 {
            output::print_progress(format_args!("{:width$}", "", width = self.shown));
            output::restart_progress();
        }
    }
}

//! Reads an answer from the pieces of its body. Reports its usage, its model and the length of its text at any time.

use crate::event_stream::{Event, EventStream};
use crate::formats::{Format, Reading, Table};
use crate::json::{JsonScanner, PointerSet};
use crate::usage::{Counts, Usage};

/// The reader of one answer, whole or streamed.
///
/// It does not keep the body. Of a stream, it keeps at most one event, of at most [`EventStream::MAX_EVENT`] bytes.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    format: Format,
    body: Body,
    scanner: JsonScanner<&'static PointerSet>,
    sum: Sum,
}

#[derive(Clone, Debug)]
enum Body {
    /// The body is one JSON value.
    Whole,
    Events(EventStream),
}

/// The sum of the events of a stream so far.
#[derive(Clone, Debug, Default)]
struct Sum {
    counts: Counts,
    model: Option<String>,
    text_bytes: u64,
    text_bytes_after: u64,
}

/// The contents of an answer that matter for its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The last usage in the answer. `None` if the answer has no usage, or if the usage can be read in two ways.
    pub usage: Option<Usage>,
    /// The model, if the answer names it.
    pub model: Option<String>,
    /// The number of bytes of text that the model wrote, decoded, in UTF-8: content, reasoning, names and arguments of
    /// tools.
    pub text_bytes: u64,
    /// The number of bytes of text after the last usage. Without a usage, the number of bytes of all text.
    pub text_bytes_after_usage: u64,
    /// The number of events that were too long, and were skipped.
    pub skipped_events: u64,
}

impl AnswerReader {
    /// The usual limit of an answer that is one JSON value: 32 MiB.
    pub const MAX_WHOLE: u64 = 32 << 20;

    /// Makes a reader for an answer with this `Content-Type`. Anything but an event stream is read as JSON, of at most
    /// `max_whole` bytes.
    pub fn new(format: Format, content_type: &[u8], max_whole: u64) -> AnswerReader {
        let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let (body, table, max_bytes) = if essence.eq_ignore_ascii_case(b"text/event-stream") {
            (Body::Events(EventStream::new(EventStream::MAX_EVENT)), format.event(), u64::MAX)
        } else {
            (Body::Whole, format.whole(), max_whole)
        };
        AnswerReader { format, body, scanner: JsonScanner::new(&table.pointers, max_bytes), sum: Sum::default() }
    }

    /// Reads the next piece of the body.
    pub fn push(&mut self, piece: &[u8]) {
        let AnswerReader { format, body, scanner, sum } = self;
        match body {
            Body::Whole => scanner.push(piece),
            Body::Events(stream) => stream.push(piece, &mut |event| sum.add(*format, &event, scanner)),
        }
    }

    /// Ends the body, even if the body is incomplete.
    pub fn finish(mut self) -> Report {
        let AnswerReader { format, body, scanner, sum } = &mut self;
        match body {
            Body::Whole => _ = scanner.finish(),
            Body::Events(stream) => stream.finish(&mut |event| sum.add(*format, &event, scanner)),
        }
        self.report()
    }

    /// Reports what was read so far, without the event that has not ended.
    pub fn report(&self) -> Report {
        let report = match &self.body {
            Body::Whole => {
                let reading = self.format.whole().read(&self.scanner);
                Report {
                    usage: reading.counts.as_ref().and_then(|counts| self.format.usage(counts)),
                    model: reading.model.map(str::to_owned),
                    text_bytes: reading.text_bytes,
                    text_bytes_after_usage: reading.text_bytes_after,
                    skipped_events: 0,
                }
            }
            Body::Events(stream) => Report {
                usage: self.format.usage(&self.sum.counts),
                model: self.sum.model.clone(),
                text_bytes: self.sum.text_bytes,
                text_bytes_after_usage: self.sum.text_bytes_after,
                skipped_events: stream.skipped(),
            },
        };
        // Without the tokens of the input, there is no usage. All text then counts as text after the usage.
        match report.usage {
            Some(_) => report,
            None => Report { text_bytes_after_usage: report.text_bytes, ..report },
        }
    }
}

impl Sum {
    fn add(&mut self, format: Format, event: &Event<'_>, scanner: &mut JsonScanner<&'static PointerSet>) {
        scanner.reset();
        scanner.push(event.data);
        let table: &Table = format.event();
        let Reading { counts, model, event_type, text_bytes, .. } = table.read(scanner);
        if format.has_text(event_type) {
            self.text_bytes = self.text_bytes.saturating_add(text_bytes);
            self.text_bytes_after = self.text_bytes_after.saturating_add(text_bytes);
        }
        if let Some(counts) = counts {
            format.update(&mut self.counts, &counts);
            self.text_bytes_after = 0;
        }
        if let Some(model) = model
            && self.model.as_deref() != Some(model)
        {
            self.model = Some(model.to_owned());
        }
    }
}

impl Report {
    /// Estimates the usage of an answer that may have been cut: the last usage that it names, and one token of output for each
    /// `bytes_per_token` bytes of text after that usage. If the answer names no usage, or only a usage of 0, the prompt counts
    /// as `prompt_estimate` tokens.
    pub fn estimate(&self, prompt_estimate: u64, bytes_per_token: u64) -> Usage {
        let told = self.usage.filter(|usage| *usage != Usage::default());
        let usage = told.unwrap_or(Usage { input: prompt_estimate, ..Usage::default() });
        let after = self.text_bytes_after_usage.div_ceil(bytes_per_token.max(1));
        Usage { output: usage.output.saturating_add(after), ..usage }
    }
}

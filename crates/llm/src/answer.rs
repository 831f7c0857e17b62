//! Reads an answer from the pieces of its body. Reports its usage, its model and the length of its text at any time.

use crate::event_stream::{Event, EventStream};
use crate::formats::{Format, Reading, Table};
use crate::json::{JsonError, JsonScanner, PointerSet};
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
    Whole {
        /// The number of bytes of the body.
        bytes: u64,
        is_readable: bool,
    },
    Events(EventStream),
}

/// The sum of the events of a stream so far.
#[derive(Clone, Debug, Default)]
struct Sum {
    counts: Counts,
    model: Option<String>,
    text_bytes: u64,
    text_bytes_after: u64,
    unread_bytes: u64,
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
    /// The number of bytes after the last usage in events that are too long or not JSON. For a whole answer without
    /// usage that is too long or not JSON, the number of its bytes. Text that was read is left out.
    pub unread_bytes: u64,
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
            (Body::Whole { bytes: 0, is_readable: true }, format.whole(), max_whole)
        };
        AnswerReader { format, body, scanner: JsonScanner::new(&table.pointers, max_bytes), sum: Sum::default() }
    }

    /// Reads the next piece of the body.
    pub fn push(&mut self, piece: &[u8]) {
        let AnswerReader { format, body, scanner, sum } = self;
        match body {
            Body::Whole { bytes, .. } => {
                *bytes = bytes.saturating_add(piece.len() as u64);
                scanner.push(piece);
            }
            Body::Events(stream) => stream.push(piece, &mut |event| sum.add(*format, &event, IsCut::No, scanner)),
        }
    }

    /// Ends the body, even if the body is incomplete.
    pub fn finish(mut self) -> Report {
        let AnswerReader { format, body, scanner, sum } = &mut self;
        match body {
            Body::Whole { is_readable, .. } => {
                // A body that was cut is readable as far as it came.
                *is_readable = matches!(scanner.finish(), Ok(()) | Err(JsonError::Incomplete));
            }
            Body::Events(stream) => stream.finish(&mut |event| sum.add(*format, &event, IsCut::Perhaps, scanner)),
        }
        self.report()
    }

    /// Reports what was read so far, without the event that has not ended.
    pub fn report(&self) -> Report {
        let report = match &self.body {
            Body::Whole { bytes, is_readable } => {
                let reading = self.format.whole().read(&self.scanner);
                let usage = reading.counts.as_ref().and_then(|counts| self.format.usage(counts));
                let is_unread = usage.is_none() && !is_readable;
                Report {
                    usage,
                    model: reading.model.map(str::to_owned),
                    text_bytes: reading.text_bytes,
                    text_bytes_after_usage: reading.text_bytes_after,
                    unread_bytes: if is_unread { bytes.saturating_sub(reading.text_bytes) } else { 0 },
                    skipped_events: 0,
                }
            }
            Body::Events(stream) => Report {
                usage: self.format.usage(&self.sum.counts),
                model: self.sum.model.clone(),
                text_bytes: self.sum.text_bytes,
                text_bytes_after_usage: self.sum.text_bytes_after,
                unread_bytes: self.sum.unread_bytes.saturating_add(stream.skipped_bytes()),
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

/// Whether the end of an event may be missing, because the stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IsCut {
    No,
    Perhaps,
}

impl Sum {
    fn add(&mut self, format: Format, event: &Event<'_>, cut: IsCut, scanner: &mut JsonScanner<&'static PointerSet>) {
        scanner.reset();
        scanner.push(event.data);
        let is_readable = match scanner.finish() {
            Ok(()) => true,
            Err(JsonError::Incomplete) => cut == IsCut::Perhaps,
            // The event that ends a stream of OpenAI.
            Err(_) => event.data == b"[DONE]",
        };
        let table: &Table = format.event();
        let Reading { counts, model, event_type, text_bytes, .. } = table.read(scanner);
        if format.has_text(event_type) {
            self.text_bytes = self.text_bytes.saturating_add(text_bytes);
            self.text_bytes_after = self.text_bytes_after.saturating_add(text_bytes);
        }
        let unread = if is_readable { 0 } else { (event.data.len() as u64).saturating_sub(text_bytes) };
        self.unread_bytes = self.unread_bytes.saturating_add(event.skipped_bytes).saturating_add(unread);
        if let Some(counts) = counts {
            format.update(&mut self.counts, &counts);
            (self.text_bytes_after, self.unread_bytes) = (0, 0);
        }
        if let Some(model) = model
            && self.model.as_deref() != Some(model)
        {
            self.model = Some(model.to_owned());
        }
    }
}

impl Report {
    /// Estimates the usage of an answer that may have been cut. It is the last usage in the answer, plus one token of
    /// output for each `bytes_per_token` later bytes that are text or could not be read. Without a usage, or with a
    /// usage of 0, the prompt counts as `prompt_estimate` tokens.
    pub fn estimate(&self, prompt_estimate: u64, bytes_per_token: u64) -> Usage {
        let told = self.usage.filter(|usage| *usage != Usage::default());
        let usage = told.unwrap_or(Usage { input: prompt_estimate, ..Usage::default() });
        // A usage of 0 has counted no text.
        let text_bytes = if told.is_some() { self.text_bytes_after_usage } else { self.text_bytes };
        let bytes = text_bytes.saturating_add(self.unread_bytes);
        let after = bytes.div_ceil(bytes_per_token.max(1));
        Usage { output: usage.output.saturating_add(after), ..usage }
    }
}

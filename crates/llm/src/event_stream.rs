//! Reads a stream of server-sent events from the pieces of a body.
//!
//! The source is the HTML standard, section 9.2.6 (`text/event-stream`). The standard drops a last event without a
//! blank line, but [`EventStream::finish`] returns it, because its tokens have been spent.

use std::ops::Range;

use memchr::memchr2;

/// An event: its name, its data, and its place in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'e> {
    /// The name of the event. Empty if the event has no name.
    pub name: &'e [u8],
    /// The lines of data, joined by line feeds.
    pub data: &'e [u8],
    /// The place of the event in the stream, in bytes, from its first line to the end of its blank line.
    pub range: Range<u64>,
    /// The number of bytes of the events that were skipped as too long since the previous event.
    pub skipped_bytes: u64,
}

/// Takes the events out of a stream whose bytes come in pieces.
///
/// It holds one event, of at most `max_event` bytes of name and data. A longer event is skipped and counted.
///
/// ```
/// use llm::event_stream::EventStream;
///
/// let (mut stream, mut data) = (EventStream::new(EventStream::MAX_EVENT), Vec::new());
/// for piece in ["event: greeting\nda", "ta: hel", "lo\n", "\n: a comment\n\n"] {
///     stream.push(piece.as_bytes(), &mut |event| data.push((event.data.to_vec(), event.range)));
/// }
/// assert_eq!(data, [(b"hello".to_vec(), 0..29)]);
/// ```
#[derive(Clone, Debug)]
pub struct EventStream {
    max_event: usize,
    line: Line,
    last_return: LastReturn,
    name: Vec<u8>,
    /// The lines of data. Each ends with a line feed, except the line that is being read.
    data: Vec<u8>,
    /// The offset of the first line of the event.
    start: u64,
    is_too_long: bool,
    /// The number of bytes that were read.
    offset: u64,
    skipped: u64,
    /// The number of bytes of the events that were skipped since the last event.
    skipped_bytes: u64,
}

/// How much of a line was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// At the start of the stream, after this many bytes of a byte order mark.
    Mark(usize),
    Start,
    /// In a name that begins like the name of this field. These are the missing bytes of the field's name.
    Name(Field, &'static [u8]),
    /// After the colon. One space after it is not part of the value.
    Colon(Field),
    Value(Field),
    /// A comment, or a field that is not read: `id`, `retry` and unknown ones.
    Ignored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Data,
    Event,
}

/// Whether the last byte was a carriage return that ended a line. A line feed after it belongs to the same line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastReturn {
    No,
    OfLine,
    /// The carriage return ended the blank line after an event. The next byte tells where the event ends.
    OfBlankLine,
}

const MARK: &[u8] = b"\xef\xbb\xbf";

impl EventStream {
    /// The usual limit of an event: 1 MiB.
    pub const MAX_EVENT: usize = 1 << 20;
    /// The memory in bytes that is kept for the next event.
    const KEPT: usize = 16 << 10;

    /// Makes a reader of events of at most `max_event` bytes.
    pub fn new(max_event: usize) -> EventStream {
        EventStream {
            max_event,
            line: Line::Mark(0),
            last_return: LastReturn::No,
            name: Vec::new(),
            data: Vec::new(),
            start: 0,
            is_too_long: false,
            offset: 0,
            skipped: 0,
            skipped_bytes: 0,
        }
    }

    /// The number of events that were too long.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The number of bytes of the events that were skipped since the last event.
    pub fn skipped_bytes(&self) -> u64 {
        self.skipped_bytes
    }

    /// The memory in bytes of the event that has not ended yet, a little more than `max_event` at most.
    pub fn held(&self) -> usize {
        self.name.capacity() + self.data.capacity()
    }

    /// Reads the next piece, and calls `on_event` with each event that ends in it.
    pub fn push(&mut self, piece: &[u8], on_event: &mut impl FnMut(Event<'_>)) {
        let mut rest = piece;
        while let Some((&byte, after)) = rest.split_first() {
            let last_return = std::mem::replace(&mut self.last_return, LastReturn::No);
            let is_pair = last_return != LastReturn::No && byte == b'\n';
            if is_pair {
                self.offset += 1;
                rest = after;
            }
            if last_return == LastReturn::OfBlankLine {
                self.dispatch(on_event);
            }
            if is_pair {
                continue;
            }
            if let Line::Value(field) = self.line {
                let length = memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
                let (value, line_end) = rest.split_at_checked(length).unwrap_or((rest, &[]));
                if length > 0 {
                    self.append(field, value);
                    self.offset += length as u64;
                    rest = line_end;
                    continue;
                }
            }
            rest = after;
            self.offset += 1;
            match byte {
                b'\r' if self.end_line() => self.last_return = LastReturn::OfBlankLine,
                b'\r' => self.last_return = LastReturn::OfLine,
                b'\n' if self.end_line() => self.dispatch(on_event),
                b'\n' => {}
                _ => self.next_in_line(byte),
            }
        }
    }

    /// Ends the stream. Passes an event that lacks its blank line to `on_event`.
    pub fn finish(&mut self, on_event: &mut impl FnMut(Event<'_>)) {
        self.end_line();
        self.last_return = LastReturn::No;
        self.dispatch(on_event);
    }

    /// Reads a byte before the value of a field.
    fn next_in_line(&mut self, byte: u8) {
        self.line = match (self.line, byte) {
            (Line::Mark(read), _) if MARK.get(read) == Some(&byte) => {
                if read + 1 == MARK.len() {
                    Line::Start
                } else {
                    Line::Mark(read + 1)
                }
            }
            (Line::Mark(0) | Line::Start, b'd') => Line::Name(Field::Data, b"ata"),
            (Line::Mark(0) | Line::Start, b'e') => Line::Name(Field::Event, b"vent"),
            (Line::Name(field, []), b':') => {
                self.begin_field(field);
                Line::Colon(field)
            }
            (Line::Name(field, [next, rest @ ..]), _) if *next == byte => Line::Name(field, rest),
            (Line::Colon(field), b' ') => Line::Value(field),
            (Line::Colon(field) | Line::Value(field), _) => {
                self.append(field, &[byte]);
                Line::Value(field)
            }
            _ => Line::Ignored,
        };
    }

    /// Ends a line. Returns whether it was blank.
    fn end_line(&mut self) -> bool {
        let line = std::mem::replace(&mut self.line, Line::Start);
        match line {
            Line::Mark(0) | Line::Start => return true,
            // A name without a colon is a field with an empty value.
            Line::Name(field, []) => {
                self.begin_field(field);
                self.end_field(field);
            }
            Line::Colon(field) | Line::Value(field) => self.end_field(field),
            Line::Mark(_) | Line::Name(..) | Line::Ignored => {}
        }
        false
    }

    fn begin_field(&mut self, field: Field) {
        // Of several `event` lines, the last counts. Lines of `data` are joined.
        if field == Field::Event {
            self.name.clear();
        }
    }

    fn end_field(&mut self, field: Field) {
        if field == Field::Data {
            self.append(field, b"\n");
        }
    }

    fn append(&mut self, field: Field, part: &[u8]) {
        let length = self.name.len().saturating_add(self.data.len()).saturating_add(part.len());
        if self.is_too_long || length > self.max_event {
            self.is_too_long = true;
            (self.name, self.data) = (Vec::new(), Vec::new());
            return;
        }
        let (to, other) = match field {
            Field::Data => (&mut self.data, &mut self.name),
            Field::Event => (&mut self.name, &mut self.data),
        };
        let needed = to.len() + part.len();
        if needed > to.capacity() {
            // The memory of both fields together must stay in the limit.
            if needed + other.capacity() > self.max_event {
                other.shrink_to_fit();
            }
            let bound = self.max_event.saturating_sub(other.capacity());
            let capacity = to.capacity().saturating_mul(2).max(64).min(bound).max(needed);
            to.reserve_exact(capacity - to.len());
        }
        to.extend_from_slice(part);
    }

    /// Ends the event at this place, and begins the next.
    fn dispatch(&mut self, on_event: &mut impl FnMut(Event<'_>)) {
        let range = self.start..self.offset;
        self.start = self.offset;
        if std::mem::take(&mut self.is_too_long) {
            self.skipped += 1;
            self.skipped_bytes += range.end - range.start;
        } else if let Some((_, data)) = self.data.split_last() {
            let skipped_bytes = std::mem::take(&mut self.skipped_bytes);
            on_event(Event { name: &self.name, data, range, skipped_bytes });
        }
        for buffer in [&mut self.name, &mut self.data] {
            buffer.clear();
            buffer.shrink_to(Self::KEPT);
        }
    }
}

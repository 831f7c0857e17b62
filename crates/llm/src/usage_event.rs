//! Takes the usage event out of a stream of OpenAI's chat completions, for a client that has not asked for this event.
//!
//! The gateway asks for the usage in the client's place. The `choices` of the usage event are empty, but such a client
//! may read the first choice of every event.

use std::sync::LazyLock;

use memchr::memmem;

use crate::json::{Interest, JsonScanner, Lookup, Pointer, PointerSet, Value};

/// Passes a stream on without its usage event.
///
/// An event is passed on when it is complete. An event longer than [`UsageEventFilter::MAX_EVENT`] is passed on in
/// pieces, as it arrives.
///
/// ```
/// use llm::usage_event::UsageEventFilter;
///
/// let (mut filter, mut out) = (UsageEventFilter::default(), Vec::new());
/// filter.push(b"data: {\"choices\":[{}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{}}\n\n", &mut out);
/// filter.push(b"data: [DONE]\n\n", &mut out);
/// filter.finish(&mut out);
/// assert_eq!(out, b"data: {\"choices\":[{}],\"usage\":null}\n\ndata: [DONE]\n\n");
/// ```
#[derive(Clone, Debug, Default)]
pub struct UsageEventFilter {
    /// The bytes of the event whose end has not come.
    event: Vec<u8>,
    /// Whether the event is too long to be held back, so that its bytes are passed on as they come.
    is_passed: bool,
    /// Whether the current line has a byte, so that it is not blank.
    has_line_begun: bool,
    last_return: LastReturn,
}

/// Whether the last byte was a carriage return that ended a line. A line feed after the carriage return belongs to the
/// same line end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastReturn {
    #[default]
    No,
    OfLine,
    /// The carriage return ended an event. A line feed after it is passed on only if the event was passed on.
    OfEvent {
        was_passed: bool,
    },
}

static POINTERS: LazyLock<PointerSet> = LazyLock::new(|| {
    PointerSet::new(
        ["/usage", "/choices", "/choices/0"].map(|pointer| (Pointer::with_wildcards(pointer), Interest::Value)),
    )
});

impl UsageEventFilter {
    /// The longest event that is held back until its end has come, in bytes.
    pub const MAX_EVENT: usize = 1 << 20;

    /// Reads the next bytes of the stream, and appends to `out` what is passed on.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for byte in piece {
            self.byte(*byte, out);
        }
    }

    /// Ends the stream. Appends to `out` the event whose end has not come.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.event);
    }

    fn byte(&mut self, byte: u8, out: &mut Vec<u8>) {
        let last_return = std::mem::take(&mut self.last_return);
        if byte == b'\n' {
            match last_return {
                LastReturn::OfEvent { was_passed: true } => return out.push(byte),
                LastReturn::OfEvent { was_passed: false } => return,
                LastReturn::OfLine => return self.keep(byte, out),
                LastReturn::No => {}
            }
        }
        self.keep(byte, out);
        if !matches!(byte, b'\n' | b'\r') {
            self.has_line_begun = true;
            return;
        }
        let is_return = byte == b'\r';
        if std::mem::take(&mut self.has_line_begun) {
            self.last_return = if is_return { LastReturn::OfLine } else { LastReturn::No };
            return;
        }
        // A blank line ends the event.
        let was_passed = std::mem::take(&mut self.is_passed) || !is_usage(&self.event);
        if was_passed {
            out.append(&mut self.event);
        }
        self.event.clear();
        if is_return {
            self.last_return = LastReturn::OfEvent { was_passed };
        }
    }

    fn keep(&mut self, byte: u8, out: &mut Vec<u8>) {
        if self.is_passed {
            out.push(byte);
            return;
        }
        self.event.push(byte);
        if self.event.len() > UsageEventFilter::MAX_EVENT {
            out.append(&mut self.event);
            self.is_passed = true;
        }
    }
}

/// Returns whether these lines are an event that has a usage and no choice.
fn is_usage(event: &[u8]) -> bool {
    if memmem::find(event, b"usage").is_none() {
        return false;
    }
    let mut scanner = JsonScanner::new(&*POINTERS, u64::MAX);
    // A byte order mark may stand before the first event.
    let event = event.strip_prefix(b"\xef\xbb\xbf").unwrap_or(event);
    for line in event.split(|byte| matches!(byte, b'\n' | b'\r')) {
        if let Some(data) = line.strip_prefix(b"data:") {
            scanner.push(data);
            scanner.push(b"\n");
        }
    }
    scanner.finish().is_ok()
        && scanner.value(0) == Lookup::Value(&Value::Object)
        && scanner.value(1) == Lookup::Value(&Value::Array)
        && scanner.value(2) == Lookup::Missing
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n";
    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    /// Returns what the filter passes on of a stream that comes in pieces of this size.
    fn passed(stream: &str, size: usize) -> String {
        let (mut filter, mut out) = (UsageEventFilter::default(), Vec::new());
        stream.as_bytes().chunks(size).for_each(|piece| filter.push(piece, &mut out));
        filter.finish(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[track_caller]
    fn check(stream: &str, expected: &str) {
        for end in ["\n", "\r\n", "\r"] {
            let [stream, expected] = [stream, expected].map(|text| text.replace('\n', end));
            for size in 1..=stream.len() {
                assert_eq!(passed(&stream, size), expected, "{end:?}, pieces of {size}");
            }
        }
    }

    #[test]
    fn only_the_usage_event_is_taken_out() {
        check(&[TEXT, TEXT, USAGE, DONE].concat(), &[TEXT, TEXT, DONE].concat());
        check(&[TEXT, ": a comment\n\n", USAGE].concat(), &[TEXT, ": a comment\n\n"].concat());
        let split = "event: x\ndata: {\"choices\":\ndata:[],\"usage\":{}}\nid: 1\n\n";
        check(&[split, DONE].concat(), DONE);
    }

    #[test]
    fn other_events_with_a_usage_are_passed_on() {
        for event in [
            "data: {\"choices\":[{}],\"usage\":{}}\n\n",
            "data: {\"choices\":[],\"usage\":null}\n\n",
            "data: {\"choices\":[],\"usages\":{}}\n\n",
            "data: {\"usage\":{}}\n\n",
            "data: {\"choices\":[],\"usage\":{}\n\n",
            "datum: {\"choices\":[],\"usage\":{}}\n\n",
        ] {
            check(&[event, DONE].concat(), &[event, DONE].concat());
        }
        // The stream was cut in its usage event. The incomplete event is passed on.
        let cut = USAGE.trim_end();
        assert_eq!(passed(cut, 7), cut);
    }

    #[test]
    fn an_event_is_passed_on_when_its_end_has_come() {
        let (mut filter, mut out) = (UsageEventFilter::default(), Vec::new());
        for (piece, expected) in [(TEXT, TEXT.len()), (": a\n\n", TEXT.len() + 5), ("data: {", TEXT.len() + 5)] {
            filter.push(piece.as_bytes(), &mut out);
            assert_eq!(out.len(), expected, "{piece}");
        }
    }

    #[test]
    fn a_long_event_is_not_held() {
        let long = format!("data: {{\"choices\":[],\"usage\":{{}},\"a\":\"{}", "x".repeat(UsageEventFilter::MAX_EVENT));
        let (mut filter, mut out) = (UsageEventFilter::default(), Vec::new());
        filter.push(long.as_bytes(), &mut out);
        assert_eq!((out.len(), filter.event.len()), (long.len(), 0));
        filter.push(["\"}\n\n", USAGE, DONE].concat().as_bytes(), &mut out);
        assert_eq!(out.len(), long.len() + 4 + DONE.len());
    }
}

//! A simple reader of event streams, to compare the real one with. The fuzz targets use it too.

use std::ops::Range;

use llm::event_stream::EventStream;

/// The names, the data and the places of events.
pub type Events = Vec<(String, String, Range<u64>)>;

/// Reads a stream in pieces, and returns its events and the number of events that were too long.
pub fn read<'p>(max_event: usize, pieces: impl IntoIterator<Item = &'p [u8]>) -> (Events, u64) {
    let mut stream = EventStream::new(max_event);
    let mut events = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for piece in pieces {
        stream.push(piece, &mut |event| events.push((text(event.name), text(event.data), event.range)));
        assert!(stream.held() <= max_event + 128, "{} bytes are held", stream.held());
    }
    stream.finish(&mut |event| events.push((text(event.name), text(event.data), event.range)));
    (events, stream.skipped())
}

/// Returns the events of a whole stream, in the simplest way.
pub fn simple(stream: &str) -> Events {
    let (mut events, mut start) = (Vec::new(), 0);
    let (mut name, mut data) = (String::new(), Vec::new());
    let mut rest = stream.strip_prefix('\u{feff}').unwrap_or(stream);
    loop {
        let end = rest.find(['\r', '\n']);
        let line = &rest[..end.unwrap_or(rest.len())];
        let behind = &rest[line.len()..];
        rest = behind.strip_prefix("\r\n").or_else(|| behind.get(1..)).unwrap_or_default();
        let offset = (stream.len() - rest.len()) as u64;
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        match field {
            "data" => data.push(value.strip_prefix(' ').unwrap_or(value).to_owned()),
            "event" => name = value.strip_prefix(' ').unwrap_or(value).to_owned(),
            _ => {}
        }
        if line.is_empty() || end.is_none() {
            if !data.is_empty() {
                events.push((name.clone(), data.join("\n"), start..offset));
            }
            (name, data, start) = (String::new(), Vec::new(), offset);
        }
        if end.is_none() {
            return events;
        }
    }
}

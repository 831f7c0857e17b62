//! Tests the bounds of the readers, and what they report of an answer beyond a bound.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use allocation_counter::measure;
use llm::answer::{AnswerReader, Report};
use llm::event_stream::EventStream;
use llm::formats::Format;
use llm::usage::Usage;

const STREAM: &[u8] = b"text/event-stream";
const JSON: &[u8] = b"application/json";

fn read(format: Format, content_type: &[u8], max_whole: u64, pieces: &[&[u8]]) -> Report {
    let mut reader = AnswerReader::new(format, content_type, max_whole);
    pieces.iter().for_each(|piece| reader.push(piece));
    reader.finish()
}

#[test]
fn an_event_that_is_too_long_is_counted_and_the_next_is_read() {
    let long = [b"data: {\"choices\":[{\"delta\":{\"content\":\"", &*vec![b'x'; EventStream::MAX_EVENT], b"\"}}]}\n\n"];
    let usage = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n";
    let report = read(Format::OpenAiChat, STREAM, 0, &[&long.concat(), usage]);
    assert_eq!(report.usage, Some(Usage { input: 3, output: 2, ..Usage::default() }));
    assert_eq!((report.text_bytes, report.skipped_events), (0, 1));
    let report = read(Format::OpenAiChat, STREAM, 0, &[usage, &long.concat()]);
    assert_eq!((report.usage.is_some(), report.skipped_events), (true, 1));
}

/// An estimate of an answer that cannot be read is made from all of its bytes.
#[test]
fn what_cannot_be_read_counts_by_its_bytes() {
    let chat = |content_type, pieces: &[&[u8]]| {
        let report = read(Format::OpenAiChat, content_type, 1000, pieces);
        (report.estimate(7, 4), report.unread_bytes)
    };
    let estimated = |input, output, unread| (Usage { input, output, ..Usage::default() }, unread);
    let text = br#"{"choices":[{"message":{"content":"12345678"}}]"#;
    assert_eq!(chat(JSON, &[b"no JSON at all, but many words"]), estimated(7, 8, 30));
    assert_eq!(chat(JSON, &[text, b"}]"]), estimated(7, 13, 41));
    assert_eq!(chat(JSON, &[text, b",\"a\":\"", &[b'x'; 2000], b"\"}"]), estimated(7, 514, 2047));
    // JSON that is only cut counts as readable.
    assert_eq!(chat(JSON, &[text]), estimated(7, 2, 0));
    let long = [b"data: {\"choices\":[{\"delta\":{\"content\":\"", &*vec![b'x'; EventStream::MAX_EVENT], b"\"}}]}\n\n"];
    let (long, event) = (long.concat(), b"data: {\"choices\":[{\"delta\":{\"content\":\"12345678\"}}]}\n\n");
    let bytes = long.len() as u64;
    assert_eq!(chat(STREAM, &[&long]), estimated(7, bytes.div_ceil(4), bytes));
    assert_eq!(
        chat(STREAM, &[event, &long, event, b"data: [DONE]\n\n"]),
        estimated(7, (bytes + 16).div_ceil(4), bytes)
    );
    assert_eq!(chat(STREAM, &[b"data: plain text\n\ndata: {\"a\"\n\n", event]), estimated(7, 6, 14));
    assert_eq!(chat(STREAM, &[event, b"data: {\"choices\":[{\"delta\":{\"content\":\"1234"]), estimated(7, 3, 0));
    // A later usage includes what could not be read.
    let usage = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n";
    assert_eq!(chat(STREAM, &[&long, b"data: text\n\n", usage, b"data: [DONE]\n\n"]), estimated(3, 2, 0));
    assert_eq!(chat(STREAM, &[usage, b"data: text\n\n", &long]), estimated(3, 2 + (bytes + 4).div_ceil(4), bytes + 4));
}

#[test]
fn a_whole_answer_is_read_up_to_its_bound() {
    let body = br#"{"content":[{"text":"0123456789"}],"usage":{"input_tokens":1,"output_tokens":2}}"#;
    let length = body.len() as u64;
    let at = |bound| read(Format::AnthropicMessages, JSON, bound, &[body]);
    assert_eq!(at(length).usage, Some(Usage { input: 1, output: 2, ..Usage::default() }));
    assert_eq!(at(length - 2).usage, None);
    assert_eq!((at(25).text_bytes, at(25).usage), (4, None));
}

#[test]
fn a_usage_that_can_be_read_in_two_ways_is_no_usage() {
    let tokens = r#""prompt_tokens":100,"completion_tokens":5"#;
    for usage in [
        format!(r#""usage":{{{tokens},"prompt_tokens":1}}"#),
        format!(r#""usage":{{{tokens},"prompt_token\u0073":1}}"#),
        format!(r#""usage":{{{tokens}}},"usage":{{"prompt_tokens":1,"completion_tokens":1}}"#),
        format!(r#""usage":{{{tokens}}},"\u0075sage":null"#),
        r#""usage":{"prompt_tokens":"100","completion_tokens":5}"#.to_owned(),
        r#""usage":{"prompt_tokens":-100,"completion_tokens":5}"#.to_owned(),
        r#""usage":{"prompt_tokens":[100],"completion_tokens":5}"#.to_owned(),
        r#""usage":{"completion_tokens":5}"#.to_owned(),
        r#""usage":{}"#.to_owned(),
        r#""usage":[]"#.to_owned(),
        r#""usage":null"#.to_owned(),
    ] {
        let body = format!(r#"{{"choices":[{{"message":{{"content":"abc"}}}}],{usage}}}"#);
        let report = read(Format::OpenAiChat, JSON, 1000, &[body.as_bytes()]);
        assert_eq!((report.usage, report.text_bytes_after_usage), (None, 3), "{body}");
        // In a stream, the numbers of the previous event stay.
        let first = format!("data: {{\"choices\":[],\"usage\":{{{tokens}}}}}\n\n");
        let event = format!("data: {{\"choices\":[],{usage}}}\n\n");
        let report = read(Format::OpenAiChat, STREAM, 0, &[first.as_bytes(), event.as_bytes()]);
        assert_eq!(report.usage, Some(Usage { input: 100, output: 5, ..Usage::default() }), "{event}");
    }
}

/// Measures the largest memory of a reader that reads `start`, and then `repeated` up to 2 MiB.
#[track_caller]
fn check_memory(content_type: &[u8], start: &str, repeated: &str, most: u64) {
    let piece = repeated.repeat((16 << 10) / repeated.len());
    // The first read makes the tables of pointers that all readers share. They must not be measured.
    for format in Format::ALL {
        read(format, content_type, 10, &[b"{}"]);
        let info = measure(|| {
            let mut reader = AnswerReader::new(format, content_type, AnswerReader::MAX_WHOLE);
            reader.push(start.as_bytes());
            for _ in 0..128 {
                reader.push(piece.as_bytes());
            }
            reader.finish();
        });
        assert!(info.bytes_max <= most, "{}, {start}{repeated}…: {} bytes", format.name(), info.bytes_max);
    }
}

#[test]
fn no_body_takes_more_memory_than_the_bound() {
    let small = 16 << 10;
    for (start, repeated) in [
        ("{\"", "x"),
        ("{\"usage\":{\"prompt_tokens\":", "1"),
        ("{\"model\":\"", "x"),
        ("{\"model\":\"", "\\u00e9"),
        ("", "["),
        ("", "{\"usage\":"),
        ("[", "{},"),
        ("{", "\"model\":\"abc\","),
        ("{\"choices\":[", "{\"message\":{\"content\":\"a\"}},"),
        ("", " "),
    ] {
        check_memory(JSON, start, repeated, small);
    }
    // While a buffer grows, the old buffer is in memory too, with half of the size.
    let event = EventStream::MAX_EVENT as u64 * 3 / 2 + small;
    for (start, repeated, most) in [
        ("", "data: x\n", event),
        ("data: ", "x", event),
        ("event: ", "x", event),
        ("data: {\"usage\":", "{\"usage\":", event),
        ("", ": comment\n", small),
        ("", "x", small),
        ("", "id: 1\n", small),
        ("", "data: {\"model\":\"m\"}\n\n", small),
        ("", "\r", small),
    ] {
        check_memory(STREAM, start, repeated, most);
    }
}

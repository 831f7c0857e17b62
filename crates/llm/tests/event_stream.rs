//! Compares the reader of event streams with a simple one, which splits the whole stream into lines.

#![allow(unreachable_pub, reason = "a program exports nothing: what its modules share is pub")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test fails by panicking"
)]

#[path = "simple/event_stream.rs"]
mod simple;

use std::ops::Range;

use llm::event_stream::EventStream;
use proptest::prelude::*;
use simple::{Events, read, simple};

#[track_caller]
fn check(stream: &str, expected: &[(&str, &str, Range<u64>)]) {
    let expected: Events =
        expected.iter().map(|(name, data, range)| ((*name).to_owned(), (*data).to_owned(), range.clone())).collect();
    assert_eq!(simple(stream), expected, "the simple reader");
    for size in 1..=stream.len() {
        assert_eq!(read(1000, stream.as_bytes().chunks(size)), (expected.clone(), 0), "in pieces of {size}");
    }
}

#[test]
fn events_are_read_over_any_borders() {
    check("data: a\n\n", &[("", "a", 0..9)]);
    check("data: a\r\n\r\n", &[("", "a", 0..11)]);
    check("data: a\r\rdata: b\r\r", &[("", "a", 0..9), ("", "b", 9..18)]);
    check("\u{feff}data: a\n\n", &[("", "a", 0..12)]);
    check("data\n\ndata\ndata\n\ndata:", &[("", "", 0..6), ("", "\n", 6..17), ("", "", 17..22)]);
    check("data:test\n\ndata:  test\n\n", &[("", "test", 0..11), ("", " test", 11..24)]);
    check("event: a\nevent: b\ndata: x\ndata: y\nid: 7\nretry: 1\n\n", &[("b", "x\ny", 0..50)]);
    check("event: lost\n\ndata: x\n\n", &[("", "x", 13..22)]);
    check(": ping\n\n: ping\ndata: x\n\n", &[("", "x", 8..24)]);
    check("dat: x\ndatas: x\n data: x\nDATA: x\nevents: x\ndata: y\n\n", &[("", "y", 0..52)]);
    check("\n\n\r\n\rdata: x\n\n", &[("", "x", 5..14)]);
    check("data: x\r\n\n\n", &[("", "x", 0..10)]);
    check("data: whole\n\ndata: cut", &[("", "whole", 0..13), ("", "cut", 13..22)]);
    check("data: x\n\r", &[("", "x", 0..9)]);
    check("", &[]);
}

#[test]
fn an_event_that_is_too_long_is_skipped_and_the_next_is_read() {
    let long = "x".repeat(40);
    for stream in [
        format!("data: a\n\nevent: e\ndata: {long}\n\ndata: b\n\n"),
        format!("data: a\n\ndata: {}\ndata: {}\n\ndata: b\n\n", &long[..20], &long[..20]),
        format!("data: a\n\nevent: {long}\ndata: 1\n\ndata: b\n\n"),
    ] {
        for size in 1..=stream.len() {
            let (events, skipped) = read(30, stream.as_bytes().chunks(size));
            let data: Vec<&str> = events.iter().map(|(_, data, _)| data.as_str()).collect();
            assert_eq!((data, skipped), (vec!["a", "b"], 1), "{stream} in pieces of {size}");
            assert_eq!(events[1].2, (stream.len() - 9) as u64..stream.len() as u64);
        }
    }
    // No comment is kept.
    let (events, skipped) = read(30, [format!(": {long}\n: {long}\ndata: a\n\n").as_bytes()]);
    assert_eq!((events.len(), skipped), (1, 0));
}

#[test]
fn a_stream_without_blank_lines_takes_no_more_memory_than_an_event() {
    let line = b"data: 0123456789abcdefghij\n";
    let (events, skipped) = read(EventStream::MAX_EVENT, std::iter::repeat_n(&line[..], 200_000));
    assert_eq!((events.len(), skipped), (0, 1));
}

fn stream() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "data: ",
        "data:",
        "data",
        "event: ",
        "event",
        ":",
        " ",
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "\r\n\r\n",
        "x",
        "é",
        "{\"a\":1}",
        "id: 3\n",
        ": c\n",
        "\u{feff}",
    ]);
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

/// `read` checks the memory that is held after each piece.
#[test]
fn what_a_longer_field_has_held_counts_for_the_bound() {
    let [long, longer] = [1500, 1900].map(|length| "x".repeat(length));
    for stream in [
        format!("event: {longer}\nevent: a\ndata: {longer}\n\n"),
        format!("event: {longer}\ndata: b\n\nevent: a\ndata: {longer}\n\n"),
        format!("data: {longer}\n\nevent: {longer}\ndata: b\n\n"),
        format!("event: {long}\nevent: a\ndata: {long}\ndata: b\n\n"),
    ] {
        assert_eq!(read(2000, stream.as_bytes().chunks(100)), (simple(&stream), 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn the_events_are_those_of_a_simple_reader(stream in stream(), size in 1..30usize) {
        prop_assert_eq!(read(1000, stream.as_bytes().chunks(size)), (simple(&stream), 0));
    }

    /// Without the bytes of an event, a client reads all the others. The gateway removes a usage event in this way.
    #[test]
    fn without_the_bytes_of_an_event_the_others_are_left(stream in stream(), index in any::<prop::sample::Index>()) {
        let stream = stream + "\n\ndata: end";
        let events = simple(&stream);
        let (removed, mut left) = (index.index(events.len()), events.clone());
        let range = left.remove(removed).2;
        let [start, end] = [range.start, range.end].map(|offset| usize::try_from(offset).unwrap());
        // A byte order mark at the start of the stream is not part of the first event.
        let mark = if start == 0 && stream.starts_with('\u{feff}') { 3 } else { 0 };
        // Without the event, this line feed would end the same line as the carriage return before it.
        let joins = stream[..start].ends_with('\r') && stream[end..].starts_with('\n');
        let without = [&stream.as_bytes()[..start + mark], &stream.as_bytes()[end..]].concat();
        // At the start of the stream, this character would be read as a byte order mark.
        let has_other_mark = mark == 0 && without.starts_with("\u{feff}".as_bytes());
        prop_assume!(!joins && !has_other_mark);
        let texts = |events: &Events| -> Vec<(String, String)> {
            events.iter().map(|(name, data, _)| (name.clone(), data.clone())).collect()
        };
        prop_assert_eq!(texts(&read(1000, [&without[..]]).0), texts(&left));
    }
}

//! Tests recorded answers of every format, from the public documentation of their providers: whole, in pieces of every
//! size, and cut at every byte.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test fails by panicking"
)]

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use llm::answer::{AnswerReader, Report};
use llm::formats::Format;
use llm::usage::Usage;
use serde_json::Value;

struct Recording {
    name: String,
    body: Vec<u8>,
    format: Format,
    content_type: String,
    expected: Report,
}

fn recordings() -> Vec<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().unwrap() != "expected");
    paths.sort();
    paths.iter().map(|path| recording(path)).collect()
}

fn recording(path: &Path) -> Recording {
    let text = std::fs::read(path.with_extension("expected")).unwrap();
    let file: Value = serde_json::from_slice(&text).unwrap();
    let number = |name: &str| file[name].as_u64().unwrap();
    let usage = file["usage"].as_object().map(|usage| {
        let [input, output, cached, cache_write] =
            ["input", "output", "cached", "cache_write"].map(|name| usage[name].as_u64().unwrap());
        Usage { input, output, cached, cache_write }
    });
    Recording {
        name: path.file_name().unwrap().to_str().unwrap().to_owned(),
        body: std::fs::read(path).unwrap(),
        format: Format::ALL.into_iter().find(|format| file["format"] == format.name()).unwrap(),
        content_type: file["content_type"].as_str().unwrap().to_owned(),
        expected: Report {
            usage,
            model: file["model"].as_str().map(str::to_owned),
            text_bytes: number("text_bytes"),
            text_bytes_after_usage: number("text_bytes_after_usage"),
            unread_bytes: 0,
            skipped_events: 0,
        },
    }
}

impl Recording {
    fn reader(&self) -> AnswerReader {
        AnswerReader::new(self.format, self.content_type.as_bytes(), AnswerReader::MAX_WHOLE)
    }

    fn read<'p>(&self, pieces: impl IntoIterator<Item = &'p [u8]>) -> Report {
        let mut reader = self.reader();
        pieces.into_iter().for_each(|piece| reader.push(piece));
        reader.finish()
    }
}

#[test]
fn every_recording_has_the_usage_that_is_written_beside_it() {
    let recordings = recordings();
    for recording in &recordings {
        assert_eq!(recording.read([&recording.body[..]]), recording.expected, "{}", recording.name);
    }
    let formats: HashSet<Format> = recordings.iter().map(|recording| recording.format).collect();
    assert_eq!(formats.len(), Format::ALL.len());
    assert!(recordings.len() > 30, "{} recordings", recordings.len());
}

#[test]
fn the_size_of_the_pieces_does_not_matter() {
    for recording in recordings() {
        for size in 1..=recording.body.len() {
            assert_eq!(recording.read(recording.body.chunks(size)), recording.expected, "{} by {size}", recording.name);
        }
    }
}

/// Each recording is cut after every byte. The counted text and the usage never become less as more is read.
#[test]
fn an_answer_that_is_cut_anywhere_tells_what_has_passed() {
    for recording in recordings() {
        let Recording { name, body, expected, .. } = &recording;
        let mut known: Vec<Option<Usage>> = Vec::new();
        let mut last_text = 0;
        let mut reader = recording.reader();
        for end in 0..=body.len() {
            if let Some(last) = end.checked_sub(1) {
                reader.push(&body[last..end]);
            }
            let report = reader.clone().finish();
            if end % 8 == 0 {
                assert_eq!(report, recording.read([&body[..end]]), "{name} cut at {end}");
            }
            assert!(report.text_bytes >= last_text, "{name} cut at {end}: text has become less");
            assert!(report.text_bytes_after_usage <= report.text_bytes);
            if report.usage.is_none() {
                assert_eq!(report.text_bytes_after_usage, report.text_bytes, "{name} cut at {end}");
            }
            last_text = report.text_bytes;
            if known.last() != Some(&report.usage) {
                known.push(report.usage);
            }
            // A cut answer costs at least a token for four bytes.
            let cost = report.estimate(100, 4);
            assert!(report.usage.is_some() || cost.output >= report.text_bytes / 4);
        }
        assert_eq!(known.first(), Some(&None), "{name}");
        assert_eq!(known.last(), Some(&expected.usage), "{name}");
        let told: Vec<Usage> = known.iter().flatten().copied().collect();
        assert!(told.is_sorted_by_key(|usage| usage.total()), "{name}: {told:?}");
        // Gemini, vLLM and Anthropic report more than once.
        assert!(told.len() <= 7, "{name}: {told:?}");
    }
}

#[test]
fn the_text_of_a_cut_stream_is_what_a_client_has_read() {
    let recording = recordings().into_iter().find(|recording| recording.name == "openai-chat-stream.sse").unwrap();
    let text = std::str::from_utf8(&recording.body).unwrap();
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        let events = text[..end].split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        let whole: usize = events
            .filter_map(|data| serde_json::from_str::<Value>(data).ok())
            .filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.len()))
            .sum();
        let read = usize::try_from(recording.read([&text.as_bytes()[..end]]).text_bytes).unwrap();
        // The reader also counts the text of an event that is not complete. A client reads complete events only.
        assert!((whole..whole + 40).contains(&read), "cut at {end}: {read}, and a client has read {whole}");
    }
}

/// The recordings must find the mistakes of other gateways.
#[test]
fn the_recordings_find_known_mistakes() {
    let mut found = HashSet::new();
    for recording in recordings() {
        let Some(usage) = recording.expected.usage else { continue };
        let reports = reports_of_events(&recording);
        let output = reports.iter().map(|report| report.output).sum();
        let mistakes = [
            ("cumulative numbers are added", Usage { output, ..usage }),
            ("the first numbers count", *reports.first().unwrap()),
            ("cached tokens are counted as input too", Usage { input: usage.input + usage.cached, ..usage }),
            (
                "cached tokens are taken off the input",
                Usage { input: usage.input.saturating_sub(usage.cached), ..usage },
            ),
            ("written tokens are counted as input too", Usage { input: usage.input + usage.cache_write, ..usage }),
        ];
        found.extend(
            mistakes.iter().filter(|(_, read)| *read != usage).map(|(mistake, _)| (*mistake, recording.format)),
        );
    }
    let told_often = [Format::OpenAiChat, Format::AnthropicMessages, Format::Gemini];
    for format in told_often {
        for mistake in ["cumulative numbers are added", "the first numbers count"] {
            assert!(found.contains(&(mistake, format)), "no recording of {} shows: {mistake}", format.name());
        }
    }
    for format in told_often.into_iter().chain([Format::OpenAiResponses]) {
        let mistake = "cached tokens are counted as input too";
        assert!(found.contains(&(mistake, format)), "no recording of {} shows: {mistake}", format.name());
    }
    let beside = Format::AnthropicMessages;
    assert!(found.contains(&("cached tokens are taken off the input", beside)));
    assert!(found.contains(&("written tokens are counted as input too", beside)));
}

/// The usages that the reader has reported, in their order.
fn reports_of_events(recording: &Recording) -> Vec<Usage> {
    let (mut reader, mut found) = (recording.reader(), Vec::new());
    for piece in recording.body.chunks(1) {
        reader.push(piece);
        if let Some(usage) = reader.clone().finish().usage
            && found.last() != Some(&usage)
        {
            found.push(usage);
        }
    }
    found
}

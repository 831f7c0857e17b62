//! Tests properties of reading requests to language models, however their bytes arrive.

use llm::formats::Format;
use llm::request::{AskingBody, RequestReader};
use serde_json::Value;

use super::mutation::{fuzz, is_bug_planted};
use super::protocols::cuts;

/// The first byte chooses the format.
#[test]
pub fn llm_request() {
    let words: &[&[u8]] = &[
        b"\"stream\":true",
        b"\"stream_options\":{\"include_usage\":true}",
        b"\"include_usage\":null",
        b"\"max_tokens\":1e3",
        b"\"max_completion_tokens\":5",
        b"\"n\":3",
        b"\"model\":\"m\"",
        b"\"messages\":[{\"content\":[{\"image_url\":{\"url\":\"data:,a\"}}]}]",
        b"\"generationConfig\":{\"maxOutputTokens\":5}",
        b"null",
        b"true",
        b"\\u006d",
        b"[",
        b"{",
        b"}",
        b"]",
        b",",
        b":",
        b" ",
        b"-1",
    ];
    fuzz("llm-request", words, |bytes| {
        let (choice, body) = bytes.split_first().unwrap_or((&0, &[]));
        let format = Format::ALL[usize::from(*choice) % 5];
        let mut whole = RequestReader::new(format, 1 << 20);
        whole.push(body);
        let whole = whole.finish();
        let (mut in_parts, mut rest) = (RequestReader::new(format, 1 << 20), body);
        for size in cuts(body) {
            let (part, behind) = rest.split_at(size.max(1).min(rest.len()));
            in_parts.push(part);
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        assert_eq!(in_parts.finish(), whole, "the result depends on how the bytes were split");
        let Ok(request) = whole else { return (0, false, false, 0) };
        let simple: Value = match serde_json::from_slice(body) {
            Ok(simple) => simple,
            // serde_json keeps numbers as doubles.
            Err(error) if error.to_string().starts_with("number out of range") => return (0, false, false, 0),
            Err(error) => panic!("no JSON: {error}"),
        };
        assert!(simple.is_object() && request.answers > 0);
        assert!(request.text_bytes <= body.len() as u64, "more text than was sent");
        assert!(request.most_output(7) >= request.max_output.unwrap_or(7));
        if let Some(question) = request.usage_question {
            let AskingBody { before, question, mut comma, after } = question.ask(body).unwrap();
            // The planted bug: a comma is missing.
            if is_bug_planted() {
                comma = "";
            }
            let asked = [before, question.as_bytes(), comma.as_bytes(), after].concat();
            // Only the answer to the question has changed.
            let mut expected = simple.clone();
            let options = &mut expected["stream_options"];
            if !options.is_object() {
                *options = Value::Object(serde_json::Map::new());
            }
            options["include_usage"] = Value::Bool(true);
            let read: Value = serde_json::from_slice(&asked).unwrap_or_else(|error| panic!("no JSON: {error}"));
            assert_eq!(read, expected);
        }
        (request.answers.min(3), request.is_stream, request.has_content_elsewhere, request.media.min(2))
    });
}

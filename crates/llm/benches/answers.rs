//! Measures the readers of answers: `cargo bench -p tollgate-llm --bench answers`. It prints the time for each KiB.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it has measured")]
#![expect(clippy::unwrap_used, reason = "a benchmark reads what it has made itself")]

use std::hint::black_box;
use std::time::Instant;

use llm::answer::AnswerReader;
use llm::event_stream::EventStream;
use llm::formats::Format;
use llm::json::{Interest, JsonScanner, Pointer, PointerSet};

/// The size of the pieces of a body, which is the size of a TLS record.
const PIECE: usize = 16 << 10;
/// The smallest number of bytes that a measurement reads.
const BYTES: usize = 256 << 20;

fn main() {
    let chunk = br#"data: {"id":"chatcmpl-9lZ5Y","object":"chat.completion.chunk","created":1721075651,"model":"gpt-4o-mini-2024-07-18","service_tier":"default","system_fingerprint":"fp_8b761cb050","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"hT3f8"}

"#;
    let stream = chunk.repeat(400);
    let delta = br#"event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" word"}}

"#;
    let messages = delta.repeat(1000);
    let text = "A sentence of plain words, with \\\"quotes\\\" and\\na new line. ".repeat(2000);
    let long = format!(
        r#"{{"model":"m","choices":[{{"message":{{"content":"{text}"}}}}],"usage":{{"prompt_tokens":1,"completion_tokens":2}}}}"#
    );
    let numbers = ["0.0023064255", "-0.009327292", "1.5e-05"].join(",").repeat(3000).replace("e-050", "e-05,0");
    let embeddings = format!(r#"{{"data":[{{"embedding":[{numbers}]}}],"model":"m","usage":{{"total_tokens":8}}}}"#);
    let wide =
        format!(r#"{{"choices":[{{"message":{{"content":"{}"}}}}]}}"#, "Ein schöner Satz. 東京は晴れ。".repeat(2000));

    measure("event stream alone", &stream, |pieces| {
        let mut events = EventStream::new(EventStream::MAX_EVENT);
        pieces.for_each(|piece| events.push(piece, &mut |event| _ = black_box(event)));
    });
    for (name, format, content_type, body) in [
        ("openai chat, streamed", Format::OpenAiChat, "text/event-stream", &stream[..]),
        ("anthropic messages, streamed", Format::AnthropicMessages, "text/event-stream", &messages),
        ("openai chat, long text", Format::OpenAiChat, "application/json", long.as_bytes()),
        ("openai chat, text beyond ASCII", Format::OpenAiChat, "application/json", wide.as_bytes()),
        ("openai embeddings, numbers", Format::OpenAiEmbeddings, "application/json", embeddings.as_bytes()),
    ] {
        measure(name, body, |pieces| {
            let mut reader = AnswerReader::new(format, content_type.as_bytes(), AnswerReader::MAX_WHOLE);
            pieces.for_each(|piece| reader.push(piece));
            black_box(reader.finish());
        });
    }
    let set = PointerSet::new([(Pointer::parse("/model").unwrap(), Interest::Value)]);
    measure("one pointer, long text", long.as_bytes(), |pieces| {
        let mut scanner = JsonScanner::new(&set, u64::MAX);
        pieces.for_each(|piece| scanner.push(piece));
        black_box(scanner.finish()).unwrap();
    });
    measure("serde_json, long text", long.as_bytes(), |_| {
        black_box(serde_json::from_slice::<serde_json::Value>(long.as_bytes())).unwrap();
    });
}

fn measure(name: &str, body: &[u8], read: impl Fn(&mut dyn Iterator<Item = &[u8]>)) {
    let rounds = BYTES.div_ceil(body.len());
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    let begin = Instant::now();
    for _ in 0..rounds {
        read(&mut black_box(body).chunks(PIECE));
    }
    let kib = (rounds * body.len()) >> 10;
    println!("{name}: {} ns for a KiB", begin.elapsed().as_nanos() / kib as u128);
}

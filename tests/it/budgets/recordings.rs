//! Recorded responses of all formats: each passes unchanged and costs its usage, and one that is cut costs what was read of it.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Shutdown;
use std::path::Path;
use std::sync::Arc;

use llm::answer::{AnswerReader, Report};
use llm::formats::Format;
use llm::usage::Usage;
use serde_json::Value;

use crate::support::{Client, Gateway, Upstream, eventually, short_or_long};

/// More than all recordings of a test cost together.
const LIMIT: u64 = 9_000_000;
const RESERVE: u64 = 1;

/// A response, and what is written about it.
struct Recording {
    name: String,
    body: Vec<u8>,
    format: Format,
    content_type: String,
    usage: Option<Usage>,
}

/// Reads the recordings whose bodies and readings are tested in crates/llm.
fn recordings() -> Vec<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/llm/tests/recorded");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().unwrap() != "expected");
    paths.sort();
    let recording = |path: &Path| {
        let expected: Value = serde_json::from_slice(&std::fs::read(path.with_extension("expected")).unwrap()).unwrap();
        let usage = expected["usage"].as_object().map(|usage| {
            let [input, output, cached, cache_write] =
                ["input", "output", "cached", "cache_write"].map(|name| usage[name].as_u64().unwrap());
            Usage { input, output, cached, cache_write }
        });
        Recording {
            name: path.file_name().unwrap().to_str().unwrap().to_owned(),
            body: std::fs::read(path).unwrap(),
            format: Format::ALL.into_iter().find(|format| expected["format"] == format.name()).unwrap(),
            content_type: expected["content_type"].as_str().unwrap().to_owned(),
            usage,
        }
    };
    paths.iter().map(|path| recording(path)).collect()
}

impl Recording {
    /// Returns what the first bytes of the body say.
    fn report(&self, bytes: usize) -> Report {
        let mut reader = AnswerReader::new(self.format, self.content_type.as_bytes(), AnswerReader::MAX_WHOLE);
        reader.push(&self.body[..bytes]);
        reader.finish()
    }

    /// Returns the cost of the first bytes, if they have a usage: this usage, and an estimate of the text after it.
    fn cost(&self, bytes: usize) -> Option<u64> {
        let report = self.report(bytes);
        report.usage.filter(|usage| tokens(*usage) > 0).map(|_| tokens(report.estimate(0, 4)))
    }

    fn request(&self) -> (&'static str, &'static str) {
        match self.format {
            Format::OpenAiChat => {
                ("/v1/chat/completions", r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}"#)
            }
            Format::OpenAiResponses => ("/v1/responses", r#"{"model":"m","max_output_tokens":9,"input":"Hi"}"#),
            Format::OpenAiEmbeddings => ("/v1/embeddings", r#"{"model":"m","input":"Hi"}"#),
            Format::AnthropicMessages => {
                ("/v1/messages", r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}"#)
            }
            Format::Gemini => {
                ("/v1beta/models/m:generateContent", r#"{"contents":[{"role":"user","parts":[{"text":"Hi"}]}]}"#)
            }
        }
    }
}

fn tokens(usage: Usage) -> u64 {
    usage.input + usage.output + usage.cached + usage.cache_write
}

/// Starts an upstream that answers with the recording in `X-Name`, in chunks of random lengths. With `X-Cut`, it closes the
/// connection after so many bytes of the body.
fn replaying() -> (Arc<BTreeMap<String, Recording>>, Upstream) {
    let all: BTreeMap<_, _> = recordings().into_iter().map(|recording| (recording.name.clone(), recording)).collect();
    let all = Arc::new(all);
    let replayed = Arc::clone(&all);
    let upstream = Upstream::answering(move |request, stream| {
        let Some(recording) = request.field("x-name").map(|name| &replayed[name]) else {
            let _ = write!(stream, "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n");
            return;
        };
        let cut: Option<usize> = request.field("x-cut").map(|bytes| bytes.parse().unwrap());
        let kind = &recording.content_type;
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut random = fastrand::Rng::with_seed(cut.unwrap_or_default() as u64);
        let mut rest = &recording.body[..cut.unwrap_or(recording.body.len())];
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(random.usize(1..=200).min(rest.len()));
            let _ = write!(stream, "{:x}\r\n", chunk.len()).and_then(|()| stream.write_all(chunk));
            let _ = stream.write_all(b"\r\n");
            rest = after;
        }
        if cut.is_some() {
            let _ = stream.shutdown(Shutdown::Both);
        } else {
            let _ = stream.write_all(b"0\r\n\r\n");
        }
    });
    (all, upstream)
}

fn gateway(upstream: &Upstream) -> Gateway {
    let rules = format!(
        "
rules:
  - name: spend
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {{limit: {LIMIT}, window: 366d, reserve: {RESERVE}, cost_source: llm_tokens}}"
    );
    Gateway::start(upstream, &rules)
}

fn begin(gateway: &Gateway, user: &str, recording: Option<&Recording>, cut: Option<usize>) -> Client {
    let (path, body) = recording.map_or(("/v1/chat/completions", r#"{"model":"m","messages":[]}"#), Recording::request);
    let name = recording.map(|recording| format!("X-Name: {}\r\n", recording.name)).unwrap_or_default();
    let cut = cut.map(|bytes| format!("X-Cut: {bytes}\r\n")).unwrap_or_default();
    let mut client = gateway.client();
    client.write(&format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n{name}{cut}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    client
}

/// Returns what is spent and held. Sends a request that costs nothing.
fn used(gateway: &Gateway, user: &str) -> u64 {
    let response = begin(gateway, user, None, None).response("POST").unwrap();
    let level = response.field("ratelimit").unwrap();
    let left = level.split(";r=").nth(1).unwrap().split(';').next().unwrap();
    LIMIT - RESERVE - left.parse::<u64>().unwrap()
}

/// The user has soon spent what the first bytes of the recording say, and holds nothing.
#[track_caller]
fn settles(gateway: &Gateway, user: &str, recording: &Recording, bytes: usize) {
    let least = recording.cost(bytes).unwrap_or(1);
    let most = recording.cost(bytes).unwrap_or(100 + bytes as u64);
    let mut spent = 0;
    // A second time, so that the reservation is not counted any more.
    for _ in 0..2 {
        eventually(user, || {
            spent = used(gateway, user);
            (least..=most).contains(&spent)
        });
    }
}

#[test]
fn recorded_responses_pass_unchanged_and_cost_their_usage() {
    let (recordings, upstream) = replaying();
    let gateway = gateway(&upstream);
    for (name, recording) in recordings.iter() {
        let response = begin(&gateway, name, Some(recording), None).response("POST").unwrap();
        assert_eq!(response.body, String::from_utf8_lossy(&recording.body), "{name}");
        settles(&gateway, name, recording, recording.body.len());
        if let Some(usage) = recording.usage
            && recording.cost(recording.body.len()) == Some(tokens(usage))
        {
            // The request before may still hold its reservation.
            eventually(name, || used(&gateway, name) == tokens(usage));
        }
    }
    gateway.expect("rate_limiter_held", &["rule=\"spend\""], 0.0);
}

#[test]
fn a_recorded_response_that_is_cut_anywhere_costs_what_was_read_of_it() {
    let (recordings, upstream) = replaying();
    let gateway = gateway(&upstream);
    let cuts = short_or_long(6, 200);
    for (name, recording) in recordings.iter() {
        let length = recording.body.len();
        for number in 0..cuts.min(length) {
            // The last one is only without the end of the chunks.
            let cut = length * (number + 1) / cuts.min(length);
            let user = format!("{name}-{cut}");
            assert!(begin(&gateway, &user, Some(recording), Some(cut)).response("POST").is_err(), "{user}");
            settles(&gateway, &user, recording, cut);
        }
    }
    gateway.expect("rate_limiter_held", &["rule=\"spend\""], 0.0);
}

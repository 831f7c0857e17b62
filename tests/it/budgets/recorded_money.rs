//! Every recorded response of a language model costs what an independent script computes, to the last 10⁻⁹ USD.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ledger::cost::Cost;
use serde_json::Value;

use crate::support::{Gateway, Upstream, access_log, eventually, tollgate};

/// Prices with many decimals, for some of the recorded models. The others cost what the model `asked` costs.
const PRICES: &str = "\
model,input,output,cached,cache_write,above
asked,0.123456789,9.999999999,0.000000001,1.25,
gpt-4o*,2.50,10,1.25,,
gpt-4.1*,1.999999999,8.000000001,0.5,,
claude-*,3,15,0.30,3.75,
claude-sonnet-4-5*,3.000000001,15.01,0.301,3.7501,
claude-sonnet-4-5*,6.02,22.5,0.6,7.5,100000
gemini-2.5-pro,1.25,10,0.125,,
gemini-2.5-pro,2.50,15,0.25,,5000
o3-2025-04-16,2,8,0.5,,
Qwen/*,0,0,,,
";

/// A recorded response.
struct Recording {
    name: String,
    body: Vec<u8>,
    content_type: String,
    format: String,
}

fn recordings() -> Vec<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/llm/tests/recorded");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().unwrap() != "expected");
    paths.sort();
    let recording = |path: &PathBuf| {
        let expected: Value = serde_json::from_slice(&std::fs::read(path.with_extension("expected")).unwrap()).unwrap();
        Recording {
            name: path.file_name().unwrap().to_str().unwrap().to_owned(),
            body: std::fs::read(path).unwrap(),
            content_type: expected["content_type"].as_str().unwrap().to_owned(),
            format: expected["format"].as_str().unwrap().to_owned(),
        }
    };
    paths.iter().map(recording).collect()
}

fn path(format: &str) -> &'static str {
    match format {
        "openai_chat" => "/v1/chat/completions",
        "openai_responses" => "/v1/responses",
        "openai_embeddings" => "/v1/embeddings",
        "anthropic_messages" => "/v1/messages",
        _ => "/v1beta/models/asked:generateContent",
    }
}

/// An upstream that answers with the recording that `X-Recording` names.
fn recorded() -> Upstream {
    let recordings = recordings();
    Upstream::answering(move |request, stream| {
        let name = request.field("x-recording").unwrap();
        let Recording { body, content_type, .. } = recordings.iter().find(|recording| recording.name == name).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
    })
}

/// Returns what the script computes for each of these calls: the line of the table and the cost in 10⁻⁹ USD.
fn recomputed(table: &Path, calls: &str) -> Vec<(u64, u64)> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/llm/tests/prices/recompute.py");
    let mut child = Command::new("python3")
        .args([script, table.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is needed");
    child.stdin.take().unwrap().write_all(calls.as_bytes()).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let number = |text: Option<&str>| text.unwrap().parse().unwrap();
    let line = |line: &str| {
        let mut words = line.split(' ');
        (number(words.next()), number(words.next()))
    };
    output.lines().map(line).collect()
}

#[test]
fn every_recorded_response_costs_what_an_independent_script_computes() {
    let upstream = recorded();
    let config = "
access_log: {to: access.jsonl, when: [allowed, refused, error]}
prices: {file: prices.csv}
rules:
  - name: spend
    limit_keys: [header:x-user]
    expose: true
    algorithm: fixed_window
    algorithm_config: {limit: 9007199.25, window: 366d, cost_source: llm_cost, reserve: 0.05}";
    let gateway = Gateway::before(&upstream).with(config).file("prices.csv", PRICES).start();
    let body = r#"{"model":"asked","messages":[]}"#;
    let recordings = recordings();
    for Recording { name, format, .. } in &recordings {
        let mut client = gateway.client();
        let (path, length) = (path(format), body.len());
        client.write(&format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nX-User: ann\r\nX-Recording: {name}\r\nX-Request-Id: {name}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        let response = client.response("POST").unwrap();
        assert_eq!(response.status, 200, "{name}: {response:?}");
    }
    let lines = access_log::wait_for(&gateway, recordings.len());
    let mut calls = String::new();
    for Recording { name, .. } in &recordings {
        let line = access_log::with_id(&lines, name);
        let usage = |kind: &str| line["usage"][kind].as_u64().unwrap();
        let model = line["price"]["model"].as_str().unwrap().trim_end_matches('*');
        let (input, output, cached, cache_write) =
            (usage("input"), usage("output"), usage("cached"), usage("cache_write"));
        writeln!(calls, "{model} {input} {output} {cached} {cache_write}").unwrap();
        let priced = PRICES.lines().any(|price| {
            let (pattern, _) = price.split_once(',').unwrap();
            let answered = line["model"].as_str().unwrap_or("asked");
            pattern == answered || pattern.strip_suffix('*').is_some_and(|prefix| answered.starts_with(prefix))
        });
        assert_eq!(line["price"]["of_asked"].as_bool().unwrap_or_default(), !priced, "{line}");
    }
    let mut sum = 0;
    let mut of_asked = 0;
    for (Recording { name, .. }, (row, cost)) in recordings.iter().zip(recomputed(&gateway.file("prices.csv"), &calls))
    {
        let line = access_log::with_id(&lines, name);
        // A model that costs nothing still leaves a trace.
        let cost = cost.max(1);
        assert_eq!(line["unit"], "usd-millionths", "{line}");
        let settled = serde_json::from_value::<Cost>(line["settled"].clone()).unwrap().thousandths();
        assert_eq!((line["price"]["line"].as_u64().unwrap(), settled), (row, cost), "{name}: {line}");
        sum += cost;
        of_asked += u32::from(line["price"]["of_asked"].as_bool() == Some(true));
    }
    assert!(of_asked > 0);
    gateway.expect("rate_limiter_model_unpriced_total", &["rule=\"spend\"", "unit=\"usd\""], f64::from(of_asked));
    let (admin, file) = (gateway.admin.to_string(), gateway.file("gateway.yaml"));
    let command = ["bucket", "show", "-c", file.to_str().unwrap(), "--admin", &admin, "spend", "header:x-user=ann"];
    let spent = format!("{}.{:09}", sum / 1_000_000_000, sum % 1_000_000_000);
    let expected = format!("{} USD spent, 0.00 USD held", spent.trim_end_matches('0'));
    eventually("the books balance", || tollgate(&command).out.contains(&expected));
}

//! A gRPC client that calls Envoy's doors.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::edge::pypi_program;

/// A gRPC client. It ends with its test.
pub struct Caller {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Caller {
    pub fn new(target: SocketAddr) -> Caller {
        Caller::start(&[target.to_string()])
    }

    /// Makes a client over TLS, with a certificate and its key. The server has a certificate of this authority for
    /// `localhost`. All arguments are paths.
    pub fn over_tls(target: SocketAddr, authority: &Path, certificate: Option<(&Path, &Path)>) -> Caller {
        let files = std::iter::once(authority).chain(certificate.into_iter().flat_map(|(own, key)| [own, key]));
        let files = files.map(|file| file.display().to_string());
        Caller::start(&std::iter::once(format!("localhost:{}", target.port())).chain(files).collect::<Vec<_>>())
    }

    fn start(arguments: &[String]) -> Caller {
        let mut command = Command::new(pypi_program("grpcio", "python"));
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/edges/grpc_call.py")).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Caller { child, input, output }
    }

    /// Returns the answer to a call: the code, and the message if the code is `OK`.
    pub fn call(&mut self, call: &Value) -> Value {
        writeln!(self.input, "{call}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Returns the message that answers this message.
    pub fn message(&mut self, method: &str, message: &Value) -> Value {
        let answer = self.call(&json!({"method": method, "message": message}));
        assert_eq!(answer["code"], "OK", "{answer} to {message}");
        answer["message"].clone()
    }

    /// Sends a call for descriptors in the domain `edge`. Each has entries and perhaps hits.
    pub fn ask(&mut self, descriptors: &[(&str, Option<u64>)]) -> Value {
        self.ask_in("edge", descriptors)
    }

    pub fn ask_in(&mut self, domain: &str, descriptors: &[(&str, Option<u64>)]) -> Value {
        let descriptors: Vec<Value> = descriptors.iter().map(|(entries, hits)| descriptor(entries, *hits)).collect();
        self.message("ShouldRateLimit", &json!({"domain": domain, "descriptors": descriptors}))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the descriptor for entries in the form `a=1,b=2`.
pub fn descriptor(entries: &str, hits: Option<u64>) -> Value {
    let entry = |entry: &str| {
        let (key, value) = entry.split_once('=').unwrap();
        json!({"key": key, "value": value})
    };
    let mut descriptor = json!({"entries": entries.split(',').map(entry).collect::<Vec<_>>()});
    if let Some(hits) = hits {
        descriptor["hits_addend"] = json!({"value": hits});
    }
    descriptor
}

/// Returns the code and the level of each status.
pub fn levels(answer: &Value) -> Vec<(u64, Option<u64>)> {
    let level = |status: &Value| {
        let known = !status["duration_until_reset"].is_null();
        (status["code"].as_u64().unwrap(), known.then(|| status["limit_remaining"].as_u64().unwrap_or(0)))
    };
    answer["statuses"].as_array().map_or(Vec::new(), |statuses| statuses.iter().map(level).collect())
}

/// Returns the value of a header in an answer.
pub fn field<'a>(headers: &'a Value, name: &str) -> Option<&'a str> {
    let header = |one: &'a Value| if one["header"].is_null() { one } else { &one["header"] };
    headers.as_array()?.iter().map(header).find(|one| one["key"] == name)?["value"].as_str()
}

//! gRPC between Python's client and server: all four kinds of calls, with HTTP/2 on both sides, with and without TLS.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use crate::support::authority::Authority;
use crate::support::{Gateway, eventually};

/// The path of a Python interpreter with the gRPC package.
static PYTHON: LazyLock<String> = LazyLock::new(|| {
    let output =
        Command::new("scripts/pypi-python").arg("grpcio").current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
});

fn peer(arguments: &[&str]) -> Command {
    let mut command = Command::new(&*PYTHON);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/http2/grpc_peer.py")).args(arguments);
    command
}

/// A gRPC server. It is ended together with its test.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    port: u16,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let mut command = peer(&[&["server"], arguments].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        Server { child, output, port: line.trim().parse().unwrap() }
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const EXPECTED: &str = "\
unary b'hello' mine last OK
large 3000000
empty b''
upload b'a,,'
download [b'0', b'1', b'2', b'3', b'4']
both [b'<0>', b'<1>', b'<2>']
fail FAILED_PRECONDITION 'on purpose \\u20ac' why b'\\x00\\xff'
hang DEADLINE_EXCEEDED True
cancelled True
missing UNIMPLEMENTED
limited RESOURCE_EXHAUSTED token_bucket_exceeded True
";

/// The output of the server about the two calls that it does not answer.
const ENDED: [&str; 2] = ["hung True True\n", "given up True True\n"];

const RULES: &str = "\
rules:
- {name: limited, match: {path: /test.Limited/*}, limit_keys: [], algorithm_config: {rate: 2/day}}
access_log: {to: log}
";

/// Returns the output of the client about its calls to this gateway.
fn calls(gateway: &Gateway, more: &[&str]) -> String {
    let target = gateway.http.to_string();
    let output = peer(&[&["client", &target], more].concat()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn calls_of_all_kinds_pass_without_tls() {
    let mut server = Server::start(&[]);
    let upstreams = format!(
        "listeners: [{{address: 127.0.0.1:0, protocols: [h2c]}}]\n\
         upstreams: {{api: {{endpoints: [\"http://127.0.0.1:{}\"], protocol: h2c}}}}\n\
         routes: [{{name: all, upstream: api}}]\n",
        server.port
    );
    // Shorter than the pauses of the calls, which have their own.
    let gateway = Gateway::before_url("").with(&upstreams).with(RULES).with("limits: {body_timeout: 300ms}").start();
    assert_eq!(calls(&gateway, &[]), EXPECTED);
    // The deadline reached the server, and so did its end: its own, or that of the client. So did the end of the next call.
    assert_eq!([server.next_line(), server.next_line()], ENDED);
    let log = || std::fs::read_to_string(gateway.file("log")).unwrap();
    let given_up = |line: &str| line.contains("\"request_id\":\"given-up\"") && line.contains("\"code\":499");
    eventually("the call that was given up is logged", || log().lines().any(given_up));
}

#[test]
fn calls_of_all_kinds_pass_over_tls() {
    let authority = Authority::new("ca");
    let issued = authority.issue(&["a.test", "localhost"]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(&path, text).unwrap();
        path
    };
    let (certificate, key) = (file("a.pem", &issued.certificate), file("a.key", &issued.key));
    let mut server = Server::start(&[&certificate, &key]);
    let text = format!(
        "listeners: [{{address: 127.0.0.1:0, tls: {{certificates: [{{cert_file: a.pem, key_file: a.key}}]}}}}]\n\
         upstreams:\n\
         \u{20} api: {{endpoints: [\"https://localhost:{}\"], protocol: h2, tls: {{ca_file: ca.pem}}}}\n\
         routes: [{{name: all, upstream: api}}]\n",
        server.port
    );
    let gateway = Gateway::before_url("")
        .with(&text)
        .with(RULES)
        .files(&[("ca.pem", &authority.pem()), ("a.pem", &issued.certificate), ("a.key", &issued.key)])
        .start();
    let ca = file("ca.pem", &authority.pem());
    assert_eq!(calls(&gateway, &[&ca, "a.test"]), EXPECTED);
    assert_eq!([server.next_line(), server.next_line()], ENDED);
}

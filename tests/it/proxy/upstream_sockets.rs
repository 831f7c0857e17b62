//! Endpoints that are Unix domain sockets.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use serde_json::Value;

use crate::support::{Gateway, eventually};

/// Starts an HTTP/1.1 server on a Unix domain socket that answers every request with its name.
fn serve(path: &Path, name: &'static str) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer(stream.unwrap(), name));
        }
    });
}

fn answer(mut stream: UnixStream, name: &str) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    for _ in lines.filter(String::is_empty) {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
    }
}

#[test]
fn a_socket_is_an_endpoint_like_others() {
    let folder = tempfile::TempDir::new().unwrap();
    let [one, two] = ["one.sock", "two.sock"].map(|name| folder.path().join(name));
    serve(&one, "one");
    let text = format!(
        "upstreams:
  api:
    endpoints: [\"unix:{}\", {{url: \"unix:{}\", weight: 1}}]
    health: {{path: /healthz, interval: 1s, fall: 1, rise: 1}}
    ejection: false
routes: [{{name: all, upstream: api}}]
access_log: {{to: access.log, when: [allowed]}}
",
        one.display(),
        two.display()
    );
    let gateway = Gateway::before_url("").with(&text).start();
    let up = |path: &Path, is_up: f64| {
        gateway.expect("tollgate_endpoint_up", &[&format!("endpoint=\"unix:{}\"", path.display())], is_up);
    };
    up(&one, 1.0);
    up(&two, 0.0);
    let mut client = gateway.client();
    (0..4).for_each(|_| assert_eq!(client.get("/", &[]).body, "one"));
    serve(&two, "two");
    up(&two, 1.0);
    let mut bodies: Vec<String> = (0..4).map(|_| client.get("/", &[]).body).collect();
    bodies.sort();
    assert_eq!(bodies, ["one", "one", "two", "two"]);
    let log = || std::fs::read_to_string(gateway.file("access.log")).unwrap_or_default();
    eventually("the log is written", || log().lines().count() == 8);
    let line: Value = serde_json::from_str(log().lines().next().unwrap()).unwrap();
    assert_eq!(line["endpoint"], format!("unix:{}", one.display()));
}

#[test]
fn a_socket_that_is_not_there_is_a_failure_to_connect() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("api.sock");
    let gateway = Gateway::before_url(&format!("unix:{}", path.display())).start();
    assert_eq!(gateway.client().get("/", &[]).status, 502);
    gateway.expect("tollgate_upstream_errors_total", &["connect_failed"], 1.0);
    serve(&path, "there");
    assert_eq!(gateway.client().get("/", &[]).body, "there");
}

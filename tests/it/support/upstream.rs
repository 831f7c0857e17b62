//! An HTTP/1.1 upstream that records every request, and answers in the way that a test sets.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::Client;

/// One received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub line: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    /// The number of the connection, counted from 0.
    pub connection: usize,
}

impl ReceivedRequest {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }
}

type Answer = dyn Fn(&ReceivedRequest, &mut TcpStream) + Send + Sync;

#[derive(Clone)]
pub(crate) struct Upstream {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Upstream {
    /// Starts an upstream that answers every request with 200 `ok`.
    pub(crate) fn start() -> Upstream {
        Upstream::answering(|_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        })
    }

    /// Starts an upstream that calls `answer` with each request. `answer` writes to the connection.
    pub(crate) fn answering(answer: impl Fn(&ReceivedRequest, &mut TcpStream) + Send + Sync + 'static) -> Upstream {
        Upstream::listening(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    /// Starts an upstream that answers with 200 `ok`: paths that begin with `/slow` when the test has sent a message, all
    /// others at once.
    pub(crate) fn answering_when_told() -> (Upstream, mpsc::Sender<()>) {
        let (answer, told) = mpsc::channel();
        let told = Mutex::new(told);
        let upstream = Upstream::answering(move |request, stream| {
            let is_slow = request.line.starts_with("GET /slow");
            if !is_slow || told.lock().unwrap().recv_timeout(Duration::from_secs(60)).is_ok() {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
        });
        (upstream, answer)
    }

    /// Starts an upstream like [`Upstream::answering`] on a listener of the test.
    pub(crate) fn listening(
        listener: TcpListener,
        answer: impl Fn(&ReceivedRequest, &mut TcpStream) + Send + Sync + 'static,
    ) -> Upstream {
        let upstream = Upstream { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let (seen, answer) = (Arc::clone(&upstream.seen), Arc::new(answer));
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream.unwrap(), connection, &seen, &*answer));
            }
        });
        upstream
    }

    pub(crate) fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    #[track_caller]
    pub(crate) fn last(&self) -> ReceivedRequest {
        self.seen().pop().expect("the upstream saw no request")
    }
}

/// Serves one upload that waits for `100 Continue`: sends this response, lets `upload` send `hello`, and answers.
#[track_caller]
pub(crate) fn continue_upload(listener: &TcpListener, upload: impl FnOnce()) {
    let mut upstream = Client::over(listener.accept().unwrap().0);
    assert!(upstream.until("\r\n\r\n").to_lowercase().contains("expect: 100-continue"));
    upstream.write("HTTP/1.1 100 Continue\r\n\r\n");
    upload();
    upstream.until("hello");
    upstream.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

fn serve(stream: TcpStream, connection: usize, seen: &Mutex<Vec<ReceivedRequest>>, answer: &Answer) {
    // Without it, an answer that is written in parts waits 40 ms for an acknowledgement.
    stream.set_nodelay(true).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader, connection) {
        seen.lock().unwrap().push(request.clone());
        answer(&request, &mut writer);
    }
}

fn read(reader: &mut impl BufRead, connection: usize) -> Option<ReceivedRequest> {
    let line = read_line(reader)?;
    if line.is_empty() {
        return None;
    }
    let (line, fields) = (line.trim_end().to_owned(), read_fields(reader)?);
    let mut seen = ReceivedRequest { line, fields, body: Vec::new(), trailers: Vec::new(), connection };
    if let Some(length) = seen.field("content-length") {
        seen.body = vec![0; length.parse().ok()?];
        reader.read_exact(&mut seen.body).ok()?;
    } else if seen.field("transfer-encoding").is_some() {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            if size == 0 {
                seen.trailers = read_fields(reader)?;
                break;
            }
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            seen.body.extend_from_slice(&chunk[..size]);
        }
    }
    Some(seen)
}

/// Reads fields up to an empty line.
fn read_fields(reader: &mut impl BufRead) -> Option<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let line = read_line(reader)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { return Some(fields) };
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
}

/// Reads a line of a head. It need not be UTF-8.
fn read_line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).ok()?;
    Some(String::from_utf8_lossy(&line).into_owned())
}

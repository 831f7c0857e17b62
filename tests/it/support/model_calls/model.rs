//! An upstream that answers calls as language models do, and keeps its own books of what it has sent.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::call::{Call, End};
use crate::support::Upstream;

/// The calls by their numbers, each with what was sent.
type Calls = Arc<Mutex<BTreeMap<u64, (Call, Option<Sent>)>>>;

/// What was sent of the response to a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub words: u64,
    pub is_whole: bool,
}

#[derive(Clone)]
pub(crate) struct Model {
    pub upstream: Upstream,
    calls: Calls,
}

impl Model {
    pub(crate) fn start() -> Model {
        let calls: Calls = Arc::default();
        let shared = Arc::clone(&calls);
        let upstream = Upstream::answering(move |request, stream| {
            let id: u64 = request.field("x-call").unwrap().parse().unwrap();
            let update = |sent: Sent| {
                let mut calls = shared.lock().unwrap();
                let entry = calls.get_mut(&id).unwrap();
                entry.1 = Some(sent);
                entry.0.clone()
            };
            let call = update(Sent::default());
            let asks = memchr::memmem::find(&request.body, b"\"include_usage\":true").is_some();
            let answered = answer(&call, asks, stream, |sent| _ = update(sent));
            // The gateway may have left. A connection with a whole response is kept.
            if answered.is_err() || matches!(call.end, End::UpstreamLeaves(_)) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
        Model { upstream, calls }
    }

    /// Tells the upstream of a call that will be sent.
    pub(crate) fn expect(&self, call: &Call) {
        self.calls.lock().unwrap().insert(call.id, (call.clone(), None));
    }

    /// Returns what was sent of a response. `None` if the call has not reached the upstream.
    pub(crate) fn sent(&self, call: &Call) -> Option<Sent> {
        self.calls.lock().unwrap()[&call.id].1
    }
}

fn answer(call: &Call, asks: bool, stream: &mut TcpStream, update: impl Fn(Sent)) -> io::Result<()> {
    if call.end == End::Failure {
        return write_whole(stream, "503 Busy", r#"{"error":{"message":"busy"}}"#);
    }
    if call.end == End::ClientLeavesBeforeHead {
        return until_closed(stream);
    }
    if !call.is_stream {
        std::thread::sleep(call.pause * u32::try_from(call.words).unwrap());
        update(Sent { words: call.words, is_whole: true });
        return write_whole(stream, "200 OK", &call.whole().to_string());
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    chunk(stream, &call.beginning())?;
    let words = match call.end {
        End::UpstreamLeaves(words) | End::ClientLeavesAfterWords(words) => words,
        _ => call.words,
    };
    for before in 0..words {
        std::thread::sleep(call.pause);
        // Counted first, because a part of it may pass.
        update(Sent { words: before + 1, is_whole: false });
        chunk(stream, &call.word(before))?;
    }
    match call.end {
        End::UpstreamLeaves(_) => Ok(()),
        End::ClientLeavesAfterWords(_) => loop {
            std::thread::sleep(Duration::from_millis(5));
            chunk(stream, ": the answer goes on\n\n")?;
        },
        _ => {
            let finish = call.finish();
            // A model tells the usage of this stream only to those who ask.
            let told = if finish.ends_with("[DONE]\n\n") && !asks { "data: [DONE]\n\n" } else { &finish };
            chunk(stream, told)?;
            update(Sent { words, is_whole: true });
            stream.write_all(b"0\r\n\r\n")
        }
    }
}

fn write_whole(stream: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes())
}

fn chunk(stream: &mut TcpStream, text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

fn until_closed(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.read(&mut [0; 1]).map(|_| ())
}

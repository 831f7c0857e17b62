//! A client that makes one call, and leaves in the way that the call says.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::call::{Call, End, WORD};
use super::model::Model;
use crate::support::now;

/// What a client saw of its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// No gateway was there.
    NoConnection,
    /// A response with this status that is not 200, and its reason.
    Refused(u16, String),
    Whole,
    /// The response ended too early, after so many words.
    Broken(u64),
    /// The client left after so many words.
    Left(u64),
}

/// How often a client that may leave looks whether it is time.
const LOOK: Duration = Duration::from_millis(2);

/// Makes a call with these fields, and says what the client saw of it.
pub(crate) fn make(call: &Call, gateway: SocketAddr, fields: &str, model: &Model) -> CallResult {
    let Ok(stream) = TcpStream::connect(gateway) else { return CallResult::NoConnection };
    let mut response = Response { stream, read: Vec::new() };
    match response.read_until_end(call, fields, model) {
        Ok(true) => CallResult::Left(response.words()),
        // A gateway that is killed resets the connection.
        Ok(false) | Err(_) => response.seen(),
    }
}

struct Response {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Response {
    /// Sends the request, and reads until the connection ends or the client leaves. Returns whether the client leaves.
    fn read_until_end(&mut self, call: &Call, fields: &str, model: &Model) -> io::Result<bool> {
        let (path, body, sent) = (call.path(), call.body(), now());
        let looks = !matches!(call.end, End::Whole | End::Failure | End::UpstreamLeaves(_));
        self.stream.set_read_timeout(Some(if looks { LOOK } else { Duration::from_secs(30) }))?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Call: {}\r\n{fields}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            call.id,
            body.len()
        );
        self.stream.write_all(format!("{head}{body}").as_bytes())?;
        let mut part = [0; 16 << 10];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return Ok(false),
                Ok(length) => self.read.extend_from_slice(&part[..length]),
                Err(error) if looks && matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    assert!(sent.elapsed() < Duration::from_secs(60), "{call:?} does not end");
                }
                Err(error) => return Err(error),
            }
            if self.is_time_to_leave(call, sent, model) {
                return Ok(true);
            }
        }
    }

    fn is_time_to_leave(&self, call: &Call, sent: Instant, model: &Model) -> bool {
        match call.end {
            End::ClientLeavesBeforeHead => self.read.is_empty() && model.sent(call).is_some(),
            End::ClientLeavesAfterWords(words) => self.words() >= words,
            End::ClientLeavesAt(time) => sent.elapsed() >= time,
            _ => false,
        }
    }

    fn words(&self) -> u64 {
        memchr::memmem::find_iter(&self.read, WORD).count() as u64
    }

    /// Returns what a connection that ended has brought.
    fn seen(&self) -> CallResult {
        let Some(end) = memchr::memmem::find(&self.read, b"\r\n\r\n") else { return CallResult::Broken(0) };
        let head = String::from_utf8_lossy(&self.read[..end]).to_lowercase();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let is_whole = match field("content-length:") {
            Some(length) => length.parse() == Ok(self.read.len() - end - 4),
            None => self.read[end + 4..].ends_with(b"0\r\n\r\n"),
        };
        match status {
            200 if is_whole => CallResult::Whole,
            200 => CallResult::Broken(self.words()),
            status => CallResult::Refused(status, field("x-tollgate-reason:").unwrap_or_default().to_owned()),
        }
    }
}

//! An HTTP/1.1 client over one connection. It returns responses as it received them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// A client with one connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: String,
    /// The trailers of a chunked body.
    pub trailers: Vec<(String, String)>,
}

impl Response {
    /// Returns the value of a field, whatever the case of its name. Several lines are joined to a list.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let values: Vec<_> = self.fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).collect();
        (!values.is_empty()).then(|| values.iter().map(|(_, value)| &**value).collect::<Vec<_>>().join(", "))
    }

    #[track_caller]
    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.field(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        Client::over(TcpStream::connect(address).unwrap())
    }

    /// Makes a client of an accepted connection, for a test that is the upstream itself.
    pub(crate) fn over(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, read: Vec::new() }
    }

    pub(crate) fn get(&mut self, target: &str, fields: &[(&str, &str)]) -> Response {
        self.send("GET", target, fields, "")
    }

    pub(crate) fn send(&mut self, method: &str, target: &str, fields: &[(&str, &str)], body: &str) -> Response {
        let mut text = format!("{method} {target} HTTP/1.1\r\n");
        if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text += "Host: test\r\n";
        }
        for (name, value) in fields {
            text += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        self.write(&format!("{text}\r\n{body}"));
        self.response(method).unwrap()
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.write_bytes(text.as_bytes()).unwrap();
    }

    pub(crate) fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Returns the stream, so that a test can write while it reads responses.
    pub(crate) fn writer(&self) -> TcpStream {
        self.stream.try_clone().unwrap()
    }

    pub(crate) fn port(&self) -> u16 {
        self.stream.local_addr().unwrap().port()
    }

    /// Closes the client's side of the connection.
    pub(crate) fn finish(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Reads one response to a request of this method.
    pub(crate) fn response(&mut self, method: &str) -> io::Result<Response> {
        let mut response = loop {
            let response = self.head()?;
            if !(100..200).contains(&response.status) || response.status == 101 {
                break response;
            }
        };
        let body = if method == "HEAD" || matches!(response.status, 101 | 204 | 304) {
            Vec::new()
        } else if response.field("transfer-encoding").is_some() {
            self.chunked(&mut response.trailers)?
        } else if let Some(length) = response.field("content-length") {
            self.take(length.parse().unwrap())?
        } else {
            while self.more().is_ok() {}
            std::mem::take(&mut self.read)
        };
        response.body = String::from_utf8_lossy(&body).into_owned();
        Ok(response)
    }

    /// Reads the head of a response.
    fn head(&mut self) -> io::Result<Response> {
        let end = loop {
            if let Some(end) = self.read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end;
            }
            self.more()?;
        };
        let head = String::from_utf8(self.read.drain(..end + 4).collect()).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let fields: Vec<_> = lines
            .map(|line| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned())).unwrap())
            .collect();
        Ok(Response { status, fields, body: String::new(), trailers: Vec::new() })
    }

    /// Reads the head of a response and the first part of its body.
    pub(crate) fn first_bytes(&mut self) -> String {
        while !self.read.windows(4).any(|bytes| bytes == b"\r\n\r\n") || self.read.ends_with(b"\r\n\r\n") {
            self.more().unwrap();
        }
        String::from_utf8(self.read.clone()).unwrap()
    }

    /// Reads everything up to the end of this text.
    pub(crate) fn until(&mut self, text: &str) -> String {
        while !String::from_utf8_lossy(&self.read).contains(text) {
            self.more().unwrap();
        }
        String::from_utf8(std::mem::take(&mut self.read)).unwrap()
    }

    /// Whether the peer closes the connection before the read timeout.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }

    /// Whether the peer closes the connection before the read timeout, without having sent anything.
    pub(crate) fn is_closed_without_response(&mut self) -> bool {
        self.read.is_empty() && matches!(self.stream.read(&mut [0; 1]), Ok(0))
    }

    /// Whether something is received within this time.
    pub(crate) fn receives_within(&mut self, wait: Duration) -> bool {
        self.stream.set_read_timeout(Some(wait)).unwrap();
        let come = self.more().is_ok();
        self.stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        come
    }

    fn chunked(&mut self, trailers: &mut Vec<(String, String)>) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let size = usize::from_str_radix(line.trim(), 16).unwrap();
            if size == 0 {
                break;
            }
            body.extend(self.take(size)?);
            self.line()?;
        }
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { return Ok(body) };
            trailers.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                return Ok(String::from_utf8(self.read.drain(..=end).collect()).unwrap());
            }
            self.more()?;
        }
    }

    fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.read.len() < length {
            self.more()?;
        }
        Ok(self.read.drain(..length).collect())
    }

    fn more(&mut self) -> io::Result<()> {
        let mut part = [0; 16 << 10];
        match self.stream.read(&mut part)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => {
                self.read.extend_from_slice(&part[..length]);
                Ok(())
            }
        }
    }
}

//! An HTTP/2 client and an upstream that send the frames that a test has written, valid or not.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConnection, StreamOwned};

use super::tls_client::TlsSettings;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const WITH_PRIORITY: u8 = 32;

/// One received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Returns the error code of a RST_STREAM or GOAWAY frame.
    pub(crate) fn error_code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// A stream on which frames are sent.
trait Transport: Read + Write + Send {}

impl<T: Read + Write + Send> Transport for T {}

/// A connection of frames.
pub(crate) struct FrameClient {
    transport: Box<dyn Transport>,
    tcp: TcpStream,
}

impl FrameClient {
    /// Connects, and exchanges the first SETTINGS frames.
    pub(crate) fn connect(address: SocketAddr) -> FrameClient {
        let mut client = FrameClient::silent(address);
        client.greet();
        client
    }

    /// Connects over TLS with this server name, and exchanges the first SETTINGS frames.
    pub(crate) fn connect_tls(settings: &TlsSettings, address: SocketAddr, name: &str) -> FrameClient {
        let FrameClient { tcp, .. } = FrameClient::silent(address);
        let mut config = settings.config();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connection = ClientConnection::new(Arc::new(config), name.to_owned().try_into().unwrap()).unwrap();
        let transport = Box::new(StreamOwned::new(connection, tcp.try_clone().unwrap()));
        let mut client = FrameClient { transport, tcp };
        client.greet();
        client
    }

    /// Exchanges the first SETTINGS frames.
    fn greet(&mut self) {
        self.write(PREFACE);
        // A table without a place, so that every block says what it says by itself.
        self.write(&frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]));
        self.until(|frame| frame.kind == SETTINGS && frame.flags & ACK == 0);
        self.write(&frame(SETTINGS, ACK, 0, &[]));
    }

    /// Connects, and sends nothing.
    pub(crate) fn silent(address: SocketAddr) -> FrameClient {
        FrameClient::over(TcpStream::connect(address).unwrap())
    }

    fn over(stream: TcpStream) -> FrameClient {
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        stream.set_nodelay(true).unwrap();
        FrameClient { transport: Box::new(stream.try_clone().unwrap()), tcp: stream }
    }

    /// For an upstream: returns the next frame of a stream. Answers SETTINGS and PING frames. `None` after the end of the
    /// connection.
    pub(crate) fn next_of_stream(&mut self) -> Option<Frame> {
        loop {
            let frame = self.next()?;
            match frame.kind {
                SETTINGS | PING if frame.flags & ACK == 0 => {
                    let payload = if frame.kind == PING { &*frame.payload } else { &[] };
                    self.try_write(&self::frame(frame.kind, ACK, 0, payload)).ok()?;
                }
                _ if frame.stream != 0 && frame.kind != WINDOW_UPDATE => return Some(frame),
                _ => {}
            }
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.try_write(bytes).unwrap();
    }

    /// Writes bytes to a connection that may already be closed.
    ///
    /// # Errors
    /// If the connection is closed.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.transport.write_all(bytes)
    }

    /// Returns the next frame; `None` after the end of the connection.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.transport.read_exact(&mut head).ok()?;
        let [high, middle, low, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)];
        self.transport.read_exact(&mut payload).ok()?;
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff, payload })
    }

    /// Reads frames up to a wanted one.
    #[track_caller]
    pub(crate) fn until(&mut self, wanted: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            let frame = self.next().expect("the connection was closed before");
            if wanted(&frame) {
                return frame;
            }
        }
    }

    /// Returns the status of the response of a stream, or the code with which the stream was reset.
    #[track_caller]
    pub(crate) fn outcome(&mut self, stream: u32) -> Result<u16, u32> {
        let frame = self.until(|frame| frame.stream == stream && matches!(frame.kind, HEADERS | RST_STREAM));
        if frame.kind == RST_STREAM { Err(frame.error_code()) } else { Ok(status(&frame.payload)) }
    }

    /// Returns all frames up to the end of the connection.
    pub(crate) fn rest(&mut self) -> Vec<Frame> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// Returns the same connection for another thread to read from. Not possible over TLS.
    pub(crate) fn reader(&self) -> FrameClient {
        let copy = || self.tcp.try_clone().unwrap();
        FrameClient { transport: Box::new(copy()), tcp: copy() }
    }

    /// Closes the client's side of the connection.
    pub(crate) fn finish_writing(&self) {
        // The server may have closed the connection before.
        let _ = self.tcp.shutdown(Shutdown::Write);
    }
}

/// Starts an upstream that speaks HTTP/2 without TLS and begins with these settings. `serve` then gets each connection with
/// its number, counted from 0.
pub(crate) fn upstream(
    settings: &'static [u8],
    serve: impl Fn(usize, &mut FrameClient) + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (serve, mut connection) = (Arc::clone(&serve), FrameClient::over(stream.unwrap()));
            std::thread::spawn(move || {
                let mut preface = [0; PREFACE.len()];
                if connection.transport.read_exact(&mut preface).is_ok() {
                    connection.write(&frame(SETTINGS, 0, 0, settings));
                    serve(number, &mut connection);
                }
            });
        }
    });
    address
}

/// The setting MAX_CONCURRENT_STREAMS with the value 0.
pub(crate) const NO_STREAMS: &[u8] = &[0, 3, 0, 0, 0, 0];

/// Returns the head of a response with a status of HPACK's static table, and fields.
pub(crate) fn response(stream: u32, status: u16, fields: &[(&str, &str)], flags: u8) -> Vec<u8> {
    let index = INDEXED.iter().position(|known| *known == status).unwrap();
    let block = [&[0x88 + u8::try_from(index).unwrap()], &*fields_block(fields)].concat();
    frame(HEADERS, flags | END_HEADERS, stream, &block)
}

pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Returns a GET request without a body, for this path.
pub(crate) fn get(stream: u32, path: &str) -> Vec<u8> {
    request(stream, "GET", path, &[], END_STREAM)
}

/// Returns the head of a request, in one frame.
pub(crate) fn request(stream: u32, method: &str, path: &str, fields: &[(&str, &str)], flags: u8) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(method, path, fields))
}

/// Returns a block of header fields without compression.
pub(crate) fn block(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let pseudo = [(":method", method), (":scheme", "http"), (":authority", "a.test"), (":path", path)];
    fields_block(&[&pseudo[..], fields].concat())
}

pub(crate) fn fields_block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        // A literal that is not indexed, with a new name.
        block.push(0);
        for text in [name, value] {
            length(text.len(), &mut block);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// Encodes an integer with a prefix of seven bits (RFC 7541, section 5.1).
fn length(length: usize, block: &mut Vec<u8>) {
    if length < 127 {
        return block.push(u8::try_from(length).unwrap());
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    block.push(u8::try_from(rest).unwrap());
}

/// The statuses in HPACK's static table, from index 8 on.
const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];

/// Returns the status in a header block from the server. It is the first field, indexed or as a literal.
pub(crate) fn status(block: &[u8]) -> u16 {
    let block = match block {
        // A change of the table's size.
        [first, rest @ ..] if first & 0xe0 == 0x20 => rest,
        block => block,
    };
    match block {
        [first, ..] if first & 0x80 != 0 => INDEXED[usize::from(first & 0x7f) - 8],
        // A name of the table, and three digits, plain or each in five or six bits.
        [_, 3, digits @ ..] => std::str::from_utf8(&digits[..3]).unwrap().parse().unwrap(),
        [_, coded, digits @ ..] => huffman_digits(&digits[..usize::from(coded & 0x7f)]),
        _ => panic!("no status in {block:?}"),
    }
}

/// Decodes three digits in the code of RFC 7541, appendix B: 0 to 2 have five bits, the others six.
fn huffman_digits(bytes: &[u8]) -> u16 {
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    let (mut status, mut at) = (0, 0);
    for _ in 0..3 {
        let read = |count: usize| bits[at..at + count].iter().fold(0_u16, |value, bit| value << 1 | u16::from(*bit));
        let (digit, width) = match read(5) {
            digit @ 0..3 => (digit, 5),
            _ => (read(6) - 0x19 + 3, 6),
        };
        status = status * 10 + digit;
        at += width;
    }
    status
}

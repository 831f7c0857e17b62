//! The client's side of an exchange over HTTP/1.x.

use std::future::poll_fn;

use super::response_head::Reuse;
use crate::gateway::server::http1::downstream_stream::DownstreamStream;
use crate::gateway::server::http1::exchange_io::{BodyRead, ClientFault};

/// How much of a body is held at once.
pub const BUFFER: usize = 64 << 10;

/// A client that has sent a request.
#[derive(Debug)]
pub struct Client {
    pub stream: Box<DownstreamStream>,
    /// Whether it wants its connection kept, and it can be.
    pub reuse: Reuse,
    /// Whether it has asked for a WebSocket.
    pub is_tunnel: bool,
}

impl Client {
    /// # Errors
    /// If the client has gone or does not read.
    pub async fn write_all(&mut self, bytes: &[u8]) -> Result<(), ClientFault> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            written += poll_fn(|cx| self.stream.poll_write_response(rest, bytes.len(), cx)).await?;
        }
        poll_fn(|cx| self.stream.poll_flush_response(cx)).await
    }

    /// Reads a part of the body.
    ///
    /// # Errors
    /// If the client sends no more of it, or an invalid one.
    pub async fn read_body(&mut self, data: &mut Vec<u8>, trailers: &mut Vec<u8>) -> Result<BodyRead, ClientFault> {
        poll_fn(|cx| self.stream.poll_body_part(data, BUFFER, trailers, cx)).await
    }
}

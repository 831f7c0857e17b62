//! Decodes the received bytes of a response, and encodes them for the client.

use bytes::{Buf, BytesMut};

use super::chunked::{Coding, chunk};
use super::fault::{Stage, UpstreamFault};
use super::http1_response_head::{ResponseBody, ResponseHead, ResponseHeadParser};
use super::trailers;
use crate::gateway::server::body_part::HasBody;
use crate::gateway::server::http1::client::BUFFER;
use crate::gateway::server::http1::request_body::{BodyFraming, Chunks, PartKind};
use crate::gateway::telemetry::labels::UpstreamError;

/// A response on its way from the upstream to the client: the received bytes, the bytes to be written, and what is still
/// expected.
#[derive(Debug)]
pub struct Download {
    pub input: BytesMut,
    pub parser: ResponseHeadParser,
    pub out: Vec<u8>,
    pub written: usize,
    pub body: ResponseFraming,
    coding: Coding,
    trailers: Vec<u8>,
    pub flushed: bool,
}

/// The part of a response that is still expected from the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    Nothing,
    Length(u64),
    Chunked(Chunks),
    UntilClose,
}

impl Default for Download {
    fn default() -> Download {
        Download {
            input: BytesMut::new(),
            parser: ResponseHeadParser::default(),
            out: Vec::new(),
            written: 0,
            body: ResponseFraming::Nothing,
            coding: Coding::Plain,
            trailers: Vec::new(),
            flushed: true,
        }
    }
}

impl Download {
    /// Notes that the head has been handled. `body` is what follows the head, and `coding` is how the body is written for the
    /// client.
    pub fn expect_body(&mut self, body: ResponseFraming, coding: Coding) {
        (self.body, self.coding) = (body, coding);
    }

    /// Returns the trailers that have arrived: their lines, and the empty line after them.
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Removes and returns the trailers of a response that has ended.
    pub fn take_trailers(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.trailers)
    }

    /// Prepares for another head. Called when an interim head has been handled.
    pub fn expect_head(&mut self) {
        self.parser = ResponseHeadParser::default();
    }

    /// Whether the response has ended, and nothing has arrived after it. Only then can the connection serve another request.
    pub fn is_clean(&self) -> bool {
        self.body == ResponseFraming::Nothing && self.input.is_empty()
    }

    /// Decodes the received bytes of the body, and encodes them for the client. Calls `show` with the data, without the sizes of
    /// chunks and without trailers.
    ///
    /// # Errors
    /// If the body is invalid.
    pub fn decode(&mut self, mut show: impl FnMut(&[u8])) -> Result<(), UpstreamFault> {
        while !self.input.is_empty() && self.body != ResponseFraming::Nothing {
            // Decodes only as many bytes as the output buffer has room for.
            let Some(room @ 1..) = BUFFER.checked_sub(self.out.len()) else { return Ok(()) };
            let input = self.input.get(..room).unwrap_or(&self.input);
            let (kind, length, next) = match self.body {
                ResponseFraming::Nothing => return Ok(()),
                ResponseFraming::UntilClose => (PartKind::Data, input.len(), ResponseFraming::UntilClose),
                ResponseFraming::Length(left) => {
                    let length = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
                    (PartKind::Data, length, ResponseFraming::length(left - length as u64))
                }
                ResponseFraming::Chunked(chunks) => {
                    let mut framing = BodyFraming::Chunked(chunks);
                    let part = framing.next_part(input).map_err(|error| {
                        let detail = format!("InvalidBody: {}", error.detail());
                        UpstreamFault::new(UpstreamError::InvalidAnswer, detail, Stage::Answering)
                    })?;
                    let next = match framing {
                        BodyFraming::Chunked(chunks) => ResponseFraming::Chunked(chunks),
                        _ => ResponseFraming::Nothing,
                    };
                    (part.kind, part.length, next)
                }
            };
            let part = input.get(..length).unwrap_or_default();
            match (kind, self.coding) {
                (PartKind::Data, Coding::Plain) => self.out.extend_from_slice(part),
                (PartKind::Data, Coding::Chunked) => chunk(part, &mut self.out),
                (PartKind::Trailers, _) => self.trailers.extend_from_slice(part),
                (PartKind::Framing, _) => {}
            }
            if kind == PartKind::Data {
                show(part);
            }
            self.input.advance(length);
            self.body = next;
            self.end_if_done();
        }
        Ok(())
    }

    /// Writes the last chunk and the trailers for the client, if the body has ended and is written in chunks.
    pub fn end_if_done(&mut self) {
        if self.body == ResponseFraming::Nothing && self.coding == Coding::Chunked {
            trailers::end_response(&self.trailers, &mut self.out);
            self.coding = Coding::Plain;
        }
    }
}

impl ResponseFraming {
    /// Returns what follows a head that is not an upgrade. `body` says whether a body follows.
    pub(super) fn of(head: &ResponseHead, body: HasBody) -> ResponseFraming {
        match head.body {
            _ if body == HasBody::No => ResponseFraming::Nothing,
            ResponseBody::Length(length) => ResponseFraming::length(length),
            ResponseBody::Chunked => ResponseFraming::Chunked(Chunks::of_response()),
            ResponseBody::UntilClose => ResponseFraming::UntilClose,
        }
    }

    pub fn length(left: u64) -> ResponseFraming {
        if left == 0 { ResponseFraming::Nothing } else { ResponseFraming::Length(left) }
    }
}

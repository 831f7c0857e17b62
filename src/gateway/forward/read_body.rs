//! Holds the body of a request in memory, because rules need it, and gives it to the upstream afterwards.
//!
//! The memory of one body and of all bodies together is bounded. A body counts towards these bounds until its last part
//! has been sent.

use bytes::Bytes;
use smallvec::SmallVec;

use super::fault::Fault;
use crate::gateway::runtime::inspected_bytes::{InspectedFull, InspectedShare};
use crate::gateway::server::body_part::{BodyPart, StatedLength, TrailerLines};
use crate::gateway::server::http1::exchange_io::BodyRead;
use crate::gateway::server::http1::request_head::Body;
use llm::request::{AskingBody, UsageQuestion};

/// The capacity with which the buffer of a body begins, in bytes.
const FIRST_BUFFER: usize = 16 << 10;

/// The whole body of a request, with its trailers. All clones share the memory.
#[derive(Clone, Debug)]
pub(super) struct ReadBody {
    pub data: Bytes,
    /// The parts that follow `data` in a body that the gateway has changed, the last part first.
    rest: SmallVec<[Bytes; 3]>,
    is_changed: bool,
    trailers: TrailerLines,
}

/// The bounds of a body in memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadBounds {
    /// The largest size of one body.
    pub body: usize,
    /// The largest size of all bodies in memory together.
    pub total: usize,
}

/// A body while it is read.
#[derive(Debug)]
pub(super) struct BodyReader {
    data: Vec<u8>,
    left: StatedLength,
    /// The largest capacity of the buffer: the length that the head states, or else `bounds.body`.
    largest: usize,
    bounds: ReadBounds,
    share: InspectedShare,
}

/// The bytes of a body, with the share that counts them.
struct CountedBytes {
    data: Vec<u8>,
    _share: InspectedShare,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl BodyReader {
    /// Makes the reader of a body. `body` is the form of the body that the head states.
    ///
    /// # Errors
    /// If the body is too long, or the bodies in memory are too large together.
    pub(super) fn new(body: Body, bounds: ReadBounds, share: InspectedShare) -> Result<BodyReader, Fault> {
        let (length, largest) = match body {
            Body::Length(length) => (Some(length), usize::try_from(length).unwrap_or(usize::MAX)),
            Body::Nothing | Body::Chunked | Body::Tunnel => (None, bounds.body),
        };
        if largest > bounds.body {
            return Err(Fault::TOO_LONG);
        }
        let mut reader = BodyReader { data: Vec::new(), left: StatedLength(length), largest, bounds, share };
        // HTTP/2 can announce a body of no bytes.
        if largest > 0 {
            reader.make_room(1)?;
        }
        Ok(reader)
    }

    /// Returns the whole body, after its last part has been added.
    ///
    /// # Errors
    /// If it was given up, because the bodies in memory are too large together.
    pub(super) fn end(mut self, trailers: TrailerLines) -> Result<ReadBody, Fault> {
        self.share.keep()?;
        let counted = CountedBytes { data: self.data, _share: self.share };
        Ok(ReadBody { data: Bytes::from_owner(counted), rest: SmallVec::new(), is_changed: false, trailers })
    }

    /// Returns what ends when the body must be given up, once.
    pub(super) fn given_up(&mut self) -> impl Future<Output = InspectedFull> + use<> {
        self.share.given_up()
    }

    /// Adds the next part of the body, without trailers.
    ///
    /// # Errors
    /// If the body is too long, or differs from its stated length. Or if the bodies in memory are too large together.
    pub(super) fn add(&mut self, part: &BodyPart) -> Result<(), Fault> {
        self.left.count(part).map_err(|_| Fault::LENGTH_MISMATCH)?;
        self.make_room(part.data.len())?;
        self.data.extend_from_slice(&part.data);
        Ok(())
    }

    /// Makes room for `more` bytes. The buffer is doubled when it is full, but is never larger than the body may be.
    fn make_room(&mut self, more: usize) -> Result<(), Fault> {
        let needed = self.data.len().saturating_add(more);
        if needed > self.largest {
            return Err(Fault::TOO_LONG);
        }
        if needed <= self.data.capacity() {
            return Ok(());
        }
        let capacity = needed.max(self.data.capacity().saturating_mul(2)).max(FIRST_BUFFER).min(self.largest);
        self.share.raise_to(capacity, self.bounds.total)?;
        self.data.reserve_exact(capacity - self.data.len());
        Ok(())
    }
}

impl From<InspectedFull> for Fault {
    fn from(_: InspectedFull) -> Fault {
        Fault::Own(503, "too many request bodies are in memory")
    }
}

impl ReadBody {
    /// Appends the next part of at most `most` bytes to `data`, or the trailers to `trailers` after the last part.
    pub(super) fn append_next(&mut self, data: &mut Vec<u8>, most: usize, trailers: &mut Vec<u8>) -> BodyRead {
        let part = self.next_data(most);
        if part.is_empty() {
            trailers.append(&mut self.trailers);
            return BodyRead::End;
        }
        data.extend_from_slice(&part);
        BodyRead::Data
    }

    /// Returns the next part of at most `most` bytes. The last part also has the end of the body, with its trailers.
    pub(super) fn next_part(&mut self, most: usize) -> BodyPart {
        let data = self.next_data(most);
        let end = self.is_empty().then(|| std::mem::take(&mut self.trailers));
        BodyPart { data, end }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.data.is_empty() && self.rest.is_empty()
    }

    /// Returns whether the body differs from the one that the client has sent.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Returns the number of bytes that have not been sent.
    pub(super) fn len(&self) -> usize {
        self.data.len() + self.rest.iter().map(Bytes::len).sum::<usize>()
    }

    /// Changes the body so that it asks for the usage of its stream. Does nothing if `question` was made for another
    /// body.
    pub(super) fn ask_for_usage(&mut self, question: &UsageQuestion) {
        let Some(AskingBody { before, question, comma, after }) = question.ask(&self.data) else { return };
        let (before, after) = (self.data.slice_ref(before), self.data.slice_ref(after));
        let added = [comma, question].map(|text| Bytes::from_static(text.as_bytes()));
        self.rest = std::iter::once(after).chain(added).filter(|part| !part.is_empty()).collect();
        self.data = before;
        self.is_changed = true;
    }

    fn next_data(&mut self, most: usize) -> Bytes {
        if self.data.is_empty()
            && let Some(next) = self.rest.pop()
        {
            self.data = next;
        }
        self.data.split_to(most.min(self.data.len()))
    }
}

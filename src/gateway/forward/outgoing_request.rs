//! A request as it goes to the upstream, the same for every attempt and protocol.

use super::request_head::ReceivedHead;
use crate::gateway::server::body_part::HasBody;
use crate::gateway::server::http1::request_head::{Body, Size};

/// A request as all attempts send it to the upstream, with the largest sizes of its body and of the response's head.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutgoingRequest<'h> {
    pub head: ReceivedHead<'h>,
    /// The largest allowed head of the response.
    pub size: Size,
    /// The longest allowed body of the request, in bytes. `None` if the route does not bound the body.
    pub body_left: Option<u64>,
    pub expects_continue: bool,
}

impl OutgoingRequest<'_> {
    pub(super) fn has_body(&self) -> HasBody {
        if matches!(self.head.body, Body::Chunked | Body::Length(_)) { HasBody::Yes } else { HasBody::No }
    }
}

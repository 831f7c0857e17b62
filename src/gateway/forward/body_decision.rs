//! Reads the body of a request whose rules need it, and decides about the request.

use http::Version;
use http::header::EXPECT;

use super::exchange::ReceivedExchange;
use super::fault::Fault;
use super::forwarding::ForwardingClient;
use super::read_body::{BodyReader, ReadBody, ReadBounds};
use super::request_head::ReceivedHead;
use crate::gateway::enforcement::DecisionFindings;
use crate::gateway::enforcement::open_decision::OpenDecision;
use crate::gateway::server::http1::request_head::Body;
use crate::gateway::server::request_client::WaitEnd;
use crate::gateway::state::snapshot::Snapshot;
use request::body_values::{AmbiguousBody, BodyKind, BodyValues, is_coded};
use request::request::Request;

/// Returns whether a body follows this head that can be read.
pub(super) fn has_body(head: ReceivedHead<'_>) -> bool {
    matches!(head.body, Body::Length(_) | Body::Chunked)
}

/// Decides about a request whose rules need its body. Returns the decision, and the body if it was read.
///
/// # Errors
/// If the body cannot be read, or the client leaves.
pub(super) async fn decide_with_body<C: ForwardingClient>(
    client: &mut C,
    received: &ReceivedExchange<'_>,
    head: ReceivedHead<'_>,
    snapshot: &Snapshot,
    request: &Request<'_>,
    mut open: Box<OpenDecision>,
) -> Result<(DecisionFindings, Option<Box<ReadBody>>), Fault> {
    let gateway = &received.forwarder.gateway;
    let kind = BodyKind::of(request.head);
    let (mut values, mut body) = (BodyValues::default(), None);
    loop {
        let needed = open.needed();
        let read = match kind {
            Ok(kind) if !kind.may_have_any(needed) => values.note_missing(needed),
            Ok(_) if is_coded(request.head) => Err(AmbiguousBody),
            Ok(kind) => {
                let body = match &mut body {
                    Some(body) => body,
                    none => none.insert(read_body(client, received, head, bounds(snapshot, &open)).await?),
                };
                values.read(kind, &body.data, needed)
            }
            Err(ambiguous) => Err(ambiguous),
        };
        let known = request.with_body(Some(&values));
        let decided = open.resume(gateway, snapshot, &known, read);
        match client.until(WaitEnd::RequestEnds, decided).await? {
            Ok(findings) => return Ok((findings, body.map(Box::new))),
            Err(again) => open = again,
        }
    }
}

/// Reads the body of a request. If the client waits for `100 Continue`, this is sent first.
async fn read_body<C: ForwardingClient>(
    client: &mut C,
    received: &ReceivedExchange<'_>,
    head: ReceivedHead<'_>,
    bounds: ReadBounds,
) -> Result<ReadBody, Fault> {
    let share = received.forwarder.gateway.inspected_bytes.share();
    let reader = BodyReader::new(head.body, bounds, share)?;
    // HTTP/1.0 has no interim responses.
    if received.head.version != Version::HTTP_10 && received.head.headers.contains_key(EXPECT) {
        client.write_continue().await?;
    }
    client.read_request_body(reader).await
}

/// Returns the bounds of the body, which the route may set.
fn bounds(snapshot: &Snapshot, open: &OpenDecision) -> ReadBounds {
    let bounds = &snapshot.config.bounds;
    let route = open.destination().forwarding.as_ref().map(|forwarding| &forwarding.overrides);
    let own = |bytes: Option<u64>| bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let most = own(route.and_then(|route| route.inspect_bytes)).unwrap_or(bounds.inspect_bytes);
    let allowed = own(route.and_then(|route| route.body_bytes)).unwrap_or(usize::MAX);
    ReadBounds { body: most.min(allowed), total: bounds.inspect_total }
}

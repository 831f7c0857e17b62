//! Reads the body of a request whose rules need it, and decides about the request.

use std::pin::pin;

use http::header::AUTHORIZATION;
use http::request::Parts;

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
use llm::request::RequestReader;
use request::attribute::Attribute;
use request::body_reading::{BodyReading, JsonPlaces};
use request::body_values::{AmbiguousBody, BodyKind, BodyValues, ReadValue, is_coded};
use request::llm_model::{format_of, model_in_path};
use request::model_request::{ModelBody, ModelRequest};
use request::request::Request;
use rules::body_plan::NeededFromBody;

/// The longest body in which values are read, in bytes. The setting `inspect_bytes` replaces this bound.
const MOST_OF_VALUES: usize = 1 << 20;
/// The longest body of a request to a language model, in bytes. `inspect_bytes` replaces this bound too.
const MOST_OF_MODEL: usize = 32 << 20;

/// The number of bytes of a body that are read before the other requests of the thread have a turn.
const AT_ONCE: usize = 256 << 10;

/// Returns whether a body that can be read follows this head.
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
        let NeededFromBody { attributes, model } = open.needed();
        let needs_model = *model && kind == Ok(BodyKind::Json);
        if *model && !needs_model {
            values.note_model(ModelBody::Other);
        }
        let read = match kind {
            Ok(kind) if !needs_model && !kind.may_have_any(attributes) => values.note_missing(attributes),
            Ok(_) if is_coded(request.head) => Err(AmbiguousBody),
            Ok(kind) => {
                let body = match &mut body {
                    Some(body) => body,
                    none => {
                        none.insert(read_body(client, received, head, bounds(snapshot, &open, request.head)).await?)
                    }
                };
                let model = match needs_model {
                    true => read_model(body, snapshot, &open, request).await.map(|model| values.note_model(model)),
                    false => Ok(()),
                };
                match model {
                    Ok(()) => {
                        let places = snapshot.config.rules.json_places();
                        read_values(kind, &body.data, attributes, places).await.map(|read| values.note(read))
                    }
                    Err(ambiguous) => Err(ambiguous),
                }
            }
            Err(ambiguous) => Err(ambiguous),
        };
        let known = request.with_body(Some(&values));
        let decided = open.resume(gateway, snapshot, &known, read);
        let decided = client.until(WaitEnd::RequestEnds, pin!(decided)).await?;
        match decided {
            Ok(findings) => {
                let question = findings.held.costs().and_then(|costs| costs.usage_question());
                if let (Some(body), Some(question)) = (&mut body, question) {
                    body.ask_for_usage(question);
                }
                return Ok((findings, body.map(Box::new)));
            }
            Err(again) => open = again,
        }
    }
}

/// Reads what the body of a request asks of a language model.
///
/// # Errors
/// If the body is not a JSON object that can be read in only one way.
async fn read_model(
    body: &ReadBody,
    snapshot: &Snapshot,
    open: &OpenDecision,
    request: &Request<'_>,
) -> Result<ModelBody, AmbiguousBody> {
    let Some(format) = format_of(request.head).filter(|_| !body.is_empty()) else { return Ok(ModelBody::Other) };
    let mut reader = RequestReader::new(format, u64::MAX);
    for piece in body.data.chunks(AT_ONCE) {
        reader.push(piece);
        if piece.len() == AT_ONCE {
            tokio::task::yield_now().await;
        }
    }
    let mut read = reader.finish().map_err(|_| AmbiguousBody)?;
    if let Some(model) = model_in_path(request.head) {
        read.model = Some(model);
    }
    let llm = open.destination().llm(&snapshot.config);
    let is_signed = is_signed(request.head);
    let model = ModelRequest { body: read, bytes_per_token: llm.bytes_per_token, media: llm.media, is_signed };
    Ok(ModelBody::Read(Box::new(model)))
}

/// Reads the values of these attributes.
///
/// # Errors
/// If the body can be read in more than one way.
async fn read_values(
    kind: BodyKind,
    body: &[u8],
    attributes: &[Attribute],
    places: &JsonPlaces,
) -> Result<Vec<ReadValue>, AmbiguousBody> {
    let mut reading = BodyReading::new(kind, body, attributes, places)?;
    while reading.step(AT_ONCE) {
        tokio::task::yield_now().await;
    }
    reading.finish()
}

/// Returns whether the head has a digest or a signature of the body.
fn is_signed(head: &Parts) -> bool {
    let is_of_aws = head.headers.get(AUTHORIZATION).is_some_and(|value| value.as_bytes().starts_with(b"AWS4-"));
    let digests = ["content-digest", "repr-digest", "digest", "content-md5", "x-amz-content-sha256"];
    is_of_aws || digests.iter().any(|name| head.headers.contains_key(*name))
}

/// Reads the body of a request. If the client waits for `100 Continue`, this is sent first.
async fn read_body<C: ForwardingClient>(
    client: &mut C,
    received: &ReceivedExchange<'_>,
    head: ReceivedHead<'_>,
    bounds: ReadBounds,
) -> Result<ReadBody, Fault> {
    let share = received.forwarder.gateway.inspected_bytes.share(received.client.identity());
    let mut reader = BodyReader::new(head.body, bounds, share)?;
    client.write_expected_continue(&received.head).await?;
    let given_up = reader.given_up();
    tokio::select! {
        biased;
        read = client.read_request_body(reader) => read,
        full = given_up => Err(full.into()),
    }
}

/// Returns the largest sizes of bodies in memory. The route may set the size of one body.
fn bounds(snapshot: &Snapshot, open: &OpenDecision, head: &Parts) -> ReadBounds {
    let bounds = &snapshot.config.bounds;
    let route = open.destination().forwarding.as_ref().map(|forwarding| &forwarding.overrides);
    let own = |bytes: Option<u64>| bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    // The body is read once. So the larger bound applies even if the rules need only a value now.
    let may_need_model = snapshot.config.rules.counts_models() && format_of(head).is_some();
    let default = if may_need_model { MOST_OF_MODEL } else { MOST_OF_VALUES };
    let most = own(route.and_then(|route| route.inspect_bytes)).or(bounds.inspect_bytes).unwrap_or(default);
    let allowed = own(route.and_then(|route| route.body_bytes)).unwrap_or(usize::MAX);
    ReadBounds { body: most.min(allowed), total: bounds.inspect_total }
}

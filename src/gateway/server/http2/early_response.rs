//! Answers the streams whose requests never reach the application: the head is invalid, or the client has too many
//! streams.

use bytes::Bytes;
use h2::server::SendResponse;
use http::request::Parts;
use http::{HeaderValue, Method, Response};

use super::client::own_head;
use crate::gateway::response::problem::{ProblemResponse, Recipient};
use crate::gateway::response::request_id;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::http1::early_response::{HeadRejection, count};
use crate::gateway::server::rejected_head;
use crate::gateway::server::server_state::ServerState;
use base::time::Micros;
use decision::refusal::Refusal;

/// The connection of a request that is answered early, and the state of its server.
#[derive(Clone, Copy)]
pub(super) struct Connection<'c> {
    pub state: &'c ServerState,
    pub handle: &'c ConnectionHandle,
}

/// Answers a request whose head is rejected, with the status for this rejection.
pub(super) fn reject_head(
    connection: Connection<'_>,
    respond: &mut SendResponse<Bytes>,
    head: &Parts,
    rejection: HeadRejection,
) {
    let (refusal, detail) = (Refusal::from(rejection), rejection.detail());
    let request_id = request_id::keep_or_make(head.headers.get(request_id::NAME));
    log::debug!(code = refusal.status, detail, request_id = request_id.to_str().unwrap_or_default(); "head refused");
    connection.state.metrics.count_refusal(refusal.reason);
    answer(connection, respond, head, &ProblemResponse::refusal(&refusal), &request_id);
}

/// Answers 503 to a request whose client has too many requests under way.
pub(super) fn reject_stream(connection: Connection<'_>, respond: &mut SendResponse<Bytes>, head: &Parts) {
    let request_id = request_id::keep_or_make(head.headers.get(request_id::NAME));
    answer(connection, respond, head, &ProblemResponse::fault(503), &request_id);
}

fn answer(
    Connection { state, handle }: Connection<'_>,
    respond: &mut SendResponse<Bytes>,
    head: &Parts,
    response: &ProblemResponse<'_>,
    request_id: &HeaderValue,
) {
    let snapshot = state.snapshot.load();
    let pages = snapshot.config.error_pages.as_ref();
    let page = pages.and_then(|pages| pages.find(None, response.status())).map(|(_, page)| page);
    let cors = rejected_head::cors(&snapshot.config, handle, head);
    // A proxy that asks for a decision gets no gRPC refusal, because it would take the status 200 for a permission.
    let recipient = Recipient::at(&snapshot.config, handle.listener());
    let format = snapshot.config.error_formats.of_file.filter(|_| recipient == Recipient::Client);
    let response = &ProblemResponse { page, format, cors: cors.as_ref(), recipient, ..*response };
    let own = response.response(head, request_id);
    let answer = own_head(&own, request_id);
    let body = if head.method == Method::HEAD { Bytes::new() } else { own.body };
    count(state, response, own.status, head.method.as_str(), request_id, Micros::default(), body.len());
    if let Err(error) = send(respond, answer, body) {
        log::debug!(error:% = error; "response not written");
    }
}

fn send(respond: &mut SendResponse<Bytes>, head: Response<()>, body: Bytes) -> Result<(), h2::Error> {
    let mut stream = respond.send_response(head, body.is_empty())?;
    // The body has some hundred bytes, so it is sent without waiting for the client to read.
    if body.is_empty() { Ok(()) } else { stream.send_data(body, true) }
}

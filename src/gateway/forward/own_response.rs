//! Makes the gateway's own responses to proxied requests, and writes them.

use bytes::Bytes;

use super::exchange::{DecidedStage, ReceivedExchange};
use super::fault::Fault;
use super::request_target::RequestTarget;
use super::response_report::{ResponseReport, ResponseSource};
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::response::preflight;
use crate::gateway::response::problem::ProblemResponse;
use crate::gateway::response::route_answer::{self, AnswerFields};
use crate::gateway::server::request_client::{AnsweredRequest, RequestClient, Rest, Reuse};
use rules::route::redirect::RedirectedRequest;
use rules::route::target::RouteAnswer;

pub(super) fn problem(problem: &ProblemResponse<'_>, received: &ReceivedExchange<'_>) -> OwnResponse {
    problem.response(&received.head, &received.request_id)
}

/// Makes the response to a CORS preflight. `None` if CORS does not apply to the request.
pub(super) fn preflight(received: &ReceivedExchange<'_>) -> Option<OwnResponse> {
    Some(preflight::response(received.cors()?, &received.request_id))
}

/// Makes the response that shows a client what its limits have left. `body` is JSON.
pub(super) fn usage(body: Bytes, stage: &DecidedStage<'_, '_>) -> OwnResponse {
    let mut response = OwnResponse { body, ..OwnResponse::new(200) };
    response.fields.add("Content-Type", b"application/json");
    response.fields.add("Cache-Control", b"no-store");
    let fields = AnswerFields {
        request_id: &stage.received.request_id,
        rate_limits: stage.decided.rate_limits.as_deref(),
        changes: None,
        cors: stage.received.cors(),
    };
    route_answer::complete(&mut response, fields);
    response
}

/// Makes the response with which a route answers in the place of an upstream: a fixed response or a redirect.
///
/// # Errors
/// If the request has no host, and the redirect needs one.
pub(super) fn of_route(
    answer: &RouteAnswer,
    stage: &DecidedStage<'_, '_>,
    target: &[u8],
) -> Result<OwnResponse, Fault> {
    let DecidedStage { received, decided, .. } = stage;
    let mut response = match answer {
        RouteAnswer::Respond(fixed) => route_answer::fixed(fixed),
        RouteAnswer::Redirect(to) => {
            let head = &received.head;
            let target = RequestTarget::parse(target);
            let authority = match head.uri.authority() {
                Some(authority) => authority.as_str().as_bytes(),
                None => head.headers.get(http::header::HOST).map_or(&b""[..], |host| host.as_bytes()),
            };
            let scheme = received.scheme_source().scheme(&head.headers).name();
            let request = RedirectedRequest { scheme, authority, path: target.path, query: target.query };
            // A request of HTTP/1.0 may have no `Host`. There may then be no address to redirect to.
            let location = to.location(request).ok_or(Fault::Own(400, "no address to redirect to"))?;
            route_answer::redirection(to.code, &location)
        }
    };
    let fields = AnswerFields {
        request_id: &received.request_id,
        rate_limits: decided.rate_limits.as_deref(),
        changes: decided.field_changes.as_deref().map(|changes| &changes.response),
        cors: received.cors(),
    };
    route_answer::complete(&mut response, fields);
    Ok(response)
}

/// Writes a response of the gateway to the client. Returns whether the connection is kept for another request. `rest`
/// says whether the rest of this request can be read; only then can another request follow.
pub(super) async fn write<C: RequestClient>(
    client: &mut C,
    received: &ReceivedExchange<'_>,
    report: &mut ResponseReport,
    source: ResponseSource,
    response: OwnResponse,
    rest: Rest,
) -> Reuse {
    report.begin(response.status, source);
    let reuse = if received.forwarder.gateway.is_draining() { Reuse::Closed } else { Reuse::Kept };
    let request = AnsweredRequest { head: &received.head, request_id: &received.request_id, reuse };
    let written = client.write_own(request, response, rest).await;
    report.bytes += written.body_bytes;
    written.reuse
}

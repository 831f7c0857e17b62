//! Makes the gateway's own responses to proxied requests, and writes them.

use http::Version;

use super::exchange::Exchange;
use super::fault::Fault;
use super::request_target::RequestTarget;
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::response::preflight;
use crate::gateway::response::problem::ProblemResponse;
use crate::gateway::response::route_answer::{self, AnswerFields};
use crate::gateway::server::request_client::{AnsweredRequest, RequestClient, Rest, Reuse};
use request::scheme::SchemeSource;
use rules::route::redirect::RedirectedRequest;
use rules::route::target::RouteAnswer;

pub(super) fn problem(problem: &ProblemResponse<'_>, exchange: &Exchange<'_>) -> OwnResponse {
    problem.response(&exchange.head, &exchange.request_id)
}

/// Makes the response to a CORS preflight. `None` if CORS does not apply to the request.
pub(super) fn preflight(exchange: &Exchange<'_>) -> Option<OwnResponse> {
    Some(preflight::response(exchange.cors()?, &exchange.request_id))
}

/// Makes the response with which a route answers in the place of an upstream: a fixed response or a redirect.
///
/// # Errors
/// If the request has no host, and the redirect needs one.
pub(super) fn of_route(
    answer: &RouteAnswer,
    exchange: &Exchange<'_>,
    target: &[u8],
    scheme: SchemeSource,
) -> Result<OwnResponse, Fault> {
    let mut response = match answer {
        RouteAnswer::Respond(fixed) => route_answer::fixed(fixed),
        RouteAnswer::Redirect(to) => {
            let head = &exchange.head;
            let target = RequestTarget::parse(target);
            let authority = match head.uri.authority() {
                Some(authority) => authority.as_str().as_bytes(),
                None => head.headers.get(http::header::HOST).map_or(&b""[..], |host| host.as_bytes()),
            };
            let scheme = scheme.scheme(&head.headers).name();
            let request = RedirectedRequest { scheme, authority, path: target.path, query: target.query };
            // A request of HTTP/1.0 may have no `Host`. There may then be no address to redirect to.
            let location = to.location(request).ok_or(Fault::Own(400, "no address to redirect to"))?;
            route_answer::redirection(to.code, &location)
        }
    };
    let fields = AnswerFields {
        request_id: &exchange.request_id,
        rate_limits: exchange.rate_limits.as_deref(),
        changes: exchange.field_changes.as_deref().map(|changes| &changes.response),
        cors: exchange.cors(),
    };
    route_answer::complete(&mut response, fields);
    Ok(response)
}

/// Writes a response of the gateway to the client, and reads the rest of the request as `rest` says. Returns whether another
/// request may follow on the connection.
pub(super) async fn write<C: RequestClient>(
    client: &mut C,
    exchange: &mut Exchange<'_>,
    response: OwnResponse,
    rest: Rest,
) -> Reuse {
    exchange.report.code = Some(response.status);
    let reuse = if exchange.forwarder.gateway.is_draining() { Reuse::Closed } else { Reuse::Kept };
    let request = AnsweredRequest { head: &exchange.head, request_id: &exchange.request_id, reuse };
    let written = client.write_own(request, response, rest).await;
    exchange.report.response_bytes += written.body_bytes;
    written.reuse
}

/// Whether the request came over HTTP/1.1, so that its client understands chunks and interim responses.
pub(super) fn is_http11(exchange: &Exchange<'_>) -> bool {
    exchange.head.version == Version::HTTP_11
}

//! Answers a request whose route has an answer in the place of an upstream.

use http::header::HOST;
use pingora::proxy::Session;
use pingora::{ErrorType, OkOrErr, Result};

use super::Proxy;
use super::exchange::Exchange;
use super::request_target::RequestTarget;
use crate::gateway::response::problem::Reuse;
use crate::gateway::response::route_answer::{AnswerFields, redirect, respond};
use request::scheme::{Scheme, SchemeSource};
use rules::route::redirect::RedirectedRequest;
use rules::route::target::RouteAnswer;

/// Answers a request that has been let through, if its route does that by itself. Returns whether it did.
///
/// # Errors
/// If the client has gone, or the request lacks what the new address needs.
pub async fn answer(
    proxy: &Proxy,
    session: &mut Session,
    exchange: &mut Exchange,
    scheme: SchemeSource,
) -> Result<bool> {
    if exchange.upstream().is_some() {
        return Ok(false);
    }
    let scheme = scheme.scheme(&session.req_header().headers);
    // What is rare is on the heap, so that it does not enlarge every request's task.
    Box::pin(write(session, exchange, scheme, proxy.reuse())).await
}

async fn write(session: &mut Session, exchange: &mut Exchange, scheme: Scheme, reuse: Reuse) -> Result<bool> {
    let Some(destination) = exchange.destination.clone() else { return Ok(false) };
    let Some(answer) = &destination.answer else { return Ok(false) };
    let fields = AnswerFields {
        request_id: &exchange.request_id,
        rate_limits: exchange.fields.as_deref(),
        pending: exchange.pending_fields(),
        changes: exchange.field_changes.as_deref().map(|changes| &changes.response),
        cors: exchange.cors(),
        reuse,
    };
    match answer {
        RouteAnswer::Respond(fixed) => respond(session, fixed, fields).await?,
        RouteAnswer::Redirect(to) => {
            let head = session.req_header();
            let RequestTarget { path, query } = RequestTarget::of(head);
            let authority = match head.uri.authority() {
                Some(authority) => authority.as_str().as_bytes(),
                None => head.headers.get(HOST).map_or(&b""[..], |host| host.as_bytes()),
            };
            let request = RedirectedRequest { scheme: scheme.name(), authority, path, query };
            // Without a `Host`, which only HTTP/1.0 allows, there may be nowhere to go.
            let location = to.location(request).or_err(ErrorType::HTTPStatus(400), "no address to redirect to")?;
            redirect(session, to.code, location, fields).await?;
        }
    }
    exchange.answered = true;
    Ok(true)
}

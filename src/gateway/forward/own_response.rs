//! Makes the gateway's own responses, and writes them to a client of HTTP/1.x.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{Method, Version};
use pingora::http::ResponseHeader;
use pingora::protocols::http::date::get_cached_date;

use super::client::Client;
use super::exchange::Exchange;
use super::fault::Fault;
use super::request_client::RequestClient;
use super::request_target::RequestTarget;
use super::response_head::{Reuse, connection, status_line};
use crate::gateway::response::preflight;
use crate::gateway::response::problem::ProblemResponse;
use crate::gateway::response::route_answer::{self, AnswerFields};
use crate::gateway::server::http1::exchange_io::{BodyRead, ClientFault};
use base::time;
use request::scheme::SchemeSource;
use rules::route::redirect::RedirectedRequest;
use rules::route::target::RouteAnswer;

/// How long the rest of a body is read for, before the connection is closed.
const DRAIN: Duration = Duration::from_secs(2);

/// Whether the rest of the request is read, so that another may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Drained,
    /// It could not be distinguished from a next request.
    Unread,
}

/// A response of the gateway itself.
#[derive(Debug)]
pub struct OwnResponse {
    pub header: ResponseHeader,
    pub body: Bytes,
}

impl OwnResponse {
    /// # Errors
    /// If the fields cannot be written.
    pub fn problem(problem: &ProblemResponse<'_>, exchange: &Exchange<'_>) -> pingora::Result<OwnResponse> {
        let (header, body) = problem.header(&exchange.head, &exchange.request_id, None)?;
        Ok(OwnResponse { header, body: body.into() })
    }

    /// The response to a preflight; `None` for another request.
    ///
    /// # Errors
    /// If the fields cannot be written.
    pub fn preflight(exchange: &Exchange<'_>) -> Option<pingora::Result<OwnResponse>> {
        let header = preflight::header(exchange.cors()?, &exchange.request_id, None);
        Some(header.map(|header| OwnResponse { header, body: Bytes::new() }))
    }

    /// What the route answers in the place of an upstream.
    ///
    /// # Errors
    /// If the request lacks what the new address needs.
    pub fn of_route(
        answer: &RouteAnswer,
        exchange: &Exchange<'_>,
        target: &[u8],
        scheme: SchemeSource,
    ) -> Result<OwnResponse, Fault> {
        let (mut header, body) = match answer {
            RouteAnswer::Respond(fixed) => (route_answer::response(fixed).map_err(own)?, fixed.body.clone()),
            RouteAnswer::Redirect(to) => {
                let head = &exchange.head;
                let target = RequestTarget::parse(target);
                let authority = match head.uri.authority() {
                    Some(authority) => authority.as_str().as_bytes(),
                    None => head.headers.get(http::header::HOST).map_or(&b""[..], |host| host.as_bytes()),
                };
                let scheme = scheme.scheme(&head.headers).name();
                let request = RedirectedRequest { scheme, authority, path: target.path, query: target.query };
                // Without a `Host`, which only HTTP/1.0 allows, there may be nowhere to go.
                let location = to.location(request).ok_or(Fault::Own(400, "no address to redirect to"))?;
                (route_answer::redirection(to.code, location).map_err(own)?, Bytes::new())
            }
        };
        let fields = AnswerFields {
            request_id: &exchange.request_id,
            rate_limits: exchange.rate_limits.as_deref(),
            pending: None,
            changes: exchange.field_changes.as_deref().map(|changes| &changes.response),
            cors: exchange.cors(),
        };
        route_answer::complete(&mut header, &body, fields).map_err(own)?;
        let body = if route_answer::has_length(&header) { body } else { Bytes::new() };
        Ok(OwnResponse { header, body })
    }
}

fn own(_: pingora::BError) -> Fault {
    Fault::Own(500, "response not made")
}

impl RequestClient for Client {
    fn poll_request_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        self.stream.poll_ends(cx)
    }

    fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        self.stream.poll_given_up(cx)
    }

    async fn write_own(&mut self, exchange: &mut Exchange<'_>, response: OwnResponse, rest: Rest) -> Reuse {
        write(self, exchange, response, rest).await
    }
}

async fn write(client: &mut Client, exchange: &mut Exchange<'_>, response: OwnResponse, rest: Rest) -> Reuse {
    let OwnResponse { header, body } = response;
    let status = header.status.as_u16();
    // A client that waits for 100 Continue will not send its body: there is nothing to read, and no way to know where the
    // next request begins.
    let is_complete = client.stream.refuse_tunnel() && client.stream.is_complete();
    let drains = rest == Rest::Drained && !exchange.head.headers.contains_key(EXPECT);
    let draining = exchange.forwarder.gateway.is_draining();
    let mut reuse = client.reuse;
    if draining || !(is_complete && rest == Rest::Drained || drains && !client.is_tunnel) {
        reuse = Reuse::Closed;
    }
    let mut out = Vec::with_capacity(512 + body.len());
    status_line(status, b"", &mut out);
    header.header_to_h1_wire(&mut out);
    for (name, value) in [(&b"Date"[..], get_cached_date().as_bytes()), (b"Connection", connection(reuse))] {
        for part in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"\r\n");
    if exchange.head.method != Method::HEAD {
        out.extend_from_slice(&body);
        exchange.report.response_bytes += body.len();
    }
    exchange.report.code = Some(status);
    if let Err(fault) = client.write_all(&out).await {
        log::debug!(error = Fault::from(fault).detail(); "response not written");
        return Reuse::Closed;
    }
    if reuse == Reuse::Kept
        && !client.stream.is_complete()
        && !time::timeout(DRAIN, drain(client)).await.unwrap_or(false)
    {
        return Reuse::Closed;
    }
    reuse
}

/// Reads the rest of a body. Returns whether its end was found.
async fn drain(client: &mut Client) -> bool {
    let (mut data, mut trailers) = (Vec::new(), Vec::new());
    loop {
        data.clear();
        match client.read_body(&mut data, &mut trailers).await {
            Ok(BodyRead::Data) => {}
            Ok(BodyRead::End) => return true,
            Err(_) => return false,
        }
    }
}

/// Whether the client can read chunks, and interim responses.
pub fn is_http11(exchange: &Exchange<'_>) -> bool {
    exchange.head.version == Version::HTTP_11
}

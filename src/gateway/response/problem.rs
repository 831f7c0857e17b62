//! Writes every response of the gateway itself: refusals, faults of the upstream, faults of the request.
//!
//! All have one shape: problem+json (RFC 9457) with the request's id and a stable reason, and nothing about our internals,
//! unless the operator has a text of their own.
//! gRPC requests are refused in gRPC's way. The connection stays usable wherever HTTP allows.

use std::io;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, EXPECT};
use http::request::Parts;
use http::{HeaderValue, Method};
use pingora::http::ResponseHeader;
use pingora::protocols::http::date::get_cached_date;
use pingora::proxy::Session;

use super::cors_fields::CorsFields;
use super::field_writer::FieldWriter;
use super::pending_fields::PendingFields;
use super::ratelimit_fields::RateLimitFields;
use super::response_fields::{ProblemFields, ResponseFields};
use config::{Config, RefuseWith};
use decision::cors::CorsAnswer;
use decision::error_pages::{ErrorPage, PlaceholderValues};
use decision::reason::Reason;
use decision::refusal::{ProblemType, Refusal};
use request::grpc_timeout::is_grpc;

/// A response of the gateway itself.
#[derive(Clone, Copy, Debug)]
pub struct ProblemResponse<'a> {
    pub cause: Cause<'a>,
    pub fields: Option<&'a RateLimitFields>,
    /// `None`: the body is a problem document.
    pub page: Option<&'a ErrorPage>,
    pub cors: Option<&'a CorsAnswer>,
    pub recipient: Recipient,
}

/// The reader of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// The client of the request.
    Client,
    /// Another proxy, which asks about a request of its client. It reads the status, also where the client would not: to gRPC a
    /// refusal is 200.
    Edge(RefuseWith),
}

impl Recipient {
    /// The reader of the responses that the listener with this index sends before the request is known.
    pub fn at(config: &Config, listener: usize) -> Recipient {
        config.decide(listener).map_or(Recipient::Client, |settings| Recipient::Edge(settings.refuse_with))
    }
}

/// The reason why the gateway responds itself.
#[derive(Clone, Copy, Debug)]
pub enum Cause<'a> {
    Refusal(&'a Refusal),
    /// A fault that no rule has caused, such as an upstream that is away; with its status.
    Fault(u16),
}

impl<'a> ProblemResponse<'a> {
    /// A problem document for a client that is no page of another origin.
    pub fn of(cause: Cause<'a>, fields: Option<&'a RateLimitFields>) -> ProblemResponse<'a> {
        ProblemResponse { cause, fields, page: None, cors: None, recipient: Recipient::Client }
    }

    pub fn refusal(refusal: &'a Refusal) -> ProblemResponse<'a> {
        ProblemResponse::of(Cause::Refusal(refusal), None)
    }

    pub fn fault(status: u16) -> ProblemResponse<'a> {
        ProblemResponse::of(Cause::Fault(status), None)
    }

    pub fn status(&self) -> u16 {
        match self.cause {
            Cause::Refusal(refusal) => refusal.status,
            Cause::Fault(status) => status,
        }
    }

    /// The status as it is sent.
    pub fn sent_status(&self) -> u16 {
        match (self.recipient, self.cause) {
            (Recipient::Edge(RefuseWith::Forbidden), Cause::Refusal(refusal)) if refusal.status != 401 => 403,
            _ => self.status(),
        }
    }

    /// `None` for a fault.
    pub fn reason(&self) -> Option<Reason> {
        match self.cause {
            Cause::Refusal(refusal) => Some(refusal.reason),
            Cause::Fault(_) => None,
        }
    }

    fn placeholder_values<'i>(&self, request_id: &'i HeaderValue) -> PlaceholderValues<'i> {
        let request_id = request_id.to_str().unwrap_or_default();
        PlaceholderValues { status: self.status(), request_id, retry_after: self.retry_after() }
    }

    fn retry_after(&self) -> Option<u64> {
        match self.cause {
            Cause::Refusal(refusal) => refusal.retry_after,
            Cause::Fault(_) => None,
        }
    }

    /// Responds to the request. The fields that every response has are `pending` for its head, or go into its header where
    /// nothing is pending.
    ///
    /// # Errors
    /// If the client has gone, or the fields cannot be written.
    pub async fn write(
        &self,
        session: &mut Session,
        request_id: &HeaderValue,
        pending: Option<&PendingFields>,
        reuse: Reuse,
    ) -> pingora::Result<()> {
        prepare_connection(session, reuse);
        let (header, body) = self.header(session.req_header(), request_id, pending)?;
        let empty = body.is_empty() || session.req_header().method == Method::HEAD;
        session.write_response_header(Box::new(header), empty).await?;
        if !empty {
            session.write_response_body(Some(body.into()), true).await?;
        }
        Ok(())
    }

    /// The header of the response, and its body, for a stream of HTTP/2 whose request reaches no session.
    ///
    /// # Errors
    /// If the fields cannot be written.
    pub fn to_header(self, head: &Parts, request_id: &HeaderValue) -> pingora::Result<(ResponseHeader, String)> {
        let (mut header, body) = self.header(head, request_id, None)?;
        header.insert_header(DATE, get_cached_date())?;
        Ok((header, body))
    }

    /// The header of the response, and its body, without the fields of the connection.
    ///
    /// # Errors
    /// If the fields cannot be written.
    pub fn header(
        &self,
        head: &Parts,
        request_id: &HeaderValue,
        pending: Option<&PendingFields>,
    ) -> pingora::Result<(ResponseHeader, String)> {
        let (mut header, body) = match self.recipient {
            Recipient::Client if is_grpc(head) => (self.grpc_header()?, String::new()),
            // Its client shows no page, and the other proxy may make a text of the status of it.
            Recipient::Edge(_) if is_grpc(head) => ProblemResponse { page: None, ..*self }.plain(request_id)?,
            Recipient::Client | Recipient::Edge(_) => self.plain(request_id)?,
        };
        self.response_fields(request_id).add(&mut header, pending)?;
        Ok((header, body))
    }

    /// The response as HTTP/1 text, for a connection on which no request could be read, and which is closed after it.
    ///
    /// # Errors
    /// If the status is not one of HTTP.
    pub fn to_http1(self, method: &str, request_id: &HeaderValue) -> io::Result<Vec<u8>> {
        let (header, body) = self.plain(request_id).map_err(io::Error::other)?;
        let mut fields = self.response_fields(request_id).to_http1();
        let (Ok(()), Ok(())) =
            (fields.field("Date", &get_cached_date()), fields.field("Connection", &HeaderValue::from_static("close")));
        let mut bytes =
            format!("HTTP/1.1 {} {}\r\n", header.status.as_u16(), title(header.status.as_u16())).into_bytes();
        header.header_to_h1_wire(&mut bytes);
        bytes.extend_from_slice(fields.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        if method != "HEAD" {
            bytes.extend_from_slice(body.as_bytes());
        }
        Ok(bytes)
    }

    /// The fields that every response of the gateway has, whatever its body.
    fn response_fields<'f>(&'f self, request_id: &'f HeaderValue) -> ResponseFields<'f> {
        let problem = ProblemFields { status: self.status(), reason: self.reason(), retry_after: self.retry_after() };
        let rate_limits = self.fields.map(RateLimitFields::unmerged);
        ResponseFields { request_id, problem: Some(problem), rate_limits, cors: self.cors.map(CorsFields::all) }
    }

    fn plain(&self, request_id: &HeaderValue) -> pingora::Result<(ResponseHeader, String)> {
        let mut header = ResponseHeader::build(self.sent_status(), Some(4))?;
        let (content_type, body) = match self.page {
            Some(page) => (page.content_type.clone(), page.body.fill(self.placeholder_values(request_id))),
            None => (HeaderValue::from_static("application/problem+json"), self.body(request_id)),
        };
        header.insert_header(CONTENT_TYPE, content_type)?;
        header.insert_header(CONTENT_LENGTH, HeaderValue::from(body.len()))?;
        if self.recipient == Recipient::Edge(RefuseWith::Forbidden) {
            header.insert_header("X-Tollgate-Status", HeaderValue::from(self.status()))?;
        }
        for (name, value) in self.page.iter().flat_map(|page| &page.headers) {
            header.append_header(name.clone(), value.clone())?;
        }
        Ok((header, body))
    }

    /// <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>: a response of trailers only, always HTTP 200.
    fn grpc_header(&self) -> pingora::Result<ResponseHeader> {
        let code = match self.status() {
            400 => "3",
            401 => "16",
            403 => "7",
            404 => "12",
            413 | 429 => "8",
            502..=504 => "14",
            _ => "2",
        };
        let mut header = ResponseHeader::build(200, Some(6))?;
        header.insert_header(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))?;
        header.insert_header(CONTENT_LENGTH, HeaderValue::from_static("0"))?;
        header.insert_header("grpc-status", HeaderValue::from_static(code))?;
        let message = self.reason().map_or_else(|| title(self.status()), Reason::name);
        header.insert_header("grpc-message", HeaderValue::from_static(message))?;
        Ok(header)
    }

    fn body(&self, request_id: &HeaderValue) -> String {
        const TYPES: &str = "https://iana.org/assignments/http-problem-types#";
        // An id that is not plain text was replaced when the request arrived.
        let id = request_id.to_str().unwrap_or_default();
        let status = self.status();
        let problem = match self.cause {
            Cause::Refusal(refusal) => &refusal.problem,
            Cause::Fault(_) => &ProblemType::Blank,
        };
        let (kind, title, violated) = match problem {
            ProblemType::Blank => {
                let title = title(status);
                let rest = format!(r#""status":{status},"request_id":"{id}"}}"#);
                return format!("{{\"type\":\"about:blank\",\"title\":\"{title}\",{rest}\n");
            }
            ProblemType::QuotaExceeded { violated } => {
                ("quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded", violated)
            }
            ProblemType::ReducedCapacity { violated } => (
                "temporary-reduced-capacity",
                "Request cannot be satisfied due to temporary server capacity constraints",
                violated,
            ),
        };
        // Names of rules have no character that JSON would escape.
        let violated: Vec<String> = violated.iter().map(|name| format!("\"{name}\"")).collect();
        let violated = violated.join(",");
        let resets_at = match self.cause {
            Cause::Refusal(Refusal { resets_at: Some(moment), .. }) => format!(r#""resets_at":"{moment}","#),
            _ => String::new(),
        };
        let rest = format!(r#""status":{status},"violated-policies":[{violated}],{resets_at}"request_id":"{id}"}}"#);
        format!("{{\"type\":\"{TYPES}{kind}\",\"title\":\"{title}\",{rest}\n")
    }
}

/// Whether the connection may be used for a next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    Allowed,
    /// The response says `Connection: close`.
    Close,
}

/// Keeps the connection for the next request if the rest of this one can be read and discarded soon.
pub fn prepare_connection(session: &mut Session, reuse: Reuse) {
    if reuse == Reuse::Close {
        session.set_keepalive(None);
    }
    // A client that waits for 100 Continue will not send its body: there is nothing to read, and no way to know where the
    // next request begins.
    if !session.req_header().headers.contains_key(EXPECT) {
        session.set_close_on_response_before_downstream_finish(false);
        session.set_total_drain_timeout(Some(Duration::from_secs(2)));
    }
}

fn title(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// The head of a refusal in a session whose server hands on no text for fields.
    async fn refuse_without_text(refusal: &Refusal) -> String {
        let (mut client, server) = tokio::io::duplex(64 << 10);
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut session = Session::new_h1(Box::new(server));
        assert!(session.as_downstream_mut().read_request().await.unwrap());
        let id = HeaderValue::from_static("a");
        ProblemResponse::refusal(refusal).write(&mut session, &id, None, Reuse::Close).await.unwrap();
        drop(session);
        let mut read = String::new();
        client.read_to_string(&mut read).await.unwrap();
        read.split_once("\r\n\r\n").unwrap().0.to_owned()
    }

    #[test]
    fn another_proxy_reads_the_status_of_a_refusal_and_never_that_of_grpc() {
        let head = http::Request::builder().header(CONTENT_TYPE, "application/grpc").body(()).unwrap().into_parts().0;
        let (id, refused) = (HeaderValue::from_static("a"), Refusal::too_many_invalid_tokens(7));
        let missing = Refusal::token_missing();
        let sent = |refusal, recipient| {
            let response = ProblemResponse { recipient, ..ProblemResponse::refusal(refusal) };
            let (header, _) = response.to_header(&head, &id).unwrap();
            (header.status.as_u16(), header.headers.get("x-tollgate-status").cloned())
        };
        let status = |status: &'static str| Some(HeaderValue::from_static(status));
        assert_eq!(sent(&refused, Recipient::Client), (200, None));
        assert_eq!(sent(&refused, Recipient::Edge(RefuseWith::Decided)), (429, None));
        assert_eq!(sent(&refused, Recipient::Edge(RefuseWith::Forbidden)), (403, status("429")));
        assert_eq!(sent(&missing, Recipient::Edge(RefuseWith::Forbidden)), (401, status("401")));
    }

    #[tokio::test]
    async fn a_session_without_text_for_fields_has_all_of_them_in_its_header() {
        let head = refuse_without_text(&Refusal::too_many_invalid_tokens(7)).await;
        for field in
            ["Cache-Control: no-store", "X-Request-Id: a", "X-Tollgate-Reason: token_invalid", "Retry-After: 7"]
        {
            assert!(head.lines().any(|line| line == field), "{field} is not in {head}");
        }
        let head = refuse_without_text(&Refusal::token_missing()).await;
        assert!(head.lines().any(|line| line == "WWW-Authenticate: Bearer"), "{head}");
    }
}

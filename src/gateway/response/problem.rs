//! Makes the gateway's error responses: refusals, faults of the upstream and faults of the request.
//!
//! All these responses have one format, problem+json (RFC 9457) with the request's id and a stable reason. The operator
//! may configure other texts, or the format of a provider of models. gRPC requests are refused with a gRPC status.

use http::HeaderValue;
use http::request::Parts;

use super::cors_fields::CorsFields;
use super::error_body::ReportedError;
use super::own_response::OwnResponse;
use super::ratelimit_fields::RateLimitFields;
use super::response_fields::{ProblemFields, ResponseFields};
use config::{Config, RefuseWith};
use decision::cors::CorsAnswer;
use decision::error_pages::{ErrorPage, PlaceholderValues};
use decision::reason::Reason;
use decision::refusal::{Fits, ProblemType, Refusal};
use request::grpc_timeout::is_grpc;
use rules::route::error_format::ErrorFormat;

/// A response that the gateway makes itself: a problem document or an error page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProblemResponse<'a> {
    pub cause: Cause<'a>,
    pub fields: Option<&'a RateLimitFields>,
    /// The error page whose text is the body. If `None`, the body is a problem document.
    pub page: Option<&'a ErrorPage>,
    /// The format of the body, in place of a problem document or an error page.
    pub format: Option<ErrorFormat>,
    pub cors: Option<&'a CorsAnswer>,
    pub recipient: Recipient,
    /// What is wrong with the request, for a problem document of the type `about:blank`. `None` if only the status says it.
    pub detail: Option<&'a str>,
}

/// The receiver of a response: the client of the request, or a proxy that asks about the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipient {
    /// The client of the request.
    Client,
    /// Another proxy, which asks about a request of its client. The proxy gets the real status of a refusal even for a
    /// gRPC request.
    Edge(RefuseWith),
}

impl Recipient {
    /// Returns the recipient of this listener's responses before a request has been read.
    pub(crate) fn at(config: &Config, listener: usize) -> Recipient {
        config.decide(listener).map_or(Recipient::Client, |settings| Recipient::Edge(settings.refuse_with))
    }
}

/// The reason why the gateway makes the response itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause<'a> {
    Refusal(&'a Refusal),
    /// A fault that no rule has caused, such as an unreachable upstream. The number is the HTTP status of the response.
    Fault(u16),
}

impl<'a> ProblemResponse<'a> {
    /// Makes a problem document for a client, without CORS fields.
    pub(crate) fn of(cause: Cause<'a>, fields: Option<&'a RateLimitFields>) -> ProblemResponse<'a> {
        ProblemResponse {
            cause,
            fields,
            page: None,
            format: None,
            cors: None,
            recipient: Recipient::Client,
            detail: None,
        }
    }

    pub(crate) fn refusal(refusal: &'a Refusal) -> ProblemResponse<'a> {
        ProblemResponse::of(Cause::Refusal(refusal), None)
    }

    pub(crate) fn fault(status: u16) -> ProblemResponse<'a> {
        ProblemResponse::of(Cause::Fault(status), None)
    }

    pub(crate) fn status(&self) -> u16 {
        match self.cause {
            Cause::Refusal(refusal) => refusal.status,
            Cause::Fault(status) => status,
        }
    }

    /// Returns the status code that is sent.
    fn sent_status(&self) -> u16 {
        match (self.recipient, self.cause) {
            (Recipient::Edge(RefuseWith::Forbidden), Cause::Refusal(refusal)) if refusal.status != 401 => 403,
            _ => self.status(),
        }
    }

    /// Returns the reason of a refusal, or `None` for a fault.
    pub(crate) fn reason(&self) -> Option<Reason> {
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

    /// Returns the response to the request with this head: a gRPC status, an error page or a problem document.
    pub(crate) fn response(&self, head: &Parts, request_id: &HeaderValue) -> OwnResponse {
        match self.recipient {
            Recipient::Client if is_grpc(head) => {
                let response = ProblemResponse { format: None, ..*self };
                response.with_fields(response.of_grpc(), request_id)
            }
            // A gRPC client shows no page, and a proxy that asks may build its own response from the status code.
            Recipient::Edge(_) if is_grpc(head) => {
                ProblemResponse { page: None, ..*self }.response_to_unread(request_id)
            }
            Recipient::Client | Recipient::Edge(_) => self.response_to_unread(request_id),
        }
    }

    /// Returns the response to a request whose head could not be read.
    pub(crate) fn response_to_unread(&self, request_id: &HeaderValue) -> OwnResponse {
        self.with_fields(self.plain(request_id), request_id)
    }

    /// Adds the fields that every response of the gateway has.
    fn with_fields(&self, mut response: OwnResponse, request_id: &HeaderValue) -> OwnResponse {
        self.response_fields(request_id).write(&mut response.fields);
        response
    }

    fn response_fields<'f>(&'f self, request_id: &'f HeaderValue) -> ResponseFields<'f> {
        let (challenge, allowed_methods) = match self.cause {
            Cause::Refusal(refusal) => (refusal.challenge, refusal.allowed_methods.value()),
            Cause::Fault(_) => (None, None),
        };
        let (status, reason, retry_after) = (self.status(), self.reason(), self.retry_after());
        let error = self.format.map(|_| self.error());
        let should_retry = error.and_then(|error| error.should_retry());
        let problem = ProblemFields {
            status,
            reason,
            retry_after,
            challenge,
            allowed_methods,
            should_retry,
            in_milliseconds: error.is_some(),
        };
        let rate_limits = self.fields.map(RateLimitFields::unmerged);
        ResponseFields { request_id, problem: Some(problem), rate_limits, cors: self.cors.map(CorsFields::all) }
    }

    fn plain(&self, request_id: &HeaderValue) -> OwnResponse {
        let mut response = OwnResponse::new(self.sent_status());
        let page = self.page.filter(|_| self.format.is_none());
        let (content_type, body) = match (self.format, page) {
            (Some(format), _) => {
                (&b"application/json"[..], self.error().body(format, request_id.to_str().unwrap_or_default()))
            }
            (None, Some(page)) => (page.content_type.as_bytes(), page.body.fill(self.placeholder_values(request_id))),
            (None, None) => (&b"application/problem+json"[..], self.body(request_id)),
        };
        let fields = &mut response.fields;
        fields.add("Content-Type", content_type);
        fields.add("Content-Length", itoa::Buffer::new().format(body.len()).as_bytes());
        if self.recipient == Recipient::Edge(RefuseWith::Forbidden) {
            fields.add("X-Tollgate-Status", itoa::Buffer::new().format(self.status()).as_bytes());
        }
        for (name, value) in page.iter().flat_map(|page| &page.headers) {
            fields.add(name.as_str(), value.as_bytes());
        }
        response.body = body.into();
        response
    }

    fn error(&self) -> ReportedError<'_> {
        let refusal = match self.cause {
            Cause::Refusal(refusal) => Some(refusal),
            Cause::Fault(_) => None,
        };
        let limit = self.fields.and_then(RateLimitFields::refusing);
        ReportedError { status: self.status(), refusal, limit }
    }

    /// Makes a gRPC response that has only trailers. Its HTTP status is always 200, see
    /// <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>.
    fn of_grpc(&self) -> OwnResponse {
        let code = match self.status() {
            400 => "3",
            401 => "16",
            403 => "7",
            404 => "12",
            413 | 429 => "8",
            502..=504 => "14",
            _ => "2",
        };
        let message = self.reason().map_or_else(|| title(self.status()), Reason::name);
        let mut response = OwnResponse::new(200);
        let fields = [
            ("Content-Type", "application/grpc"),
            ("Content-Length", "0"),
            ("grpc-status", code),
            ("grpc-message", message),
        ];
        fields.into_iter().for_each(|(name, value)| response.fields.add(name, value.as_bytes()));
        response
    }

    fn body(&self, request_id: &HeaderValue) -> String {
        const TYPES: &str = "https://iana.org/assignments/http-problem-types#";
        // An id that was not plain text was replaced when the request arrived, so this does not fail.
        let id = request_id.to_str().unwrap_or_default();
        let status = self.status();
        let problem = match self.cause {
            Cause::Refusal(refusal) => &refusal.problem,
            Cause::Fault(_) => &ProblemType::Blank,
        };
        let (kind, title, violated) = match problem {
            ProblemType::Blank => {
                let title = title(status);
                let fits = match self.cause {
                    Cause::Refusal(Refusal { fits: Some(fits), .. }) => {
                        let Fits { limit, unit, most, .. } = &**fits;
                        let (most, unit) = (serde_json::to_string(&unit.amount(*most)), unit.name());
                        format!(r#""policy":"{limit}","unit":"{unit}","fits":{},"#, most.unwrap_or_default())
                    }
                    _ => String::new(),
                };
                let detail = self.detail.and_then(|detail| serde_json::to_string(detail).ok());
                let detail = detail.map_or_else(String::new, |detail| format!(r#""detail":{detail},"#));
                let rest = format!(r#""status":{status},{detail}{fits}"request_id":"{id}"}}"#);
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
        // The names of rules contain no character that JSON would escape, so they are written unchanged.
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
        415 => "Unsupported Media Type",
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
    use super::*;
    use crate::gateway::response::field_writer::UpstreamFields;

    #[test]
    fn another_proxy_reads_the_status_of_a_refusal_and_never_that_of_grpc() {
        let head = http::Request::builder().header("content-type", "application/grpc").body(()).unwrap().into_parts().0;
        let (id, refused) = (HeaderValue::from_static("a"), Refusal::too_many_invalid_tokens(7));
        let missing = Refusal::token_missing();
        let sent = |refusal, recipient| {
            let response = ProblemResponse { recipient, ..ProblemResponse::refusal(refusal) }.response(&head, &id);
            (response.status, response.fields.first("x-tollgate-status").map(<[u8]>::to_vec))
        };
        let status = |status: &str| Some(status.as_bytes().to_vec());
        assert_eq!(sent(&refused, Recipient::Client), (200, None));
        assert_eq!(sent(&refused, Recipient::Edge(RefuseWith::Decided)), (429, None));
        assert_eq!(sent(&refused, Recipient::Edge(RefuseWith::Forbidden)), (403, status("429")));
        assert_eq!(sent(&missing, Recipient::Edge(RefuseWith::Forbidden)), (401, status("401")));
    }
}

//! Holds the header fields that the gateway adds to a response.

use http::HeaderValue;

use super::cors_fields::CorsFields;
use super::field_writer::FieldWriter;
use super::ratelimit_fields::MergedRateLimitFields;
use decision::reason::Reason;
use decision::refusal::Challenge;

/// The fields that the gateway adds to one response.
#[derive(Debug)]
pub(crate) struct ResponseFields<'a> {
    pub request_id: &'a HeaderValue,
    /// The values for a refusal or a fault, which the gateway answers itself. `None` for every other response.
    pub problem: Option<ProblemFields>,
    pub rate_limits: Option<MergedRateLimitFields<'a>>,
    /// The CORS fields. `None` if the response gets no CORS fields.
    pub cors: Option<CorsFields<'a>>,
}

/// The values of the header fields that only refusals and faults have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProblemFields {
    pub status: u16,
    /// The reason of a refusal; `None` for a fault.
    pub reason: Option<Reason>,
    /// The value of `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// How the client can authenticate. `None` unless the status is 401.
    pub challenge: Option<Challenge>,
    /// The methods that the path accepts. `None` if they are not limited to some.
    pub allowed_methods: Option<&'static str>,
    /// Whether the client should repeat the request, for formats that say so.
    pub should_retry: Option<bool>,
    /// Whether `Retry-After` is also written in milliseconds, which the libraries of some providers prefer. With
    /// [`Reason::BudgetHeld`], milliseconds are always written.
    pub in_milliseconds: bool,
}

impl ResponseFields<'_> {
    pub(crate) fn write(&self, writer: &mut impl FieldWriter) {
        if self.problem.is_some() {
            writer.field("Cache-Control", &HeaderValue::from_static("no-store"));
        }
        writer.field("X-Request-Id", self.request_id);
        if let Some(problem) = self.problem {
            problem.write(writer);
        }
        if let Some(cors) = &self.cors {
            cors.write(writer);
        }
        if let Some(rate_limits) = &self.rate_limits {
            rate_limits.write(writer);
        }
    }
}

impl ProblemFields {
    fn write(self, writer: &mut impl FieldWriter) {
        if let Some(reason) = self.reason {
            writer.field("X-Tollgate-Reason", &HeaderValue::from_static(reason.name()));
        }
        if let Some(challenge) = self.challenge {
            writer.field("WWW-Authenticate", &HeaderValue::from_static(challenge.field_value()));
        }
        if self.status == 405 {
            // A 405 response must have `Allow` (RFC 9110, section 15.5.6). The methods of the upstream are not known here.
            let allowed = self.allowed_methods.unwrap_or("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
            writer.field("Allow", &HeaderValue::from_static(allowed));
        }
        if let Some(seconds) = self.retry_after {
            writer.number("Retry-After", seconds);
            if self.in_milliseconds || self.reason == Some(Reason::BudgetHeld) {
                writer.number("Retry-After-Ms", seconds.saturating_mul(1000));
            }
        }
        if let Some(should_retry) = self.should_retry {
            writer.field("X-Should-Retry", &HeaderValue::from_static(if should_retry { "true" } else { "false" }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::response::field_lines::FieldLines;

    #[test]
    fn a_refusal_says_why_and_when_to_come_again() {
        let request_id = &HeaderValue::from_static("a");
        let problem = |status, reason, retry_after, challenge| {
            let (reason, challenge) = (Some(reason), Some(challenge));
            let fields = ProblemFields {
                status,
                reason,
                retry_after,
                challenge,
                allowed_methods: None,
                should_retry: None,
                in_milliseconds: false,
            };
            let problem = Some(fields);
            let mut lines = FieldLines::default();
            ResponseFields { request_id, problem, rate_limits: None, cors: None }.write(&mut lines);
            String::from_utf8(lines.as_bytes().to_vec()).unwrap()
        };
        assert_eq!(
            problem(401, Reason::TokenInvalid, Some(7), Challenge::InvalidBearer),
            "Cache-Control: no-store\r\nX-Request-Id: a\r\nX-Tollgate-Reason: token_invalid\r\n\
             WWW-Authenticate: Bearer error=\"invalid_token\"\r\nRetry-After: 7\r\n"
        );
        let missing = problem(401, Reason::TokenMissing, None, Challenge::Bearer);
        assert!(missing.ends_with("WWW-Authenticate: Bearer\r\n"), "{missing}");
    }
}

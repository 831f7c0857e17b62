//! Adds CORS fields to responses: all fields to the gateway's own responses, and missing fields to upstreams'
//! responses.

use http::HeaderValue;

use super::field_writer::{FieldWriter, UpstreamFields};
use decision::cors::{CorsAnswer, PreflightFields};

/// The CORS fields that the gateway adds to one response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CorsFields<'a> {
    answer: &'a CorsAnswer,
    origin: Presence,
    credentials: Presence,
    vary: Presence,
}

/// Whether a response already has a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    There,
    Missing,
}

impl Presence {
    fn of(is_there: bool) -> Presence {
        if is_there { Presence::There } else { Presence::Missing }
    }
}

impl<'a> CorsFields<'a> {
    /// Returns the CORS fields for a response that the gateway makes itself: all of them are added.
    pub(crate) fn all(answer: &'a CorsAnswer) -> CorsFields<'a> {
        CorsFields { answer, origin: Presence::Missing, credentials: Presence::Missing, vary: Presence::Missing }
    }

    /// Returns the CORS fields for a response that already has `fields`. Its own `Vary` and allowed origin stay. A
    /// response that allows an origin itself also decides whether credentials are allowed.
    pub(crate) fn beside(answer: &'a CorsAnswer, fields: &impl UpstreamFields) -> CorsFields<'a> {
        let origin = Presence::of(fields.first("access-control-allow-origin").is_some());
        let credentials = match origin {
            Presence::There => Presence::There,
            Presence::Missing => Presence::of(fields.first("access-control-allow-credentials").is_some()),
        };
        CorsFields { answer, origin, credentials, vary: Presence::of(varies_by_origin(fields)) }
    }

    pub(super) fn write(&self, writer: &mut impl FieldWriter) {
        let CorsAnswer { origin, credentials, exposed, preflight, .. } = self.answer;
        if self.vary == Presence::Missing {
            writer.field("Vary", &HeaderValue::from_static("Origin"));
        }
        let Some(origin) = origin else { return };
        if self.origin == Presence::Missing {
            writer.field("Access-Control-Allow-Origin", origin);
        }
        if *credentials && self.credentials == Presence::Missing {
            writer.field("Access-Control-Allow-Credentials", &HeaderValue::from_static("true"));
        }
        let Some(PreflightFields { methods, headers, max_age }) = preflight else {
            // This field is a list, so it is added to the upstream's field.
            return writer.field("Access-Control-Expose-Headers", exposed);
        };
        writer.field("Access-Control-Allow-Methods", methods);
        if let Some(headers) = headers {
            writer.field("Access-Control-Allow-Headers", headers);
        }
        writer.field("Access-Control-Max-Age", max_age);
    }
}

fn varies_by_origin(fields: &impl UpstreamFields) -> bool {
    fields.any_value("vary", |value| {
        let mut options = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        options.any(|option| option == b"*" || option.eq_ignore_ascii_case(b"origin"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::response::field_lines::FieldLines;

    fn written(credentials: bool, there: &[(&'static str, &'static str)]) -> Vec<String> {
        let value = HeaderValue::from_static;
        let answer = CorsAnswer {
            entry: 0,
            origin: Some(value("https://a")),
            credentials,
            exposed: value("RateLimit"),
            preflight: None,
        };
        let mut fields = FieldLines::default();
        for (name, text) in there {
            fields.add(name, text.as_bytes());
        }
        let mut text = FieldLines::default();
        CorsFields::beside(&answer, &fields).write(&mut text);
        let text = String::from_utf8(text.as_bytes().to_vec()).unwrap();
        text.lines().map(|line| line.replace("Access-Control-", "")).collect()
    }

    #[test]
    fn a_response_gets_what_it_lacks() {
        let all = ["Vary: Origin", "Allow-Origin: https://a", "Allow-Credentials: true", "Expose-Headers: RateLimit"];
        assert_eq!(written(true, &[]), all);
        assert_eq!(
            written(false, &[("vary", "accept,  ORIGIN")]),
            ["Allow-Origin: https://a", "Expose-Headers: RateLimit"]
        );
        assert_eq!(written(false, &[("vary", "x-origin")])[0], "Vary: Origin");
        assert_eq!(written(true, &[("access-control-allow-credentials", "true"), ("vary", "*")]).len(), 2);
    }

    #[test]
    fn whom_the_upstream_allows_gets_no_further_permission() {
        let theirs = ("access-control-allow-origin", "https://b");
        assert_eq!(written(true, &[theirs]), ["Vary: Origin", "Expose-Headers: RateLimit"]);
    }
}

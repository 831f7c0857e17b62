//! Reads `headers`: which rate-limit fields are in responses.

use crate::language::key::{Type, names};
use crate::language::reader::{Field, all};

/// A format of the rate-limit fields in responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFormat {
    /// `RateLimit-Policy` and `RateLimit`, as in draft-ietf-httpapi-ratelimit-headers-11.
    RateLimit,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`.
    Legacy,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    XRateLimit,
}

const FORMATS: [(&str, HeaderFormat); 4] = [
    ("ratelimit", HeaderFormat::RateLimit),
    ("legacy", HeaderFormat::Legacy),
    ("x-ratelimit", HeaderFormat::XRateLimit),
    ("ratelimit-11", HeaderFormat::RateLimit),
];

pub(crate) const HEADERS: Type = Type::Choices { names: &names(&FORMATS), least: 0 };

pub(crate) fn headers(field: Field<'_>) -> Option<Vec<HeaderFormat>> {
    let mut formats = Vec::new();
    for format in all(field.list()?, |member| member.known_or(FORMATS[0].0, |field| field.choice(&FORMATS)))? {
        // `ratelimit` and its alias are the same format, which is listed only once.
        if !formats.contains(&format) {
            formats.push(format);
        }
    }
    Some(formats)
}

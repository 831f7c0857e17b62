//! Lists the attributes of a request. `limit_keys` may count by them, and `match` may compare them.
//!
//! A new attribute needs a variant, its spelling in [`Attribute::parse`] and in `Display`, and its value in
//! [`Attribute::resolve`]. A value consists of bytes. In a text, invalid bytes would be replaced, so the values of two
//! clients could become equal.

mod folding;
mod supply;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU8;

use http::header::{CONNECTION, COOKIE, HeaderName};
use http::request::Parts;
use llm::json::{InvalidPointer, Pointer};

pub use folding::Folding;

use super::attribute_value::AttributeValue;
use super::client_certificate_field::ClientCertificateField;
use super::llm_model::ModelPlace;
use super::request::Request;
use super::{cookie, path, query};

/// A property of a request that rules can read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// A claim of a verified token.
    Claim(String),
    /// The words of a claim. Only `match` can use this attribute.
    Words(String),
    /// The text of a number in a claim. Used where a number of a limit, such as its rate, comes from a claim.
    ClaimedAmount(String),
    KeyId,
    KeyPlan,
    /// The value in a further column of the file of API keys, by the name of the column.
    KeyColumn(String),
    Header(HeaderName),
    Query(String),
    Cookie(String),
    Address,
    Method,
    Host,
    /// The scheme of the request: `http` or `https`.
    Scheme,
    /// The name of the listener on which the request arrived.
    Listener,
    /// The way in which the request reaches the decision: the gateway proxies the request, or another proxy asks about
    /// it.
    Door,
    /// The name that the client asked for in the TLS handshake (SNI).
    TlsServerName,
    /// A property of the client's certificate.
    TlsClient(ClientCertificateField),
    Path,
    /// A segment of the normalised path. The number counts from 1.
    PathSegment(NonZeroU8),
    Route,
    Upstream,
    /// A text, integer or boolean in a JSON body.
    RequestJson(Pointer),
    /// A number in a JSON body, as the cost of the request. Its value is the number as a decimal without an exponent,
    /// also if a JSON string has the number. Another string stays unchanged.
    JsonAmount(Pointer),
    /// A field of a form in the body.
    RequestForm(String),
    /// The model that a request to a language model asks for.
    Model,
    /// A value of a descriptor that another proxy sends: an entry, the domain, or the names of all entries.
    Descriptor(String),
    /// The changed value of another attribute, which is not `Folded` itself.
    Folded(Folding, Box<Attribute>),
}

/// The reason why a text is not an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeError {
    Unknown,
    /// The name that must follow the colon is missing.
    NameMissing,
    /// The name is not a valid name of a header field.
    BadHeaderName,
    /// The text in `words(…)` is not a claim.
    WordsOfOther,
    /// The text is not a JSON pointer (RFC 6901).
    BadPointer(InvalidPointer),
    /// The number of a path segment is missing, or is not a number from 1 to [`MAX_PATH_SEGMENT`].
    BadSegment,
}

/// All forms in which a limit key can name an attribute. `match` also accepts [`WORDS_SPELLING`]. Any of them may stand
/// in `lower(…)` and `trim(…)`.
pub const SPELLINGS: &[&str] = &[
    "jwt:<claim>",
    "key:id",
    "key:plan",
    "key:<column>",
    "header:<name>",
    "query:<name>",
    "cookie:<name>",
    "ip:address",
    "method",
    "host",
    "scheme",
    "listener",
    "door",
    "tls:sni",
    "tls:client_fingerprint",
    "tls:client_subject",
    "tls:client_dns",
    "tls:client_uri",
    "path",
    "path_segment:<n>",
    "route",
    "upstream",
    "request_json:<pointer>",
    "request_form:<name>",
    "llm:model",
    "descriptor:<name>",
];

/// The largest number of a path segment. A rule about a later segment must use `path`.
pub const MAX_PATH_SEGMENT: u8 = u8::MAX;

/// The form of an attribute's name that only `match` accepts.
pub const WORDS_SPELLING: &str = "words(jwt:<claim>)";

impl Attribute {
    /// Parses the name of an attribute, in a form that [`SPELLINGS`] or [`WORDS_SPELLING`] lists.
    ///
    /// # Errors
    /// If the text names no attribute. The error says why.
    pub fn parse(text: &str) -> Result<Attribute, AttributeError> {
        let (folding, name) = Folding::split(text);
        if !folding.is_none() {
            return Attribute::parse(name).map(|attribute| Attribute::Folded(folding, Box::new(attribute)));
        }
        if let Some(inner) = text.strip_prefix("words(").and_then(|text| text.strip_suffix(')')) {
            return match inner.trim().strip_prefix("jwt:") {
                Some("") => Err(AttributeError::NameMissing),
                Some(name) => Ok(Attribute::Words(name.to_owned())),
                None => Err(AttributeError::WordsOfOther),
            };
        }
        if let Some((
            kind @ ("jwt" | "key" | "header" | "query" | "cookie" | "request_json" | "request_form" | "descriptor"),
            name,
        )) = text.split_once(':')
        {
            if name.is_empty() {
                return Err(AttributeError::NameMissing);
            }
            return match kind {
                "jwt" => Ok(Attribute::Claim(name.to_owned())),
                "key" => Ok(match name {
                    "id" => Attribute::KeyId,
                    "plan" => Attribute::KeyPlan,
                    column => Attribute::KeyColumn(column.to_owned()),
                }),
                "header" => {
                    HeaderName::try_from(name).map(Attribute::Header).map_err(|_| AttributeError::BadHeaderName)
                }
                "query" => Ok(Attribute::Query(name.to_owned())),
                "request_json" => Pointer::parse(name).map(Attribute::RequestJson).map_err(AttributeError::BadPointer),
                "request_form" => Ok(Attribute::RequestForm(name.to_owned())),
                "descriptor" => Ok(Attribute::Descriptor(name.to_owned())),
                _ => Ok(Attribute::Cookie(name.to_owned())),
            };
        }
        if let Some(number) = text.strip_prefix("path_segment:") {
            return segment_number(number).map(Attribute::PathSegment).ok_or(AttributeError::BadSegment);
        }
        match text {
            "ip:address" => Ok(Attribute::Address),
            "method" => Ok(Attribute::Method),
            "host" => Ok(Attribute::Host),
            "scheme" => Ok(Attribute::Scheme),
            "listener" => Ok(Attribute::Listener),
            "door" => Ok(Attribute::Door),
            "tls:sni" => Ok(Attribute::TlsServerName),
            "tls:client_fingerprint" => Ok(Attribute::TlsClient(ClientCertificateField::Fingerprint)),
            "tls:client_subject" => Ok(Attribute::TlsClient(ClientCertificateField::Subject)),
            "tls:client_dns" => Ok(Attribute::TlsClient(ClientCertificateField::Dns)),
            "tls:client_uri" => Ok(Attribute::TlsClient(ClientCertificateField::Uri)),
            "path" => Ok(Attribute::Path),
            "path_segment" => Err(AttributeError::BadSegment),
            "route" => Ok(Attribute::Route),
            "upstream" => Ok(Attribute::Upstream),
            "llm:model" => Ok(Attribute::Model),
            _ => Err(AttributeError::Unknown),
        }
    }

    /// Returns the attribute whose value this attribute changes. Without [`Attribute::Folded`], this is the attribute
    /// itself.
    pub fn source(&self) -> &Attribute {
        match self {
            Attribute::Folded(_, source) => source.source(),
            other => other,
        }
    }

    /// Returns how this attribute changes the value of its source.
    pub fn folding(&self) -> Folding {
        match self {
            Attribute::Folded(folding, _) => *folding,
            _ => Folding::default(),
        }
    }

    /// Returns the value that the request has for this attribute, as `match` compares it. A claim may be a list.
    pub fn resolve_for_match<'r>(&self, request: &Request<'r>) -> AttributeValue<'r> {
        let claims = request.claims;
        match self {
            Attribute::Claim(name) => claims.map_or(AttributeValue::Missing, |claims| claims.value(name)),
            Attribute::Words(name) => claims.map_or(AttributeValue::Missing, |claims| claims.words(name)),
            Attribute::Folded(folding, source) => source.resolve_for_match(request).folded(*folding),
            _ => self.resolve(request).into(),
        }
    }

    /// Returns the value that the request has for this attribute. `None` if the value is missing or a list.
    pub fn resolve<'r>(&self, request: &Request<'r>) -> Option<Cow<'r, [u8]>> {
        if request.door.has_only_descriptors() && !self.is_supplied_at(request.door) {
            return None;
        }
        let head = request.head;
        match self {
            Attribute::Claim(name) => request.claims?.text(name).map(|text| match text {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            }),
            // The words of a claim are always a list.
            Attribute::Words(_) => None,
            Attribute::ClaimedAmount(name) => request.claims?.amount_text(name).map(|text| match text {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            }),
            Attribute::KeyId => Some(Cow::Borrowed(request.key?.id.as_bytes())),
            Attribute::KeyPlan => Some(Cow::Borrowed(request.key?.plan.as_bytes())),
            Attribute::KeyColumn(name) => request.key?.column(name).map(|text| Cow::Borrowed(text.as_bytes())),
            Attribute::Header(name) => filled(head.headers.get(name)?.as_bytes().trim_ascii()),
            Attribute::Query(name) => query::value(request.head, name.as_bytes()),
            Attribute::Cookie(name) => cookie::value(request.head, name.as_bytes()),
            Attribute::Address => Some(Cow::Owned(request.client.text().into_bytes())),
            Attribute::Method => Some(Cow::Borrowed(head.method.as_str().as_bytes())),
            Attribute::Host => Some(match request.host() {
                host if host.iter().any(u8::is_ascii_uppercase) => Cow::Owned(host.to_ascii_lowercase()),
                host => Cow::Borrowed(host),
            }),
            Attribute::Scheme => Some(Cow::Borrowed(request.scheme().name().as_bytes())),
            Attribute::Listener => Some(Cow::Borrowed(request.listener.as_bytes())),
            Attribute::Door => Some(Cow::Borrowed(request.door.name().as_bytes())),
            Attribute::TlsServerName => filled(request.tls?.server_name.as_deref()?.as_bytes()),
            Attribute::TlsClient(field) => filled(field.of(request.tls?.certificate.as_ref()?)?.as_bytes()),
            // A path with more than one reading is refused before any rule reads it.
            Attribute::Path => path::normalise(head.uri.path().as_bytes()).ok(),
            Attribute::PathSegment(number) => match path::normalise(head.uri.path().as_bytes()).ok()? {
                Cow::Borrowed(path) => path::segment(path, *number).map(Cow::Borrowed),
                Cow::Owned(path) => path::segment(&path, *number).map(|segment| Cow::Owned(segment.to_vec())),
            },
            Attribute::Route => filled(request.route.as_bytes()),
            Attribute::Upstream => filled(request.upstream.as_bytes()),
            Attribute::RequestJson(_) | Attribute::JsonAmount(_) | Attribute::RequestForm(_) => {
                self.in_body(request.body)
            }
            Attribute::Model => match ModelPlace::of(head) {
                ModelPlace::Path(model) => Some(model),
                ModelPlace::Body => self.in_body(request.body),
                ModelPlace::Nowhere => None,
            },
            Attribute::Descriptor(name) => request.descriptor?.value(name).map(|value| match value {
                Cow::Borrowed(value) => Cow::Borrowed(value.as_bytes()),
                Cow::Owned(value) => Cow::Owned(value.into_bytes()),
            }),
            Attribute::Folded(folding, source) => folding.of_value(source.resolve(request)?),
        }
    }

    /// Returns whether the value can be in the body of a request.
    pub fn needs_body(&self) -> bool {
        matches!(
            self.source(),
            Attribute::RequestJson(_) | Attribute::JsonAmount(_) | Attribute::RequestForm(_) | Attribute::Model
        )
    }

    /// Returns whether the value of a request with this head can only be in its body.
    pub fn is_in_body_of(&self, head: &Parts) -> bool {
        match self.source() {
            Attribute::Model => ModelPlace::of(head) == ModelPlace::Body,
            other => other.needs_body(),
        }
    }

    /// Whether the upstream might read a different value than the rules. This is so if the request repeats the
    /// attribute, or removes its header field with `Connection`.
    pub fn is_ambiguous(&self, request: &Request<'_>) -> bool {
        match self {
            Attribute::Header(name) => {
                let mut values = request.head.headers.get_all(name).iter();
                values.next().is_some() && values.next().is_some() || is_nominated(request, name)
            }
            Attribute::Query(name) => query::is_repeated(request.head, name.as_bytes()),
            Attribute::Cookie(name) => cookie::is_ambiguous(request.head, name.as_bytes()) || is_nominated(request, &COOKIE),
            Attribute::Folded(_, source) => source.is_ambiguous(request),
            // Repeated credentials are refused before any rule is asked.
            Attribute::Claim(_)
            | Attribute::Words(_)
            | Attribute::ClaimedAmount(_)
            | Attribute::KeyId
            | Attribute::KeyPlan
            | Attribute::KeyColumn(_)
            | Attribute::Address
            | Attribute::Method
            | Attribute::Host
            | Attribute::Scheme
            | Attribute::Listener
            | Attribute::Door
            | Attribute::TlsServerName
            | Attribute::TlsClient(_)
            | Attribute::Path
            | Attribute::PathSegment(_)
            | Attribute::Route
            | Attribute::Upstream
            // A name that occurs twice in a body is refused when the body is read.
            | Attribute::RequestJson(_)
            | Attribute::JsonAmount(_)
            | Attribute::RequestForm(_)
            | Attribute::Model
            // A second entry `k` of a descriptor has the name `k#2`, or the call is rejected.
            | Attribute::Descriptor(_) => false,
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Claim(name) | Attribute::ClaimedAmount(name) => write!(f, "jwt:{name}"),
            Attribute::Words(name) => write!(f, "words(jwt:{name})"),
            Attribute::KeyId => f.write_str("key:id"),
            Attribute::KeyPlan => f.write_str("key:plan"),
            Attribute::KeyColumn(name) => write!(f, "key:{name}"),
            Attribute::Header(name) => write!(f, "header:{name}"),
            Attribute::Query(name) => write!(f, "query:{name}"),
            Attribute::Cookie(name) => write!(f, "cookie:{name}"),
            Attribute::Address => f.write_str("ip:address"),
            Attribute::Method => f.write_str("method"),
            Attribute::Host => f.write_str("host"),
            Attribute::Scheme => f.write_str("scheme"),
            Attribute::Listener => f.write_str("listener"),
            Attribute::Door => f.write_str("door"),
            Attribute::TlsServerName => f.write_str("tls:sni"),
            Attribute::TlsClient(field) => write!(f, "tls:client_{}", field.name()),
            Attribute::Path => f.write_str("path"),
            Attribute::PathSegment(number) => write!(f, "path_segment:{number}"),
            Attribute::Route => f.write_str("route"),
            Attribute::Upstream => f.write_str("upstream"),
            Attribute::RequestJson(pointer) | Attribute::JsonAmount(pointer) => write!(f, "request_json:{pointer}"),
            Attribute::RequestForm(name) => write!(f, "request_form:{name}"),
            Attribute::Model => f.write_str("llm:model"),
            Attribute::Descriptor(name) => write!(f, "descriptor:{name}"),
            Attribute::Folded(folding, source) => write!(f, "{folding}{source}{}", folding.end()),
        }
    }
}

/// Whether the request names this field in `Connection`. Such a field is removed on the way to the upstream.
pub fn is_nominated(request: &Request<'_>, name: &HeaderName) -> bool {
    request.head.headers.get_all(CONNECTION).iter().any(|options| {
        let mut options = options.as_bytes().split(|byte| *byte == b',');
        options.any(|option| option.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
    })
}

/// Whether `other` differs from `name`, but becomes the same variable in CGI and WSGI: `X_Key` and `X-Key` both become
/// `HTTP_X_KEY`.
pub fn is_alias(other: &HeaderName, name: &HeaderName) -> bool {
    let folded = |byte: u8| if matches!(byte, b'_' | b'.') { b'-' } else { byte };
    let (other, name) = (other.as_str().as_bytes(), name.as_str().as_bytes());
    other.len() == name.len() && other != name && other.iter().zip(name).all(|(a, b)| folded(*a) == folded(*b))
}

/// Parses a number without a sign or a leading zero, so that each segment has only one spelling.
fn segment_number(text: &str) -> Option<NonZeroU8> {
    text.starts_with(|digit: char| matches!(digit, '1'..='9')).then(|| text.parse().ok()).flatten()
}

fn filled(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    (!value.is_empty()).then_some(Cow::Borrowed(value))
}

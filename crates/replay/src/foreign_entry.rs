//! Holds what a line of a foreign log records about one request, and tells what the log cannot record.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{HOST, REFERER, USER_AGENT};
use http::request::Parts;
use http::{Method, StatusCode};

use super::field_map::FieldMap;
use identity::client_ip;
use request::attribute::{Attribute, Folding};
use request::claim_list::words;
use request::client_address::ClientAddress;
use request::request::Request;
use rules::grpc_status::GrpcStatus;

/// A request as another program's log recorded it.
#[derive(Debug)]
pub struct ForeignEntry {
    /// The method, the target and the header fields. Parts that the log does not record are left at their defaults.
    pub head: Parts,
    /// The address from which the connection came. `None` if the log does not record the address.
    pub peer: Option<IpAddr>,
    /// The status of the response. `None` if the log does not record it.
    pub status: Option<StatusCode>,
    pub grpc: LoggedGrpc,
    pub log: LogFields,
}

/// What a log records about the status of a gRPC call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedGrpc {
    /// The log does not record this status.
    Unknown,
    /// The response had no such status, so the request was no gRPC call.
    Absent,
    Status(GrpcStatus),
}

/// The fields that a log can record, by the format of the log.
#[derive(Debug)]
pub enum LogFields {
    /// The format `common` of nginx and Apache, with method, target and address.
    Common,
    /// The format `combined` of nginx and Apache, with method, target, address, referer and user agent.
    Combined,
    /// JSON lines, with the map of their fields, and the values of this line in the order of the map's attributes.
    Mapped(Arc<FieldMap>, Vec<Option<MappedValue>>),
}

/// The value of a mapped field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappedValue {
    Single(Box<[u8]>),
    /// The elements of a claim that is a list. The list has at least one element.
    List(Vec<Vec<u8>>),
}

/// The content of a log about one attribute of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedValue<'a> {
    Value(Cow<'a, [u8]>),
    /// The elements of a list. The list has at least one element.
    List(Vec<Vec<u8>>),
    /// The request did not have the attribute.
    Missing,
    /// The log does not say whether the request had the attribute.
    Unknown,
}

impl<'a> RecordedValue<'a> {
    fn folded(self, folding: Folding) -> RecordedValue<'a> {
        let of = |value: Cow<'a, [u8]>| folding.of_value(value);
        match self {
            RecordedValue::Value(value) => of(value).map_or(RecordedValue::Missing, RecordedValue::Value),
            RecordedValue::List(elements) => {
                let elements = elements.into_iter().filter_map(|element| Some(of(element.into())?.into_owned()));
                match elements.collect::<Vec<_>>() {
                    elements if elements.is_empty() => RecordedValue::Missing,
                    elements => RecordedValue::List(elements),
                }
            }
            other @ (RecordedValue::Missing | RecordedValue::Unknown) => other,
        }
    }
}

impl ForeignEntry {
    pub fn client(&self, settings: &client_ip::Settings) -> Option<ClientAddress> {
        Some(settings.client(self.peer?, &self.head.headers))
    }

    /// Returns whether the request may have been a gRPC call, which is a POST.
    pub(crate) fn may_be_grpc(&self) -> bool {
        let has_method = match &self.log {
            LogFields::Common | LogFields::Combined => true,
            LogFields::Mapped(fields, _) => fields.index(&Attribute::Method).is_some(),
        };
        !has_method || self.head.method == Method::POST
    }

    /// Returns what the log says about an attribute. `client` is the result of
    /// [`ForeignEntry::client`].
    pub fn attribute(&self, attribute: &Attribute, client: Option<ClientAddress>) -> RecordedValue<'_> {
        let known = |known: bool| if known { self.resolve(attribute) } else { RecordedValue::Unknown };
        if let Attribute::Address = attribute {
            return client
                .map_or(RecordedValue::Unknown, |client| RecordedValue::Value(Cow::Owned(client.text().into_bytes())));
        }
        if let Attribute::ClaimedAmount(name) = attribute {
            return self.attribute(&Attribute::Claim(name.clone()), client);
        }
        if let Attribute::Folded(folding, source) = attribute {
            return self.attribute(source, client).folded(*folding);
        }
        if let Attribute::Words(name) = attribute {
            return self.words(&Attribute::Claim(name.clone()), client);
        }
        if let LogFields::Mapped(fields, values) = &self.log {
            return match (attribute, fields.index(attribute)) {
                // These attributes are read from the head, as a gateway reads them from a request.
                (Attribute::Method | Attribute::Path | Attribute::Host | Attribute::Header(_), Some(_)) => known(true),
                (_, Some(index)) => match values.get(index) {
                    Some(Some(MappedValue::Single(value))) => RecordedValue::Value(Cow::Borrowed(value)),
                    Some(Some(MappedValue::List(elements))) => RecordedValue::List(elements.clone()),
                    _ => RecordedValue::Missing,
                },
                (Attribute::Query(_) | Attribute::PathSegment(_), None) => {
                    known(fields.index(&Attribute::Path).is_some())
                }
                (Attribute::Host, None) => known(self.head.uri.authority().is_some()),
                (_, None) => RecordedValue::Unknown,
            };
        }
        match attribute {
            Attribute::Method | Attribute::Path | Attribute::PathSegment(_) | Attribute::Query(_) => known(true),
            Attribute::Host => known(self.head.uri.authority().is_some()),
            Attribute::Header(name) => {
                known(matches!(self.log, LogFields::Combined) && (name == REFERER || name == USER_AGENT))
            }
            // Logs of nginx and Apache do not record these attributes. The simulated file determines the route and the
            // upstream.
            Attribute::Route
            | Attribute::Upstream
            | Attribute::RequestJson(_)
            | Attribute::JsonAmount(_)
            | Attribute::RequestForm(_)
            | Attribute::Model
            | Attribute::Scheme
            | Attribute::Listener
            | Attribute::Door
            | Attribute::Descriptor(_)
            | Attribute::TlsServerName
            | Attribute::TlsClient(_)
            | Attribute::Address
            | Attribute::Claim(_)
            | Attribute::Words(_)
            | Attribute::KeyId
            | Attribute::KeyPlan
            | Attribute::KeyColumn(_)
            | Attribute::ClaimedAmount(_)
            | Attribute::Cookie(_)
            | Attribute::Folded(..) => RecordedValue::Unknown,
        }
    }

    fn words(&self, claim: &Attribute, client: Option<ClientAddress>) -> RecordedValue<'_> {
        let split = |text: &[u8]| words(text).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let words = match self.attribute(claim, client) {
            RecordedValue::Value(text) => split(&text),
            RecordedValue::List(elements) => elements.iter().flat_map(|element| split(element)).collect(),
            other => return other,
        };
        if words.is_empty() { RecordedValue::Missing } else { RecordedValue::List(words) }
    }

    /// Returns whether a missing attribute means that the client did not send it. `false` for mapped JSON lines,
    /// because an application may leave out a field for other reasons.
    pub fn is_as_sent(&self) -> bool {
        matches!(self.log, LogFields::Common | LogFields::Combined)
    }

    /// Returns the request as far as the log records it. The request has no credentials, and its client address is
    /// unspecified.
    pub fn request(&self) -> Request<'_> {
        let nobody = ClientAddress::new(IpAddr::from([0, 0, 0, 0]), 64);
        Request::new(&self.head, nobody)
    }

    fn resolve(&self, attribute: &Attribute) -> RecordedValue<'_> {
        if *attribute == Attribute::Host && self.head.uri.authority().is_none() && !self.head.headers.contains_key(HOST)
        {
            return RecordedValue::Missing;
        }
        attribute.resolve(&self.request()).map_or(RecordedValue::Missing, RecordedValue::Value)
    }
}

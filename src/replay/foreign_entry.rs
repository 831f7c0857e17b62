//! Holds what a line of a foreign log tells of one request, and what it cannot tell.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{HOST, REFERER, USER_AGENT};
use http::request::Parts;

use super::field_map::FieldMap;
use crate::auth::client_ip;
use crate::limit::attribute::Attribute;
use crate::limit::request::{ClientAddress, Request};

/// There is one route and one upstream, and this is what both are called.
pub const ONLY: &str = "default";

/// A request as a log remembers it.
#[derive(Debug)]
pub struct ForeignEntry {
    /// Method, target and fields, as far as they are told.
    pub head: Parts,
    /// Who was connected.
    pub peer: Option<IpAddr>,
    pub told: LogFields,
}

/// Which log it was, and so what is told beside the head.
#[derive(Debug)]
pub enum LogFields {
    /// nginx and Apache: method, target, address.
    Common,
    /// Referer and user agent as well.
    Combined,
    /// What the fields are mapped to, with what this line has in them.
    Mapped(Arc<FieldMap>, Vec<Option<Box<[u8]>>>),
}

/// What a log says of one attribute of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded<'a> {
    Value(Cow<'a, [u8]>),
    /// The request had none.
    Missing,
    /// The log would not say, whatever the request had.
    Nothing,
}

impl ForeignEntry {
    pub fn client(&self, settings: &client_ip::Settings) -> Option<ClientAddress> {
        Some(settings.client(self.peer?, &self.head.headers))
    }

    /// `client` is what [`ForeignEntry::client`] found under the same file.
    pub fn says(&self, attribute: &Attribute, client: Option<ClientAddress>) -> Recorded<'_> {
        let known = |known: bool| if known { self.resolve(attribute) } else { Recorded::Nothing };
        if let Attribute::Address = attribute {
            return client.map_or(Recorded::Nothing, |client| Recorded::Value(Cow::Owned(client.text().into_bytes())));
        }
        if let LogFields::Mapped(fields, values) = &self.told {
            return match (attribute, fields.index(attribute)) {
                // These stand in the head, where they are read as a gateway reads them.
                (Attribute::Method | Attribute::Path | Attribute::Host | Attribute::Header(_), Some(_)) => known(true),
                (_, Some(place)) => match values.get(place) {
                    Some(Some(value)) => Recorded::Value(Cow::Borrowed(value)),
                    _ => Recorded::Missing,
                },
                (Attribute::Query(_), None) => known(fields.index(&Attribute::Path).is_some()),
                (Attribute::Host, None) => known(self.head.uri.authority().is_some()),
                (Attribute::Route | Attribute::Upstream, None) => Recorded::Value(Cow::Borrowed(ONLY.as_bytes())),
                (_, None) => Recorded::Nothing,
            };
        }
        match attribute {
            Attribute::Method | Attribute::Path | Attribute::Query(_) => known(true),
            Attribute::Host => known(self.head.uri.authority().is_some()),
            Attribute::Header(name) => {
                known(matches!(self.told, LogFields::Combined) && (name == REFERER || name == USER_AGENT))
            }
            Attribute::Route | Attribute::Upstream => Recorded::Value(Cow::Borrowed(ONLY.as_bytes())),
            Attribute::Address | Attribute::Claim(_) | Attribute::KeyId | Attribute::KeyPlan | Attribute::Cookie(_) => {
                Recorded::Nothing
            }
        }
    }

    /// Whether what is not there was not sent: of a field of an application's, nobody knows.
    pub fn is_as_sent(&self) -> bool {
        matches!(self.told, LogFields::Common | LogFields::Combined)
    }

    /// As far as it can be shown: without credentials, and from nobody.
    pub fn request(&self) -> Request<'_> {
        let nobody = ClientAddress::new(IpAddr::from([0, 0, 0, 0]), 64);
        Request { head: &self.head, client: nobody, claims: None, key: None, route: ONLY, upstream: ONLY }
    }

    fn resolve(&self, attribute: &Attribute) -> Recorded<'_> {
        if *attribute == Attribute::Host && self.head.uri.authority().is_none() && !self.head.headers.contains_key(HOST)
        {
            return Recorded::Missing;
        }
        attribute.resolve(&self.request()).map_or(Recorded::Missing, Recorded::Value)
    }
}

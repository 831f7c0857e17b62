//! Determines which attributes each door (way to the decision) can supply, and which every request has. Another proxy sends only a
//! part of a request.

use super::Attribute;
use crate::door::Door;
use crate::sent_descriptor::{DOMAIN, ENTRIES};

impl Attribute {
    /// Whether a request that reaches the decision through `door` can have a value of this attribute.
    pub fn is_supplied_at(&self, door: Door) -> bool {
        match self {
            Attribute::Listener | Attribute::Door => true,
            Attribute::Descriptor(name) => match door {
                Door::Proxy | Door::Http => false,
                // With `ext_authz` the entries are a map, without an order and without a domain.
                Door::ExtAuthz => ![DOMAIN, ENTRIES].contains(&&**name),
                Door::Rls | Door::Json => true,
            },
            // No route is chosen for another proxy's request.
            Attribute::Route | Attribute::Upstream => door == Door::Proxy,
            // Another proxy sends no body of its client.
            Attribute::RequestJson(_) | Attribute::JsonAmount(_) | Attribute::RequestForm(_) | Attribute::Model => {
                door == Door::Proxy
            }
            // The connection belongs to the asking proxy. With `ext_authz`, the proxy may report the TLS properties of
            // its client.
            Attribute::TlsServerName | Attribute::TlsClient(_) => matches!(door, Door::Proxy | Door::ExtAuthz),
            Attribute::Folded(_, source) => source.is_supplied_at(door),
            Attribute::Claim(_)
            | Attribute::Words(_)
            | Attribute::ClaimedAmount(_)
            | Attribute::KeyId
            | Attribute::KeyPlan
            | Attribute::KeyColumn(_)
            | Attribute::Header(_)
            | Attribute::Query(_)
            | Attribute::Cookie(_)
            | Attribute::Address
            | Attribute::Method
            | Attribute::Host
            | Attribute::Scheme
            | Attribute::Path
            | Attribute::PathSegment(_) => !door.has_only_descriptors(),
        }
    }

    /// Whether every request has a value of the attribute, whatever the client sends.
    pub fn is_never_missing(&self) -> bool {
        match self {
            Attribute::Address
            | Attribute::Method
            | Attribute::Host
            | Attribute::Scheme
            | Attribute::Listener
            | Attribute::Door
            | Attribute::Path
            | Attribute::Route => true,
            // A request has no upstream if its route answers it.
            Attribute::Upstream
            | Attribute::RequestJson(_)
            | Attribute::JsonAmount(_)
            | Attribute::RequestForm(_)
            | Attribute::Model
            | Attribute::Claim(_)
            | Attribute::Words(_)
            | Attribute::KeyId
            | Attribute::KeyPlan
            | Attribute::KeyColumn(_)
            | Attribute::ClaimedAmount(_)
            | Attribute::Header(_)
            | Attribute::Query(_)
            | Attribute::Cookie(_)
            | Attribute::TlsServerName
            | Attribute::TlsClient(_)
            | Attribute::PathSegment(_)
            | Attribute::Descriptor(_) => false,
            Attribute::Folded(folding, source) => !folding.is_trim() && source.is_never_missing(),
        }
    }
}

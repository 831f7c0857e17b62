//! Defines the changes of header fields that a route makes. The new values may contain attributes of the request.

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

use request::attribute::{Attribute, is_alias};
use request::request::Request;

/// Header fields that are set or removed in each request or response of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    /// The fields to set. Each field replaces all fields of the same name.
    pub set: Vec<(HeaderName, FieldValue)>,
    pub remove: Vec<HeaderName>,
}

/// The value that a route gives to a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    Fixed(HeaderValue),
    /// A text that contains attributes of the request.
    Composed(Vec<ValuePart>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePart {
    Text(String),
    Attribute(Attribute),
}

/// The changes of header fields for one request. A field with the value `None` is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedChanges(pub Vec<(HeaderName, Option<HeaderValue>)>);

impl HeaderChanges {
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    /// Returns the attributes that the values of the fields contain.
    pub fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        self.set.iter().flat_map(|(_, value)| value.attributes())
    }

    /// Returns the changes for a request. A field whose value cannot be made is removed, so that the upstream never
    /// gets the client's own value.
    pub fn resolve(&self, request: &Request<'_>) -> ResolvedChanges {
        let set = self.set.iter().map(|(name, value)| (name.clone(), value.resolve(request)));
        ResolvedChanges(set.chain(self.remove.iter().map(|name| (name.clone(), None))).collect())
    }
}

impl FieldValue {
    /// Returns the attributes that the value contains.
    pub fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        let parts = match self {
            FieldValue::Fixed(_) => &[],
            FieldValue::Composed(parts) => parts.as_slice(),
        };
        parts.iter().filter_map(|part| match part {
            ValuePart::Text(_) => None,
            ValuePart::Attribute(attribute) => Some(attribute),
        })
    }

    /// Makes the value for a request. `None` if an attribute of the value is missing, contains a control character or
    /// has spaces around it.
    pub fn resolve(&self, request: &Request<'_>) -> Option<HeaderValue> {
        let parts = match self {
            FieldValue::Fixed(value) => return Some(value.clone()),
            FieldValue::Composed(parts) => parts,
        };
        let mut value = Vec::new();
        for part in parts {
            match part {
                ValuePart::Text(text) => value.extend_from_slice(text.as_bytes()),
                ValuePart::Attribute(attribute) => {
                    let found = attribute.resolve(request)?;
                    if found.trim_ascii() != &*found {
                        return None;
                    }
                    value.extend_from_slice(&found);
                }
            }
        }
        HeaderValue::from_bytes(&value).ok()
    }
}

impl ResolvedChanges {
    /// Applies the changes to the fields of a request. Also removes fields with a similar name, such as `X_Tenant` and
    /// `X.Tenant` for `X-Tenant`.
    pub fn apply(&self, headers: &mut HeaderMap) {
        let is_forged = |other: &&HeaderName| self.0.iter().any(|(name, _)| is_alias(other, name));
        let forged: Vec<HeaderName> = headers.keys().filter(is_forged).cloned().collect();
        for name in forged {
            headers.remove(name);
        }
        for (name, value) in &self.0 {
            match value {
                Some(value) => drop(headers.insert(name.clone(), value.clone())),
                None => drop(headers.remove(name)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use request::client_address::ClientAddress;

    /// Returns these fields as the upstream gets them from a route that sets `X-Tenant` to the value of `X-Org`.
    fn changed(fields: &[(&'static str, &'static [u8])]) -> Vec<(String, Vec<u8>)> {
        let mut head = http::Request::new(()).into_parts().0;
        for (name, value) in fields {
            head.headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        let name = |name| HeaderName::from_static(name);
        let org = ValuePart::Attribute(Attribute::parse("query:org").unwrap());
        let value = FieldValue::Composed(vec![ValuePart::Text("<".to_owned()), org, ValuePart::Text(">".to_owned())]);
        let changes = HeaderChanges {
            set: vec![(name("x-tenant"), value), (name("x-fixed"), FieldValue::Fixed(HeaderValue::from_static("1")))],
            remove: vec![name("x-debug")],
        };
        head.uri = match fields.iter().find(|(name, _)| *name == "x-org") {
            Some((_, org)) => {
                let org: String = org.iter().map(|byte| format!("%{byte:02x}")).collect();
                format!("/?org={org}").parse().unwrap()
            }
            None => "/".parse().unwrap(),
        };
        let client = ClientAddress::new(IpAddr::from([192, 0, 2, 1]), 64);
        let resolved = changes.resolve(&Request::new(&head, client));
        let mut headers = head.headers.clone();
        headers.remove("x-org");
        resolved.apply(&mut headers);
        headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn fields_are_set_and_removed_whatever_the_client_sent() {
        let sent: &[(&str, &[u8])] = &[
            ("x-tenant", b"evil"),
            ("x_tenant", b"evil"),
            ("x.tenant", b"evil"),
            ("x-debug", b"1"),
            ("x-debug", b"2"),
            ("x-fixed", b"2"),
            ("x-org", "münchen".as_bytes()),
            ("x-other", b"3"),
        ];
        let mut found = changed(sent);
        found.sort();
        let field = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        assert_eq!(found, [field("x-fixed", "1"), field("x-other", "3"), field("x-tenant", "<münchen>")]);
    }

    #[test]
    fn a_value_that_cannot_be_sent_removes_the_field() {
        let tenant = |value: Option<&'static [u8]>| {
            let mut sent: Vec<(&str, &[u8])> = vec![("x-tenant", b"evil")];
            sent.extend(value.map(|value| ("x-org", value)));
            changed(&sent).into_iter().any(|(name, _)| name == "x-tenant")
        };
        assert!(tenant(Some(b"a b, c")));
        for value in [None, Some(&b" a"[..]), Some(b"a\t")] {
            assert!(!tenant(value), "{value:?}");
        }
    }

    #[test]
    fn an_attribute_cannot_add_a_line() {
        let mut head = http::Request::new(()).into_parts().0;
        let client = ClientAddress::new(IpAddr::from([192, 0, 2, 1]), 64);
        let value = FieldValue::Composed(vec![ValuePart::Attribute(Attribute::parse("query:a").unwrap())]);
        for (query, expected) in [("a%0d%0aX-Admin:1", None), ("a%00", None), ("a%7f", None), ("a%3ab", Some("a:b"))] {
            head.uri = format!("/?a={query}").parse().unwrap();
            let found = value.resolve(&Request::new(&head, client));
            assert_eq!(found, expected.map(HeaderValue::from_static), "{query}");
        }
    }
}

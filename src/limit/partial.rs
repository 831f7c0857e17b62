//! Evaluates conditions on values that are known, known only by a pseudonym, or not known at all.
//!
//! Our own log has pseudonyms of clients, and another server's log lacks what that server does not record. For such a
//! request some rules can be decided and others cannot; an unknown value never counts as absent.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use super::attribute::Attribute;
use super::matcher::{Expectation, QuotedText, Text};
use crate::base::pseudonym::{Pseudonym, PseudonymKey};
use crate::base::time::Timestamp;

/// What is known of an attribute's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation<'a> {
    Value(Cow<'a, [u8]>),
    /// The request does not have it.
    Missing,
    /// Only the value's pseudonym is known.
    Named(Pseudonym),
    Unknown,
}

/// What is known of a request besides its attributes.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    /// The client's whole address, for matching networks.
    pub client: Option<IpAddr>,
    /// The token's issuer, where the file trusts several: a claim is counted together with it.
    pub issuer: Option<&'a str>,
    /// Calendar time: rules may apply until a date.
    pub at: Timestamp,
    /// The key of the pseudonyms.
    pub names: &'a PseudonymKey,
}

impl<'a> From<Option<Cow<'a, [u8]>>> for Observation<'a> {
    fn from(value: Option<Cow<'a, [u8]>>) -> Observation<'a> {
        value.map_or(Observation::Missing, Observation::Value)
    }
}

/// The end of a sentence that begins with the attribute.
impl fmt::Display for Observation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Observation::Value(value) => write!(f, "is {}", QuotedText(value)),
            Observation::Missing => f.write_str("is missing"),
            Observation::Named(name) => write!(f, "is what is called {name}"),
            Observation::Unknown => f.write_str("is not known"),
        }
    }
}

impl Expectation {
    /// Whether it holds; `None` if what is known does not determine that.
    pub fn evaluate(&self, attribute: &Attribute, seen: &Observation<'_>, known: &Knowledge<'_>) -> Option<bool> {
        // No other expectation reads the address.
        const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        match (self, seen) {
            (Expectation::Cidr(_), _) => known.client.map(|client| self.holds(None, client)),
            (Expectation::All(each), _) => all(each.iter().map(|one| one.evaluate(attribute, seen, known))),
            (_, Observation::Value(value)) => Some(self.holds(Some(value), NOBODY)),
            (_, Observation::Missing) => Some(self.holds(None, NOBODY)),
            (Expectation::Present(present), Observation::Named(_)) => Some(*present),
            (Expectation::AnyOf(texts), Observation::Named(name)) => is_one_of(texts, attribute, *name, known.names),
            (Expectation::Not(texts), Observation::Named(name)) => {
                is_one_of(texts, attribute, *name, known.names).map(|is| !is)
            }
            (Expectation::Prefix(_) | Expectation::Suffix(_) | Expectation::Regex(_), Observation::Named(_)) => None,
            (_, Observation::Unknown) => None,
        }
    }
}

/// A single failure decides, even if others are not known.
fn all(results: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut together = Some(true);
    for result in results {
        match result {
            Some(false) => return Some(false),
            Some(true) => {}
            None => together = None,
        }
    }
    together
}

/// A text has a pseudonym that can be compared; a pattern for many texts has not.
fn is_one_of(texts: &[Text], attribute: &Attribute, name: Pseudonym, names: &PseudonymKey) -> Option<bool> {
    let attribute = attribute.to_string();
    let mut among = Some(false);
    for text in texts {
        match text {
            Text::Exact(text) if names.value(&attribute, text) == name => return Some(true),
            Text::Exact(_) => {}
            Text::Subtree(_) => among = None,
        }
    }
    among
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks an expectation of `path` whose value has the pseudonym of `/a`.
    #[track_caller]
    fn check(expectation: &Expectation, expected: impl Into<Option<bool>>) {
        let names = PseudonymKey::default();
        let known = Knowledge { client: None, issuer: None, at: Timestamp(0), names: &names };
        let seen = Observation::Named(names.value("path", b"/a"));
        assert_eq!(expectation.evaluate(&Attribute::Path, &seen, &known), expected.into(), "{expectation}");
    }

    #[test]
    fn a_pseudonym_is_compared_only_with_whole_texts() {
        let texts = |texts: &[&str]| texts.iter().map(|text| Text::for_path(text)).collect::<Vec<_>>();
        check(&Expectation::AnyOf(texts(&["/a"])), true);
        check(&Expectation::AnyOf(texts(&["/b"])), false);
        check(&Expectation::AnyOf(texts(&["/b", "/a/*"])), None);
        check(&Expectation::AnyOf(texts(&["/a/*", "/a"])), true);
        check(&Expectation::Not(texts(&["/a"])), false);
        check(&Expectation::Not(texts(&["/b"])), true);
        check(&Expectation::Not(texts(&["/b/*"])), None);
        check(&Expectation::Present(true), true);
        check(&Expectation::Present(false), false);
        check(&Expectation::Prefix(b"/".to_vec()), None);
        check(&Expectation::Cidr(vec!["10.0.0.0/8".parse().unwrap()]), None);
        let both = |one: Expectation| Expectation::All(vec![Expectation::Prefix(b"/".to_vec()), one]);
        check(&both(Expectation::Present(false)), false);
        check(&both(Expectation::Present(true)), None);
    }
}

//! Evaluates conditions on values that may be unknown, or known only by their pseudonym.
//!
//! The gateway's own log has pseudonyms of clients, and another server's log lacks some attributes. An unknown value
//! never counts as missing.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use base::pseudonym::{Pseudonym, PseudonymKey};
use base::time::Timestamp;
use request::attribute::{Attribute, Folding};
use request::attribute_value::AttributeValue;
use request::matcher::{Expectation, QuotedText, Text};

/// The largest number of list elements that are printed.
const MOST_SHOWN: usize = 12;

/// What is known about an attribute's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation<'a> {
    Value(Cow<'a, [u8]>),
    /// A list with at least one element. The value or the pseudonym of each element is known.
    List(Vec<Observation<'a>>),
    /// The request does not have the attribute.
    Missing,
    /// Only the value's pseudonym is known.
    Named(Pseudonym),
    Unknown,
}

/// What is known about a request, apart from the values of its attributes.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    /// The client's whole address, for conditions that compare it with networks. `None` if the address is unknown.
    pub client: Option<IpAddr>,
    /// The issuer of the token, if the file trusts several issuers. Each issuer's claims have buckets of their own.
    pub issuer: Option<&'a str>,
    /// The time for calendars and for rules that expire.
    pub at: Timestamp,
    /// The key from which the gateway makes pseudonyms.
    pub names: &'a PseudonymKey,
    /// Whether a service holds what it takes until it settles.
    pub is_held: bool,
}

impl<'a> From<AttributeValue<'a>> for Observation<'a> {
    fn from(value: AttributeValue<'a>) -> Observation<'a> {
        match value {
            AttributeValue::Missing => Observation::Missing,
            AttributeValue::Single(value) => Observation::Value(value),
            AttributeValue::List(list) => Observation::list(list.elements()),
        }
    }
}

impl<'a> Observation<'a> {
    /// Returns what is known of the value after `folding`. The pseudonym after it does not follow from the pseudonym
    /// before it.
    #[must_use]
    pub fn folded(self, folding: Folding) -> Observation<'a> {
        match self {
            _ if folding.is_none() => self,
            Observation::Value(value) => folding.of_value(value).map_or(Observation::Missing, Observation::Value),
            Observation::List(elements) => {
                let elements = elements.into_iter().map(|element| element.folded(folding));
                let elements: Vec<_> = elements.filter(|element| *element != Observation::Missing).collect();
                let is_known = |element: &Observation<'_>| matches!(element, Observation::Value(_));
                match elements.is_empty() {
                    true => Observation::Missing,
                    // Trimming may leave nothing of any element.
                    false if folding.is_trim() && !elements.iter().any(is_known) => Observation::Unknown,
                    false => Observation::List(elements),
                }
            }
            Observation::Named(_) => Observation::Unknown,
            known @ (Observation::Missing | Observation::Unknown) => known,
        }
    }
}

impl Observation<'_> {
    /// Makes the observation of a claim with these elements. Without elements the claim is `Missing`.
    pub fn list(elements: Vec<Vec<u8>>) -> Observation<'static> {
        if elements.is_empty() {
            return Observation::Missing;
        }
        Observation::List(elements.into_iter().map(|element| Observation::Value(Cow::Owned(element))).collect())
    }
}

/// Displays the observation as the end of a sentence that begins with the attribute.
impl fmt::Display for Observation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Observation::Value(value) => write!(f, "is {}", QuotedText(value)),
            Observation::List(elements) => {
                for (index, element) in elements.iter().take(MOST_SHOWN).enumerate() {
                    write!(f, "{}{}", if index == 0 { "has " } else { ", " }, Element(element))?;
                }
                match elements.len().saturating_sub(MOST_SHOWN) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
            Observation::Missing => f.write_str("is missing"),
            Observation::Named(name) => write!(f, "is what is called {name}"),
            Observation::Unknown => f.write_str("is not known"),
        }
    }
}

/// Displays an element of a list: its value in quotes, or its pseudonym.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element<'e, 'a>(pub &'e Observation<'a>);

impl fmt::Display for Element<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Observation::Value(value) => write!(f, "{}", QuotedText(value)),
            Observation::Named(name) => write!(f, "{name}"),
            Observation::List(_) | Observation::Missing | Observation::Unknown => f.write_str("?"),
        }
    }
}

impl Knowledge<'_> {
    /// Returns whether an attribute meets an expectation. `seen` is what is known about the value of the attribute.
    /// `None` if `seen` does not determine the result.
    pub(crate) fn evaluate(
        &self,
        expectation: &Expectation,
        attribute: &Attribute,
        seen: &Observation<'_>,
    ) -> Option<bool> {
        // Only a comparison with networks reads the address.
        const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        match (expectation, seen) {
            (Expectation::Cidr(_) | Expectation::CidrFile(_), Observation::Missing) => Some(false),
            (Expectation::Cidr(_) | Expectation::CidrFile(_), _) => {
                self.client.map(|client| expectation.holds(Some(b""), client))
            }
            (Expectation::All(each), _) => all(each.iter().map(|one| self.evaluate(one, attribute, seen))),
            (Expectation::Present(present), Observation::List(_)) => Some(*present),
            (Expectation::Not(_), Observation::List(elements)) => {
                all(elements.iter().map(|element| self.evaluate(expectation, attribute, element)))
            }
            (_, Observation::List(elements)) => {
                let none = all(elements
                    .iter()
                    .map(|element| self.evaluate(expectation, attribute, element).map(|holds| !holds)));
                none.map(|none| !none)
            }
            (_, Observation::Value(value)) => Some(expectation.holds(Some(value), NOBODY)),
            (_, Observation::Missing) => Some(expectation.holds(None, NOBODY)),
            (Expectation::Present(present), Observation::Named(_)) => Some(*present),
            (Expectation::AnyOf(texts), Observation::Named(name)) => is_one_of(texts, attribute, *name, self.names),
            (Expectation::Not(texts), Observation::Named(name)) => {
                is_one_of(texts, attribute, *name, self.names).map(|is| !is)
            }
            (
                Expectation::Prefix(_) | Expectation::Suffix(_) | Expectation::Regex(_) | Expectation::InFile(_),
                Observation::Named(_),
            ) => None,
            (_, Observation::Unknown) => None,
        }
    }
}

/// Whether all results are true. One false result makes the answer false, even if other results are unknown.
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

/// Whether a pseudonym belongs to one of these texts. `None` if this is unknown, because a pattern stands for many
/// texts.
fn is_one_of(texts: &[Text], attribute: &Attribute, name: Pseudonym, names: &PseudonymKey) -> Option<bool> {
    let attribute = attribute.to_string();
    let mut among = Some(false);
    for text in texts {
        match text {
            Text::Exact(text) if names.value(&attribute, text) == name => return Some(true),
            Text::Exact(_) => {}
            Text::Subtree(_) | Text::Subdomain(_) => among = None,
        }
    }
    among
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_values_and_pseudonyms_is_decided_as_far_as_it_is_known() {
        let names = PseudonymKey::default();
        let attribute = Attribute::Claim("roles".to_owned());
        let known = Knowledge { client: None, issuer: None, at: Timestamp(0), names: &names, is_held: false };
        let named = |text: &str| Observation::Named(names.value("jwt:roles", text.as_bytes()));
        let list = Observation::List(vec![Observation::Value(b"dev"[..].into()), named("ops")]);
        let texts = |texts: &[&str]| texts.iter().map(|text| Text::exact(text)).collect::<Vec<_>>();
        for (expectation, expected) in [
            (Expectation::AnyOf(texts(&["dev"])), Some(true)),
            (Expectation::AnyOf(texts(&["x", "ops"])), Some(true)),
            (Expectation::AnyOf(texts(&["x"])), Some(false)),
            (Expectation::Not(texts(&["ops"])), Some(false)),
            (Expectation::Not(texts(&["x"])), Some(true)),
            (Expectation::Prefix(b"d".to_vec()), Some(true)),
            (Expectation::Prefix(b"o".to_vec()), None),
            (Expectation::Present(true), Some(true)),
            (Expectation::Present(false), Some(false)),
            (
                Expectation::All(vec![Expectation::Prefix(b"o".to_vec()), Expectation::Not(texts(&["dev"]))]),
                Some(false),
            ),
        ] {
            assert_eq!(known.evaluate(&expectation, &attribute, &list), expected, "{expectation}");
        }
        assert_eq!(Observation::list(vec![b"a".to_vec(), b"b".to_vec()]).to_string(), r#"has "a", "b""#);
        let many = Observation::list((0..14).map(|_| b"a".to_vec()).collect()).to_string();
        assert!(many.ends_with(r#""a" and 2 more"#), "{many}");
    }

    /// Checks an expectation of `path`. The request has the path `/a`, but only the pseudonym of this path is known.
    #[track_caller]
    fn check(expectation: &Expectation, expected: impl Into<Option<bool>>) {
        let names = PseudonymKey::default();
        let known = Knowledge { client: None, issuer: None, at: Timestamp(0), names: &names, is_held: false };
        let seen = Observation::Named(names.value("path", b"/a"));
        assert_eq!(known.evaluate(expectation, &Attribute::Path, &seen), expected.into(), "{expectation}");
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

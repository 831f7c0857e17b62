//! Judges what a rule expects of a value that may be known, known only by its name, or not known at all.
//!
//! A log of ours tells clients apart without telling who they are, and one of another server lacks what it never wrote. Of
//! such a request some rules can be decided and others cannot; what is not known is never taken for absent.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use super::attribute::Attribute;
use super::matcher::{Expectation, Quoted, Text};
use crate::base::pseudonym::{Pseudonym, PseudonymKey};
use crate::base::time::Timestamp;

/// What is known of an attribute's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed<'a> {
    Value(Cow<'a, [u8]>),
    /// The request has none.
    Missing,
    /// Only what the value is called where it must not be told.
    Named(Pseudonym),
    Unknown,
}

/// What is known of a request beside its attributes.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    /// The client's whole address, for matching networks.
    pub client: Option<IpAddr>,
    /// Of the token, where the file trusts several: a part of whatever is counted by a claim.
    pub issuer: Option<&'a str>,
    /// By the calendar: rules may hold until a date.
    pub at: Timestamp,
    /// What the names of values were made with.
    pub names: &'a PseudonymKey,
}

impl<'a> From<Option<Cow<'a, [u8]>>> for Observed<'a> {
    fn from(value: Option<Cow<'a, [u8]>>) -> Observed<'a> {
        value.map_or(Observed::Missing, Observed::Value)
    }
}

/// As a sentence ends that begins with the attribute.
impl fmt::Display for Observed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Observed::Value(value) => write!(f, "is {}", Quoted(value)),
            Observed::Missing => f.write_str("is missing"),
            Observed::Named(name) => write!(f, "is what is called {name}"),
            Observed::Unknown => f.write_str("is not known"),
        }
    }
}

impl Expectation {
    /// Whether it holds; none when that cannot be told from what is known.
    pub fn judge(&self, attribute: &Attribute, seen: &Observed<'_>, known: &Knowledge<'_>) -> Option<bool> {
        // No other expectation looks at the address.
        const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        match (self, seen) {
            (Expectation::Cidr(_), _) => known.client.map(|client| self.holds(None, client)),
            (Expectation::All(each), _) => all(each.iter().map(|one| one.judge(attribute, seen, known))),
            (_, Observed::Value(value)) => Some(self.holds(Some(value), NOBODY)),
            (_, Observed::Missing) => Some(self.holds(None, NOBODY)),
            (Expectation::Present(present), Observed::Named(_)) => Some(*present),
            (Expectation::AnyOf(texts), Observed::Named(name)) => is_one_of(texts, attribute, *name, known.names),
            (Expectation::Not(texts), Observed::Named(name)) => {
                is_one_of(texts, attribute, *name, known.names).map(|is| !is)
            }
            (Expectation::Prefix(_) | Expectation::Suffix(_) | Expectation::Regex(_), Observed::Named(_)) => None,
            (_, Observed::Unknown) => None,
        }
    }
}

/// One that fails decides, whatever is not known of the others.
fn all(judgements: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut together = Some(true);
    for judgement in judgements {
        match judgement {
            Some(false) => return Some(false),
            Some(true) => {}
            None => together = None,
        }
    }
    together
}

/// A text can be named as well, and names compared; what stands for many texts cannot.
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

    /// How `path` is judged whose value is called as `/a` is.
    #[track_caller]
    fn check(expectation: &Expectation, judged: impl Into<Option<bool>>) {
        let names = PseudonymKey::default();
        let known = Knowledge { client: None, issuer: None, at: Timestamp(0), names: &names };
        let seen = Observed::Named(names.value("path", b"/a"));
        assert_eq!(expectation.judge(&Attribute::Path, &seen, &known), judged.into(), "{expectation}");
    }

    #[test]
    fn of_a_name_only_whole_texts_can_be_told() {
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

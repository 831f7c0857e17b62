//! Detects requests that can be read in more than one way, in the parts that the configuration reads.
//!
//! The upstream might read a different value than the value that was verified or charged. So this check covers every
//! request, before any rule.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, CONNECTION, COOKIE, HeaderName};

use super::rule::{Action, Condition, Mode, Policy, Price};
use request::attribute::{Attribute, is_alias, is_nominated};
use request::cookie;
use request::key_places::{KeyPlace, KeyPlaces};
use request::path;
use request::query;
use request::request::Request;

/// Checks that each part of a request that rules read has only one reading.
#[derive(Clone, Debug, Default)]
pub struct AmbiguityCheck {
    /// Attributes that a request can repeat.
    repeatable: Vec<Attribute>,
    reads_path: bool,
    /// The places of API keys. `None` if the configuration has no API keys.
    keys: Option<KeyPlaces>,
}

/// The part of a request that can be read in more than one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ambiguity {
    /// An attribute that rules read. The request repeats it, removes it with `Connection`, or has an attribute with a
    /// similar name. Upstreams may read both names as the same name. Or the request has two different API keys.
    Ambiguous,
    /// The path of the request can be read in more than one way.
    Path,
}

impl AmbiguityCheck {
    /// Makes a check for the attributes that are read by exemptions, or by enforced policies and rules. Policies and
    /// rules in shadow mode (dry runs) never refuse a request, and are left out.
    pub(crate) fn of(policies: &[Policy], exempt: &[Vec<Condition>]) -> AmbiguityCheck {
        let mut check = AmbiguityCheck::default();
        check.add(enforced_attributes(policies, exempt));
        check
    }

    pub fn add(&mut self, attributes: impl IntoIterator<Item = Attribute>) {
        for attribute in attributes.into_iter().map(|attribute| attribute.source().clone()) {
            let repeatable = matches!(attribute, Attribute::Header(_) | Attribute::Query(_) | Attribute::Cookie(_));
            self.reads_path |= matches!(attribute, Attribute::Path | Attribute::PathSegment(_) | Attribute::Model);
            if repeatable && !self.repeatable.contains(&attribute) {
                self.repeatable.push(attribute);
            }
        }
    }

    /// Adds the check that a request has at most one API key. The attributes that carry keys must be added too.
    pub(crate) fn add_keys(&mut self, places: KeyPlaces) {
        self.keys = Some(places);
    }

    /// Returns the two places of a request that carry different API keys. `None` if there is at most one key.
    pub fn different_keys(&self, request: &Request<'_>) -> Option<(&KeyPlace, &KeyPlace)> {
        self.keys.as_ref()?.conflict(request)
    }

    /// Returns the first attribute that can be read in more than one way, as [`Ambiguity::Ambiguous`] describes. `None`
    /// if there is no such attribute.
    pub fn ambiguous(&self, request: &Request<'_>) -> Option<&Attribute> {
        let mut attributes = self.repeatable.iter();
        attributes.find(|attribute| attribute.is_ambiguous(request) || self.alias(attribute, request).is_some())
    }

    /// Returns a different name in the request that may be read as the name of `attribute`. A name that rules read
    /// too does not count.
    pub fn alias<'r>(&self, attribute: &Attribute, request: &Request<'r>) -> Option<Cow<'r, [u8]>> {
        let is_read = |is_it: &dyn Fn(&Attribute) -> bool| self.repeatable.iter().any(is_it);
        match attribute {
            Attribute::Header(name) => {
                let read = |other: &HeaderName| is_read(&|one| matches!(one, Attribute::Header(name) if name == other));
                let alias = request.head.headers.keys().find(|other| is_alias(other, name) && !read(other))?;
                Some(Cow::Borrowed(alias.as_str().as_bytes()))
            }
            Attribute::Query(name) => query::alias(request.head, name.as_bytes(), |other| {
                is_read(&|one| matches!(one, Attribute::Query(name) if name.as_bytes() == other))
            }),
            Attribute::Cookie(name) => cookie::alias(request.head, name.as_bytes(), |other| {
                is_read(&|one| matches!(one, Attribute::Cookie(name) if name.as_bytes() == other))
            }),
            _ => None,
        }
    }

    /// Checks that a request can be read in only one way.
    ///
    /// # Errors
    /// Returns the part that has several readings.
    pub fn check(&self, request: &Request<'_>) -> Result<(), Ambiguity> {
        if self.ambiguous(request).is_some() || self.different_keys(request).is_some() {
            return Err(Ambiguity::Ambiguous);
        }
        // If `Connection` names a field with credentials, the upstream does not get the credentials, and sees another
        // client than the rules.
        let removes = |name| is_nominated(request, name);
        if request.head.headers.contains_key(CONNECTION) && (removes(&AUTHORIZATION) || removes(&COOKIE)) {
            return Err(Ambiguity::Ambiguous);
        }
        if self.reads_path && path::normalise(request.head.uri.path().as_bytes()).is_err() {
            return Err(Ambiguity::Path);
        }
        Ok(())
    }
}

fn enforced_attributes(policies: &[Policy], exempt: &[Vec<Condition>]) -> Vec<Attribute> {
    let mut attributes: Vec<Attribute> = Vec::new();
    let mut add = |attribute: &Attribute| attributes.push(attribute.clone());
    exempt.iter().flatten().for_each(|condition| add(&condition.attribute));
    for policy in policies.iter().filter(|policy| policy.mode == Mode::Enforce) {
        policy.conditions.iter().for_each(|condition| add(&condition.attribute));
        for rule in policy.rules.iter().filter(|rule| rule.mode == Mode::Enforce) {
            rule.conditions.iter().for_each(|condition| add(&condition.attribute));
            rule.keys.iter().flat_map(|key| &key.alternatives).for_each(&mut add);
            if let Action::Charge(limits) = &rule.action {
                for limit in limits {
                    limit.price.attributes().for_each(&mut add);
                    // The path says whether a request is for a language model, so the path is read too.
                    if let Price::Settled(price) = &limit.price
                        && price.source.is_llm()
                    {
                        add(&Attribute::Path);
                    }
                }
            }
        }
    }
    attributes
}

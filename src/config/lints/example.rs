//! Invents requests that meet constraints, to find out what the rules of a policy do with them.

use std::net::IpAddr;

use super::constraints::{Constraints, never_missing};
use super::file::LocatedRule;
use super::texts::root;
use crate::limit::attribute::Attribute;
use crate::limit::matcher::Expectation;
use crate::limit::request::ClientAddress;
use crate::limit::rule::Rule;

/// Values that a file is unlikely to expect.
const ANY: [&[u8]; 2] = [b"/~", b"~"];
const ANYWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 77));

/// The attributes of a request that rules match.
#[derive(Clone, Debug)]
pub struct Example<'f> {
    values: Vec<(&'f Attribute, Option<Vec<u8>>)>,
    client: ClientAddress,
    rest: Rest,
}

/// Whether attributes without constraints are present, if they can be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Missing,
    Present,
}

/// Which of several possible values a request gets.
#[derive(Clone, Copy, Debug)]
enum Pick {
    First,
    Last,
}

impl<'f> Example<'f> {
    /// Some requests that meet the constraints; none if a value cannot be invented.
    pub fn of(constraints: &Constraints<'f>, ipv6_prefix: u8) -> Vec<Example<'f>> {
        let clients = clients(&constraints.on(&Attribute::Address), ipv6_prefix);
        let mut ends = clients.iter();
        let mut examples = Vec::new();
        for client in ends.next().into_iter().chain(ends.next_back()).copied() {
            for rest in [Rest::Missing, Rest::Present] {
                for pick in [Pick::First, Pick::Last] {
                    let mut example = Example { values: Vec::new(), client, rest };
                    let filled = constraints.attributes().all(|attribute| example.fill(attribute, constraints, pick));
                    examples.extend(filled.then_some(example));
                }
            }
        }
        examples
    }

    /// Gives the request a value of this attribute, if one can be invented that meets the constraints.
    fn fill(&mut self, attribute: &'f Attribute, constraints: &Constraints<'f>, pick: Pick) -> bool {
        if *attribute == Attribute::Address || self.values.iter().any(|(filled, _)| *filled == attribute) {
            return true;
        }
        let expected = constraints.on(attribute);
        let mut values: Vec<Option<Vec<u8>>> = Vec::new();
        if !never_missing(attribute) {
            values.push(None);
        }
        values.extend(ANY.map(|value| Some(value.to_vec())));
        expected.iter().for_each(|each| note(each, &mut values));
        let is_path = |value: &Vec<u8>| *attribute != Attribute::Path || value.starts_with(b"/");
        values.retain(|value| value.as_ref().is_none_or(is_path));
        values.retain(|value| expected.iter().all(|each| each.holds(value.as_deref(), ANYWHERE)));
        let value = match pick {
            Pick::First => values.into_iter().next(),
            Pick::Last => values.pop(),
        };
        let found = value.is_some();
        self.values.extend(value.map(|value| (attribute, value)));
        found
    }

    fn value(&self, attribute: &Attribute) -> Option<Vec<u8>> {
        if let Some((_, value)) = self.values.iter().find(|(filled, _)| *filled == attribute) {
            return value.clone();
        }
        match attribute {
            Attribute::Address => Some(self.client.text().into_bytes()),
            Attribute::Route | Attribute::Upstream => Some(b"default".to_vec()),
            Attribute::Path | Attribute::Method | Attribute::Host => Some(b"/~".to_vec()),
            _ => (self.rest == Rest::Present).then(|| b"~".to_vec()),
        }
    }

    /// Whether a rule applies to it, unless the rule has expired.
    pub fn meets(&self, rule: &Rule) -> bool {
        let holds = |attribute: &Attribute, expectation: &Expectation| {
            expectation.holds(self.value(attribute).as_deref(), self.client.address())
        };
        rule.conditions.iter().all(|condition| holds(&condition.attribute, &condition.expectation))
            && rule.keys.iter().all(|key| key.alternatives.iter().any(|part| self.value(&part.attribute).is_some()))
    }

    /// The first enforced rule that applies to it.
    pub fn first<'r>(&self, rules: &'r [LocatedRule<'f>]) -> Option<&'r LocatedRule<'f>> {
        rules.iter().filter(|located| located.is_enforced()).find(|located| self.meets(located.rule))
    }
}

fn note(expectation: &Expectation, values: &mut Vec<Option<Vec<u8>>>) {
    match expectation {
        Expectation::AnyOf(texts) => values.extend(texts.iter().map(|text| Some(root(text).to_vec()))),
        Expectation::Prefix(part) | Expectation::Suffix(part) => {
            values.push(Some(part.clone()));
            // A value that begins or ends so, and is a path.
            values.push(Some([b"/", &part[..]].concat()));
        }
        _ => {}
    }
}

fn clients(expected: &[&Expectation], ipv6_prefix: u8) -> Vec<ClientAddress> {
    let mut addresses = vec![ANYWHERE];
    for expectation in expected {
        match expectation {
            Expectation::AnyOf(texts) => addresses.extend(
                texts
                    .iter()
                    .filter_map(|text| std::str::from_utf8(root(text)).ok()?.split('/').next()?.parse::<IpAddr>().ok()),
            ),
            Expectation::Cidr(networks) => addresses.extend(networks.iter().map(|network| network.addr())),
            _ => {}
        }
    }
    let clients = addresses.into_iter().map(|address| ClientAddress::new(address, ipv6_prefix));
    let fits = |client: &ClientAddress| {
        expected.iter().all(|each| each.holds(Some(client.text().as_bytes()), client.address()))
    };
    clients.filter(fits).collect()
}

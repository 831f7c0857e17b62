//! Makes up a request of a kind, to see what the rules of a policy do with it.

use std::net::IpAddr;

use super::Standing;
use super::known::{Known, never_missing};
use super::texts::root;
use crate::limit::attribute::Attribute;
use crate::limit::matcher::Expectation;
use crate::limit::request::ClientAddress;
use crate::limit::rule::Rule;

/// Values that nothing in a file is likely to expect.
const ANY: [&[u8]; 2] = [b"/~", b"~"];
const ANYWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 77));

/// A request, as far as rules look at it.
#[derive(Clone, Debug)]
pub struct Example<'f> {
    values: Vec<(&'f Attribute, Option<Vec<u8>>)>,
    client: ClientAddress,
    rest: Rest,
}

/// What it has of attributes that its kind says nothing of, where these can be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Missing,
    Present,
}

impl<'f> Example<'f> {
    /// Some requests of this kind; none where no value can be made up.
    pub fn of(known: &Known<'f>, ipv6_prefix: u8) -> Vec<Example<'f>> {
        let clients = clients(&known.on(&Attribute::Address), ipv6_prefix);
        let mut ends = clients.iter();
        let mut examples = Vec::new();
        for client in ends.next().into_iter().chain(ends.next_back()).copied() {
            for rest in [Rest::Missing, Rest::Present] {
                for last in [false, true] {
                    let mut example = Example { values: Vec::new(), client, rest };
                    let filled = known.attributes().all(|attribute| example.fill(attribute, known, last));
                    examples.extend(filled.then_some(example));
                }
            }
        }
        examples
    }

    /// Gives it a value of this attribute, if one can be made up: the first or the last that is as expected.
    fn fill(&mut self, attribute: &'f Attribute, known: &Known<'f>, last: bool) -> bool {
        if *attribute == Attribute::Address || self.values.iter().any(|(filled, _)| *filled == attribute) {
            return true;
        }
        let expected = known.on(attribute);
        let mut values: Vec<Option<Vec<u8>>> = Vec::new();
        if !never_missing(attribute) {
            values.push(None);
        }
        values.extend(ANY.map(|value| Some(value.to_vec())));
        expected.iter().for_each(|each| note(each, &mut values));
        let is_path = |value: &Vec<u8>| *attribute != Attribute::Path || value.starts_with(b"/");
        values.retain(|value| value.as_ref().is_none_or(is_path));
        values.retain(|value| expected.iter().all(|each| each.holds(value.as_deref(), ANYWHERE)));
        let value = if last { values.pop() } else { values.into_iter().next() };
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

    /// Whether a rule applies to it, as long as the rule does at all.
    pub fn meets(&self, rule: &Rule) -> bool {
        let holds = |attribute: &Attribute, expectation: &Expectation| {
            expectation.holds(self.value(attribute).as_deref(), self.client.address())
        };
        rule.conditions.iter().all(|condition| holds(&condition.attribute, &condition.expectation))
            && rule.keys.iter().all(|key| key.alternatives.iter().any(|part| self.value(&part.attribute).is_some()))
    }

    /// The first of these rules that may decide about it.
    pub fn first<'r>(&self, rules: &'r [Standing<'f>]) -> Option<&'r Standing<'f>> {
        rules.iter().filter(|standing| standing.is_enforced()).find(|standing| self.meets(standing.rule))
    }
}

fn note(expectation: &Expectation, values: &mut Vec<Option<Vec<u8>>>) {
    match expectation {
        Expectation::AnyOf(texts) => values.extend(texts.iter().map(|text| Some(root(text).to_vec()))),
        Expectation::Prefix(part) | Expectation::Suffix(part) => {
            values.push(Some(part.clone()));
            // What begins or ends so, and is a path.
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

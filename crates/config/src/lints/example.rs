//! Invents requests that meet constraints, to find out how the rules of a policy treat them.

use std::borrow::Cow;
use std::net::IpAddr;
use std::num::NonZeroU8;

use super::constraints::Constraints;
use super::file::LocatedRule;
use super::texts::root;
use request::attribute::Attribute;
use request::client_address::ClientAddress;
use request::door::Door;
use request::matcher::{Expectation, Text};
use request::path;
use rules::rule::Rule;

/// Values of attributes that a gateway.yaml is unlikely to name.
const ANY: [&[u8]; 2] = [b"/~", b"~"];
const ANYWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 77));

/// An example of a request, with values of the attributes that rules read.
#[derive(Clone, Debug)]
pub(super) struct Example<'f> {
    values: Vec<(&'f Attribute, Option<Vec<u8>>)>,
    client: ClientAddress,
    rest: Rest,
}

/// Whether the attributes without constraints have values. Some attributes always have a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Missing,
    Present,
}

/// The choice among several possible values of an attribute.
#[derive(Clone, Copy, Debug)]
enum Pick {
    First,
    Last,
}

impl<'f> Example<'f> {
    /// Makes some example requests that meet the constraints. Returns no examples if a value cannot be invented.
    pub(super) fn of(constraints: &Constraints<'f>, ipv6_prefix: u8) -> Vec<Example<'f>> {
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

    /// Gives the example a value of this attribute that meets the constraints. Returns `false` if no value can be
    /// invented. For a segment of the path, gives the example a path that has the segment.
    fn fill(&mut self, attribute: &'f Attribute, constraints: &Constraints<'f>, pick: Pick) -> bool {
        let attribute = if matches!(attribute, Attribute::PathSegment(_)) { &Attribute::Path } else { attribute };
        if *attribute == Attribute::Address || self.values.iter().any(|(filled, _)| *filled == attribute) {
            return true;
        }
        // No value is invented for an attribute with constraints both with and without a function such as `lower`. Nor
        // for the path or the address under a function.
        let is_other = |other: &Attribute| other != attribute && other.source() == attribute.source();
        let is_of_request =
            matches!(attribute.source(), Attribute::Path | Attribute::PathSegment(_) | Attribute::Address);
        let folding = attribute.folding();
        if constraints.attributes().any(is_other) || !folding.is_none() && is_of_request {
            return false;
        }
        let expected = constraints.on(attribute);
        let mut values: Vec<Option<Vec<u8>>> = Vec::new();
        if !attribute.is_never_missing() {
            values.push(None);
        }
        values.extend(ANY.map(|value| Some(value.to_vec())));
        expected.iter().for_each(|each| note(each, &mut values));
        if *attribute == Attribute::Path {
            let segments = expected_segments(constraints);
            values.retain(|value| value.as_ref().is_some_and(|value| value.starts_with(b"/")));
            let with_segments = values.iter().flatten().map(|path| Some(with_segments(path, &segments)));
            let with_segments: Vec<_> = with_segments.collect();
            values.extend(with_segments);
            let has_segments = |path: &[u8]| {
                let fits = |(number, expected): &(NonZeroU8, Vec<&Expectation>)| {
                    expected.iter().all(|each| each.holds(path::segment(path, *number), ANYWHERE))
                };
                segments.iter().all(fits)
            };
            values.retain(|value| value.as_deref().is_some_and(has_segments));
        }
        values.retain(|value| expected.iter().all(|each| each.holds(value.as_deref(), ANYWHERE)));
        values.retain(|value| value.as_ref().is_none_or(|value| *folding.of(value.into()) == **value));
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
        let is_of_source = |filled: &Attribute| filled.source() == attribute.source();
        if let Some((_, value)) = self.values.iter().find(|(filled, _)| is_of_source(filled)) {
            return attribute.folding().of_value(value.as_ref()?.into()).map(Cow::into_owned);
        }
        match attribute {
            Attribute::Folded(folding, source) => folding.of_value(self.value(source)?.into()).map(Cow::into_owned),
            Attribute::Address => Some(self.client.text().into_bytes()),
            Attribute::Route | Attribute::Upstream => Some(b"default".to_vec()),
            Attribute::Scheme | Attribute::Listener => Some(b"http".to_vec()),
            Attribute::Door => Some(Door::Proxy.name().as_bytes().to_vec()),
            Attribute::PathSegment(number) => {
                path::segment(&self.value(&Attribute::Path)?, *number).map(<[u8]>::to_vec)
            }
            Attribute::Path | Attribute::Method | Attribute::Host => Some(b"/~".to_vec()),
            _ => (self.rest == Rest::Present).then(|| b"~".to_vec()),
        }
    }

    /// Whether the rule applies to this example. The expiry of the rule is ignored.
    pub(super) fn meets(&self, rule: &Rule) -> bool {
        let holds = |attribute: &Attribute, expectation: &Expectation| {
            expectation.holds(self.value(attribute).as_deref(), self.client.address())
        };
        rule.conditions.iter().all(|condition| holds(&condition.attribute, &condition.expectation))
            && rule.keys.iter().all(|key| key.alternatives.iter().any(|part| self.value(part).is_some()))
    }

    /// Returns the first enforced rule that applies to this example. `None` if no such rule is in `rules`.
    pub(super) fn first<'r>(&self, rules: &'r [LocatedRule<'f>]) -> Option<&'r LocatedRule<'f>> {
        rules.iter().filter(|located| located.is_enforced()).find(|located| self.meets(located.rule))
    }
}

/// Returns the segments of the path that have constraints, with their expectations, in the order of the path.
fn expected_segments<'f>(constraints: &Constraints<'f>) -> Vec<(NonZeroU8, Vec<&'f Expectation>)> {
    let mut segments: Vec<(NonZeroU8, Vec<&Expectation>)> = Vec::new();
    for attribute in constraints.attributes() {
        if let Attribute::PathSegment(number) = attribute
            && !segments.iter().any(|(known, _)| known == number)
        {
            segments.push((*number, constraints.on(attribute)));
        }
    }
    segments.sort_by_key(|(number, _)| *number);
    segments
}

/// Returns the path with invented values in the segments that have expectations. All other segments stay.
fn with_segments(path: &[u8], expected: &[(NonZeroU8, Vec<&Expectation>)]) -> Vec<u8> {
    let mut segments: Vec<Vec<u8>> =
        path.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty()).map(<[u8]>::to_vec).collect();
    for (number, expected) in expected {
        let mut values = Vec::new();
        expected.iter().for_each(|each| note(each, &mut values));
        values.push(Some(b"~".to_vec()));
        let fits =
            |value: &Vec<u8>| !value.contains(&b'/') && expected.iter().all(|each| each.holds(Some(value), ANYWHERE));
        if let Some(value) = values.into_iter().flatten().find(fits) {
            let index = usize::from(number.get() - 1);
            if segments.len() <= index {
                segments.resize(index + 1, b"~".to_vec());
            }
            segments.splice(index..=index, [value]);
        }
    }
    segments.iter().flat_map(|segment| [b"/", &segment[..]].concat()).collect()
}

fn note(expectation: &Expectation, values: &mut Vec<Option<Vec<u8>>>) {
    match expectation {
        Expectation::AnyOf(texts) => values.extend(texts.iter().map(|text| match text {
            Text::Subdomain(suffix) => Some([b"~", &suffix[..]].concat()),
            Text::Exact(_) | Text::Subtree(_) => Some(root(text).to_vec()),
        })),
        Expectation::Prefix(part) | Expectation::Suffix(part) => {
            values.push(Some(part.clone()));
            // A path begins with a slash, so the text is also tried after a slash.
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

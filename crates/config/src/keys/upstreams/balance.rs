//! Reads `balance` of an upstream: how the endpoint of a request is chosen.

use crate::keys::rules::attribute::AttributeReader;
use crate::language::key::{Key, Mapping, TEXT, Type, names, unconstrained};
use crate::language::reader::Field;
use crate::language::shape::{Definition, Shape};
use request::attribute::Attribute;

/// The way in which an upstream chooses the endpoint for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    RoundRobin,
    /// Picks two endpoints at random, and chooses the one with fewer requests under way.
    LeastRequests,
    /// Chooses the same endpoint for all requests that have the same value of this attribute.
    Hash(Attribute),
}

#[derive(Clone, Copy)]
enum BalanceName {
    RoundRobin,
    LeastRequests,
}

const NAMES: [(&str, BalanceName); 2] =
    [("round_robin", BalanceName::RoundRobin), ("least_requests", BalanceName::LeastRequests)];

const BALANCE_NAME: Shape = Shape::Defined(&Definition { name: "balance", shape: Shape::Words(&names(&NAMES)) });

pub(crate) const BALANCE: Type =
    Type::OwnOr { text: "`round_robin`, `least_requests` or mapping", shape: BALANCE_NAME, mapping: &HASH };

pub(crate) static HASH: Mapping = Mapping {
    heading: Some("key in `balance`"),
    definition: None,
    keys: &[Key::required("hash", TEXT, "An attribute, as in `limit_keys`, whose value decides.")],
    constraints: unconstrained,
};

pub(crate) fn balance(field: Field<'_>, attributes: AttributeReader<'_>) -> Option<Balance> {
    if !field.is_map() {
        return field.choice(&NAMES).map(|name| match name {
            BalanceName::RoundRobin => Balance::RoundRobin,
            BalanceName::LeastRequests => Balance::LeastRequests,
        });
    }
    let section = field.section(&HASH)?;
    let attribute = section.need("hash").and_then(|field| attributes.attribute(&field, field.written()?));
    section.close();
    attribute.map(Balance::Hash)
}

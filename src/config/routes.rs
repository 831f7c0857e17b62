//! Reads `routes`: which upstream a request goes to.

use std::collections::HashSet;

use super::attribute::AttributeReader;
use super::key::{Key, Mapping, NAME, unconstrained};
use super::names::{checked, unique};
use super::reader::{Field, all};
use super::rule_match::{CONDITIONS, ConditionReader};
use super::suggest::nearest;
use super::upstream::Upstream;
use crate::limit::attribute::Attribute;
use crate::limit::rule::Condition;
use crate::route::UpstreamId;
use crate::route::route_set::Route;

pub static ROUTE: Mapping = Mapping {
    heading: Some("key of a route"),
    definition: None,
    keys: &[
        Key::required(
            "name",
            NAME,
            "Like the name of a rule; unique among routes. It is the attribute `route`, and a label of metrics.",
        ),
        Key::optional(
            "match",
            CONDITIONS,
            "[Conditions](#match), which may not read credentials. Without the key every request matches.",
        ),
        Key::required("upstream", NAME, "The name of one of `upstreams`."),
    ],
    constraints: unconstrained,
};

/// The routes of a file. `upstreams` are known by name; `None` if they have problems of their own.
pub fn routes(field: &Field<'_>, ipv6_prefix: u8, upstreams: Option<&[Upstream]>) -> Option<Vec<Route>> {
    let members = field.list()?;
    if members.is_empty() {
        field.must("have at least one route");
        return None;
    }
    let mut names = HashSet::new();
    all(members, |member| route(member, &mut names, ipv6_prefix, upstreams))
}

fn route(
    field: Field<'_>,
    names: &mut HashSet<String>,
    ipv6_prefix: u8,
    upstreams: Option<&[Upstream]>,
) -> Option<Route> {
    let position = field.position();
    let section = field.section(&ROUTE)?;
    let name = unique(&section, names);
    let conditions = section.get("match").map_or(Some(Vec::new()), |field| conditions(&field, ipv6_prefix));
    let upstream = section.need("upstream").and_then(|field| upstream(&field, upstreams));
    section.close();
    Some(Route { name: name?, conditions: conditions?, upstream: upstream?, position })
}

/// A route is chosen before rules are asked: it depends neither on itself nor, so that it is every client's, on credentials.
fn conditions(field: &Field<'_>, ipv6_prefix: u8) -> Option<Vec<Condition>> {
    // That credentials are not configured is no problem of a route, which must not read them anyway.
    let attributes = AttributeReader { jwt: true, api_keys: true, columns: None };
    let conditions = ConditionReader { attributes, ipv6_prefix }.conditions(field);
    let mut valid = true;
    for (name, position, member) in field.pairs()? {
        let why = match Attribute::parse(name) {
            Ok(
                Attribute::Claim(_)
                | Attribute::Words(_)
                | Attribute::ClaimedAmount(_)
                | Attribute::KeyId
                | Attribute::KeyPlan
                | Attribute::KeyColumn(_),
            ) => "a route must not depend on credentials",
            Ok(Attribute::Route | Attribute::Upstream) => "it is known only after the route has been chosen",
            _ => continue,
        };
        member.at(position).wrong(format_args!("`{}`: {why}", name.escape_debug()), None);
        valid = false;
    }
    conditions.filter(|_| valid)
}

fn upstream(field: &Field<'_>, upstreams: Option<&[Upstream]>) -> Option<UpstreamId> {
    let name = checked(field, field.written()?)?;
    let upstreams = upstreams?;
    let id = (0..).zip(upstreams).find(|(_, upstream)| upstream.name == name).map(|(id, _)| UpstreamId(id));
    if id.is_none() {
        let known: Vec<&str> = upstreams.iter().map(|upstream| &*upstream.name).collect();
        field.wrong(format_args!("must be the name of one of `upstreams`, is `{name}`"), nearest(name, &known));
    }
    id
}

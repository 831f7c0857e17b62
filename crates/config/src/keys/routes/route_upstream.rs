//! Reads `upstream` and `split_by` of a route: one upstream, or several with weights.

use crate::keys::rules::attribute::AttributeReader;
use crate::keys::rules::limit_keys::{LIMIT_KEY, limit_key};
use crate::keys::rules::names::checked;
use crate::language::key::{Key, Type};
use crate::language::reader::{Field, Section};
use crate::language::shape::Shape;
use crate::language::suggest::nearest;
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types::NAME;
use request::attribute::Attribute;
use rules::route::UpstreamId;
use rules::route::split::{Share, Split};
use rules::route::target::Target;
use rules::rule::LimitKey;

type ReadUpstream = fn(&Field<'_>, Option<&[&str]>) -> Option<UpstreamId>;

const WEIGHT: ValueKind<ParseText<u32>> =
    ValueKind::new("0 to 1000000", Shape::whole(0, 1_000_000), |weight| weight.parse().ok());

const WEIGHTED: ValueKind<ReadUpstream> = ValueKind::reporting(
    "text, or mapping of weights",
    Shape::either(&[
        NAME,
        Shape::Map { of: &WEIGHT.shape, least: 1, empty: "have at least one upstream with a weight above 0" },
    ]),
    named,
    |field, _| {
        checked(field, field.text_if_any().unwrap_or_default());
    },
);

pub(crate) const UPSTREAM_OF_ROUTE: Key = Key::depends(
    "upstream",
    WEIGHTED.declared(),
    "`redirect` or `respond` instead",
    "One of `upstreams`, or several with their shares: `{api: 95, canary: 5}`.",
);

pub(crate) const SPLIT_BY: Key = Key::optional(
    "split_by",
    Type::Own { text: "attribute", shape: LIMIT_KEY },
    "The attribute that chooses among several upstreams. Without it: random.",
);

/// Reads the upstreams of a route, and `split_by`. `upstreams` are the names in the file. `None` after a problem.
pub(crate) fn upstreams_of_route(
    section: &Section<'_>,
    field: &Field<'_>,
    upstreams: Option<&[&str]>,
    attributes: AttributeReader<'_>,
) -> Option<Target> {
    let by = section.optional("split_by", |field| split_by(&field, attributes));
    if !field.is_map() {
        if section.has("split_by") {
            section.unwanted("split_by", "needs an `upstream` with several names");
        }
        return (WEIGHTED.checked(field)?)(field, upstreams).map(Target::Upstream);
    }
    field.check(&WEIGHTED.shape)?;
    let pairs = field.pairs()?;
    let read = |(name, position, weight): (&str, _, Field<'_>)| {
        let upstream = known(&weight.clone().at(position), name, upstreams);
        let weight = WEIGHT.read(weight);
        Some(Share { upstream: upstream?, name: name.to_owned(), weight: weight? })
    };
    let shares: Vec<_> = pairs.into_iter().map(read).collect();
    let mut shares = shares.into_iter().collect::<Option<Vec<Share>>>()?;
    shares.retain(|share| share.weight > 0);
    if shares.is_empty() {
        field.wrong("must have at least one upstream with a weight above 0", None);
        return None;
    }
    Some(Target::Split(Split::new(shares, by?)))
}

fn named(field: &Field<'_>, upstreams: Option<&[&str]>) -> Option<UpstreamId> {
    let name = checked(field, field.written()?)?;
    known(field, name, upstreams)
}

fn known(field: &Field<'_>, name: &str, upstreams: Option<&[&str]>) -> Option<UpstreamId> {
    let upstreams = upstreams?;
    let id = (0..).zip(upstreams).find(|(_, known)| **known == name).map(|(id, _)| UpstreamId(id));
    if id.is_none() {
        let what = format!("must be the name of one of `upstreams`, is `{}`", name.escape_debug());
        field.wrong(what, nearest(name, upstreams));
    }
    id
}

/// Reads `split_by`. The attribute `upstream` is not allowed, because it is known only after the choice of an upstream.
fn split_by(field: &Field<'_>, attributes: AttributeReader<'_>) -> Option<LimitKey> {
    let key = limit_key(field, attributes)?;
    let chosen = key.alternatives.iter().find(|part| *part.source() == Attribute::Upstream);
    if chosen.is_some() {
        field.wrong("`upstream`: it is known only after it has been chosen", None);
        return None;
    }
    if let Some(part) = key.alternatives.iter().find(|part| part.needs_body()) {
        field.wrong(format_args!("`{part}`: the body is read only after the upstream has been chosen"), None);
        return None;
    }
    Some(key)
}

//! Reads `exempt`: the requests that pay nothing.

use crate::keys::rules::rule_match::ConditionReader;
use crate::language::reader::{Field, all};
use crate::language::shape::{List, Shape};
use crate::language::value_kind::ValueKind;
use rules::rule::Condition;

type ReadExempt = fn(Field<'_>, ConditionReader<'_>) -> Option<Vec<Vec<Condition>>>;

pub(crate) const EXEMPT: ValueKind<ReadExempt> = ValueKind::new(
    "list of conditions",
    // Each item must have a condition, because an item without a condition would exempt every request.
    Shape::List(List::of(&CONDITIONS_OF_EXEMPTION)),
    exempt,
);

const CONDITIONS_OF_EXEMPTION: Shape =
    Shape::Conditions { definition: "conditions", least: 1, empty: "have at least one condition" };

fn exempt(field: Field<'_>, reader: ConditionReader<'_>) -> Option<Vec<Vec<Condition>>> {
    all(field.list_of_mappings()?, |member| {
        member.check(&CONDITIONS_OF_EXEMPTION)?;
        reader.conditions(&member)
    })
}

//! Reads `exempt`: requests that pay nothing.

use serde_json::json;

use crate::keys::rules::rule_match::ConditionReader;
use crate::language::reader::{Field, all};
use crate::language::value_kind::ValueKind;
use rules::rule::Condition;

type ReadExempt = fn(Field<'_>, ConditionReader<'_>) -> Option<Vec<Vec<Condition>>>;

pub const EXEMPT: ValueKind<ReadExempt> = ValueKind {
    text: "list of conditions",
    schema: || json!({"type": "array", "items": {"allOf": [{"$ref": "#/definitions/conditions"}], "minProperties": 1}}),
    read: exempt,
};

fn exempt(field: Field<'_>, reader: ConditionReader<'_>) -> Option<Vec<Vec<Condition>>> {
    all(field.list_of_mappings()?, |member| {
        // It would exempt every request.
        if member.is_map() && member.is_empty() {
            member.must("have at least one condition");
            return None;
        }
        reader.conditions(&member)
    })
}

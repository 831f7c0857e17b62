//! Reads `exempt`: requests that pay nothing.

use serde_json::json;

use super::key::Type;
use super::reader::{Field, all};
use super::rule_match::ConditionReader;
use crate::limit::rule::Condition;

pub const EXEMPT: Type = Type::Own {
    text: "list of [conditions](#match)",
    schema: || json!({"type": "array", "items": {"allOf": [{"$ref": "#/definitions/conditions"}], "minProperties": 1}}),
};

pub fn exempt(field: Field<'_>, reader: ConditionReader) -> Option<Vec<Vec<Condition>>> {
    all(field.list()?, |member| {
        // It would exempt every request.
        if member.is_map() && member.is_empty() {
            member.must("have at least one condition");
            return None;
        }
        reader.conditions(&member)
    })
}

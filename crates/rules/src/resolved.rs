//! Resolves the attributes of one request when rules or routes first read them. Each attribute is resolved only once.

use smallvec::SmallVec;

use super::compiled_rule::{CompiledCondition, Slot};
use super::index::{Index, Indices};
use super::settled_price::LearnedCosts;
use base::time::Timestamp;
use request::attribute::Attribute;
use request::attribute_value::AttributeValue;
use request::request::Request;

/// Whether rules that read the body of a request can apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyRules {
    Apply,
    /// Such rules do not apply, whatever they expect, because nothing is known of the body.
    LeftOut,
}

/// The attributes of one request. Each attribute is resolved when its value is first needed.
#[derive(Debug)]
pub(crate) struct Values<'s, 'r> {
    attributes: &'s [Attribute],
    pub request: &'s Request<'r>,
    /// The time for rules that expire.
    pub at: Timestamp,
    /// Whether rules that read the body apply.
    pub body_rules: BodyRules,
    /// The costs of earlier requests, for the reserves of budgets.
    pub learned: Option<&'s dyn LearnedCosts>,
    resolved: SmallVec<[Option<AttributeValue<'r>>; 4]>,
}

impl<'s, 'r> Values<'s, 'r> {
    pub(crate) fn new(attributes: &'s [Attribute], request: &'s Request<'r>, at: Timestamp) -> Values<'s, 'r> {
        let resolved = SmallVec::from_elem(None, attributes.len());
        Values { attributes, request, at, body_rules: BodyRules::Apply, learned: None, resolved }
    }

    #[allow(clippy::indexing_slicing, reason = "a slot is an index of the list from which it was made")]
    pub(crate) fn attribute(&self, slot: Slot) -> &'s Attribute {
        &self.attributes[slot.0]
    }

    /// Whether a rule that reads these attributes does not apply, because the value of one of them is in the body.
    pub(crate) fn leaves_out(&self, mut slots: impl Iterator<Item = Slot>) -> bool {
        let is_in_body = |slot| self.attribute(slot).is_in_body_of(self.request.head);
        self.body_rules == BodyRules::LeftOut && slots.any(is_in_body)
    }

    /// Returns the value of an attribute that can identify a bucket. `None` if the attribute is missing or a list.
    pub(crate) fn of(&mut self, slot: Slot) -> Option<&[u8]> {
        self.value(slot).single()
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "there are as many as attributes; a value that is there must not be missed"
    )]
    fn value(&mut self, slot: Slot) -> &AttributeValue<'r> {
        let (attribute, request) = (self.attribute(slot), self.request);
        self.resolved[slot.0].get_or_insert_with(|| attribute.resolve_for_match(request))
    }

    /// Returns the indexes of the entries that may apply, found with the index of their list.
    pub(crate) fn find(&mut self, index: &Index) -> Indices {
        index.find(|slot, find| {
            match self.value(Slot(slot)) {
                AttributeValue::Missing => {}
                AttributeValue::Single(value) => find(value),
                // An entry applies if any element has the expected text.
                AttributeValue::List(list) => {
                    list.any(|element| {
                        find(element);
                        false
                    });
                }
            }
        })
    }

    pub(crate) fn hold(&mut self, conditions: &[CompiledCondition]) -> bool {
        if self.leaves_out(conditions.iter().map(|condition| condition.slot)) {
            return false;
        }
        let client = self.request.client.address();
        let holds = |CompiledCondition { slot, condition }: &CompiledCondition| {
            condition.expectation.holds_for(self.value(*slot), client)
        };
        conditions.iter().all(holds)
    }
}

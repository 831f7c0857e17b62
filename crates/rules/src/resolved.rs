//! Resolves the attributes of one request, each once, while the rules are checked.

use smallvec::SmallVec;

use super::claimed_numbers::ClaimResults;
use super::index::Index;
use base::time::Timestamp;
use request::attribute::Attribute;
use request::attribute_value::AttributeValue;
use request::matcher::Expectation;
use request::request::Request;

/// One condition.
#[derive(Clone, Debug)]
pub struct CompiledCondition {
    pub slot: Slot,
    pub expectation: Expectation,
}

/// The index of an attribute among those that the file reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub usize);

/// The attributes of one request, each resolved when it is first needed.
#[derive(Debug)]
pub struct Values<'s, 'r> {
    attributes: &'s [Attribute],
    pub request: &'s Request<'r>,
    /// Calendar time.
    pub at: Timestamp,
    /// How the value of each number of a limit was read.
    pub claims: ClaimResults,
    /// Whether a rule or override that applies says that nothing limits the request.
    pub is_unlimited: bool,
    resolved: SmallVec<[Option<AttributeValue<'r>>; 4]>,
}

impl<'s, 'r> Values<'s, 'r> {
    pub fn new(attributes: &'s [Attribute], request: &'s Request<'r>, at: Timestamp) -> Values<'s, 'r> {
        let resolved = SmallVec::from_elem(None, attributes.len());
        Values { attributes, request, at, claims: ClaimResults::new(), is_unlimited: false, resolved }
    }

    #[allow(clippy::indexing_slicing, reason = "a slot is an index of the list from which it was made")]
    pub fn attribute(&self, slot: Slot) -> &'s Attribute {
        &self.attributes[slot.0]
    }

    /// The value by which the request is counted; `None` if it is missing or a list.
    pub fn of(&mut self, slot: Slot) -> Option<&[u8]> {
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

    /// The entries of a list that may apply: all of them, or those that its index finds.
    pub fn among<'l, T>(&mut self, list: &'l [T], index: Option<&Index>) -> impl Iterator<Item = &'l T> + use<'l, T> {
        let found = index.map(|index| {
            index.find(|slot, find| {
                match self.value(Slot(slot)) {
                    AttributeValue::Missing => {}
                    AttributeValue::Single(value) => find(value),
                    // An entry applies if one element is what it expects.
                    AttributeValue::List(list) => {
                        list.any(|element| {
                            find(element);
                            false
                        });
                    }
                }
            })
        });
        let all = if found.is_some() { &[] } else { list };
        let found = found.unwrap_or_default().into_iter().filter_map(|index| list.get(usize::try_from(index).ok()?));
        all.iter().chain(found)
    }

    pub fn hold(&mut self, conditions: &[CompiledCondition]) -> bool {
        let client = self.request.client.address();
        conditions.iter().all(|condition| condition.expectation.holds_for(self.value(condition.slot), client))
    }
}

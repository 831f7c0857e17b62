//! Defines the place of a number in the JSON body of a response.

use std::fmt;
use std::sync::Arc;

use llm::json::{Interest, Pointer, PointerSet};

/// A place in a JSON body, with what a scanner needs to read its value.
#[derive(Clone, Debug)]
pub struct JsonPlace {
    pointer: Pointer,
    set: Arc<PointerSet>,
}

impl JsonPlace {
    pub fn new(pointer: Pointer) -> JsonPlace {
        let set = Arc::new(PointerSet::new([(pointer.clone(), Interest::Value)]));
        JsonPlace { pointer, set }
    }

    /// Returns the set that contains only this pointer. All clones of a place share the set.
    pub fn set(&self) -> Arc<PointerSet> {
        Arc::clone(&self.set)
    }
}

/// Two places are equal if their pointers are equal.
impl PartialEq for JsonPlace {
    fn eq(&self, other: &JsonPlace) -> bool {
        self.pointer == other.pointer
    }
}

impl Eq for JsonPlace {}

impl fmt::Display for JsonPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pointer.fmt(f)
    }
}

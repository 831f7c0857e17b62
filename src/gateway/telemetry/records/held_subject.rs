//! Holds a subject apart from the configuration under which it was found, for the id of a hold: a reload may change the list of
//! attributes before the hold is settled.

use sha2::{Digest, Sha256};

/// The subject of a take that holds something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldSubject {
    pub attribute: HeldAttribute,
    /// Empty for a take without a subject.
    pub value: Vec<u8>,
}

/// The attribute that names a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldAttribute {
    /// The first bytes of the hash of its text.
    Hash([u8; 4]),
    /// The position in the list of `records.subject`, in ids of an earlier version.
    Index(u8),
}

impl Default for HeldAttribute {
    /// The attribute of a take without a subject.
    fn default() -> HeldAttribute {
        HeldAttribute::Hash([0; 4])
    }
}

impl HeldAttribute {
    /// Returns the attribute with this text.
    pub(super) fn of(text: &str) -> HeldAttribute {
        let hash = Sha256::digest(text);
        HeldAttribute::Hash(hash.first_chunk().copied().unwrap_or_default())
    }

    /// Returns the index of the attribute in a list of texts. `None` if it is not there.
    pub(super) fn index<'t>(self, mut texts: impl ExactSizeIterator<Item = &'t str>) -> Option<usize> {
        match self {
            HeldAttribute::Hash(_) => texts.position(|text| HeldAttribute::of(text) == self),
            HeldAttribute::Index(index) => Some(usize::from(index)).filter(|index| *index < texts.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_found_in_another_list_and_one_that_is_not_there_is_none() {
        let found = |attribute: HeldAttribute, list: &[&str]| attribute.index(list.iter().copied());
        let user = HeldAttribute::of("descriptor:user");
        let lists: [&[&str]; 3] = [&["descriptor:org", "descriptor:user"], &["descriptor:user"], &["descriptor:org"]];
        assert_eq!(lists.map(|list| found(user, list)), [Some(1), Some(0), None]);
        assert_eq!(lists.map(|list| found(HeldAttribute::default(), list)), [None; 3]);
        assert_eq!(lists.map(|list| found(HeldAttribute::Index(1), list)), [Some(1), None, None]);
    }
}

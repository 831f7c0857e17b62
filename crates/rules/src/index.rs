//! Finds the entries of a long list that may apply to a request, without checking each entry.
//!
//! An entry that expects certain texts as the value of an attribute is found by this value. Any other entry is always
//! found. The caller still checks every condition. So one look-up replaces a thousand comparisons, and the order in the
//! file still decides.

use std::collections::HashMap;

use smallvec::SmallVec;

use request::matcher::{Expectation, Text};

/// The shortest list that gets an index. A shorter list is searched entry by entry, which takes less time.
const WORTHWHILE: usize = 9;

/// Finds the entries of a long list that may apply to a request, by the texts that the entries expect.
#[derive(Clone, Debug)]
pub struct Index {
    /// A group for each attribute by which entries are found.
    groups: Vec<Group>,
    /// The indexes of the entries that are always found, because they expect no text. They are in ascending order.
    always: Vec<u32>,
}

/// The entries that are found by one attribute's value.
#[derive(Clone, Debug)]
struct Group {
    slot: usize,
    exact: HashMap<Vec<u8>, Vec<u32>>,
    subtrees: HashMap<Vec<u8>, Vec<u32>>,
    subdomains: HashMap<Vec<u8>, Vec<u32>>,
    /// The length of the longest key in `subtrees`. Longer prefixes of a path are not looked up.
    longest: usize,
}

/// The indexes of the entries that an index has found, in the order of the list.
pub(crate) type Indices = SmallVec<[u32; 16]>;

/// Returns the entries of a list that an index has found. `None`: there is no index, and all entries are returned.
pub(crate) fn among<T>(list: &[T], found: Option<Indices>) -> impl Iterator<Item = &T> {
    let all = if found.is_some() { &[] } else { list };
    let found = found.unwrap_or_default().into_iter().filter_map(|index| list.get(usize::try_from(index).ok()?));
    all.iter().chain(found)
}

impl Index {
    /// Builds an index of a list. `entries` has the conditions of each entry: the slot (index) of an attribute, and the
    /// expected value. `None` if the list is too short for an index to help.
    pub fn of<'e>(
        entries: impl ExactSizeIterator<Item = impl Iterator<Item = (usize, &'e Expectation)>>,
    ) -> Option<Index> {
        if entries.len() < WORTHWHILE {
            return None;
        }
        let found_by: Vec<Vec<(usize, &[Text])>> = entries
            .map(|conditions| conditions.filter_map(|(slot, expectation)| Some((slot, texts(expectation)?))).collect())
            .collect();
        let mut frequency: HashMap<(usize, &Text), usize> = HashMap::new();
        for (slot, texts) in found_by.iter().flatten() {
            texts.iter().for_each(|text| *frequency.entry((*slot, text)).or_default() += 1);
        }
        // Uses the condition that the fewest other entries share. If a thousand entries expect one host, each entry is
        // found by its path.
        let others = |(slot, texts): &&(usize, &[Text])| -> usize {
            texts.iter().filter_map(|text| frequency.get(&(*slot, text))).sum()
        };
        let mut index = Index { groups: Vec::new(), always: Vec::new() };
        for (conditions, entry) in found_by.iter().zip(0..) {
            match conditions.iter().min_by_key(others) {
                Some((slot, texts)) => index.group(*slot).add(texts, entry),
                None => index.always.push(entry),
            }
        }
        Some(index)
    }

    /// Returns the indexes of the entries that may apply. `look` is called with each slot whose value is needed. It
    /// must pass the value, or each element of a list, to the given function.
    pub fn find(&self, mut look: impl FnMut(usize, &mut dyn FnMut(&[u8]))) -> Indices {
        let mut found = Indices::from_slice(&self.always);
        for group in &self.groups {
            look(group.slot, &mut |value| group.find(value, &mut found));
        }
        if !self.groups.is_empty() {
            found.sort_unstable();
            found.dedup();
        }
        found
    }

    /// Returns whether `is_it` is true for a slot whose value the index looks up.
    pub(crate) fn reads(&self, is_it: impl Fn(usize) -> bool) -> bool {
        self.groups.iter().any(|group| is_it(group.slot))
    }

    #[allow(clippy::indexing_slicing, reason = "the index was just found or made")]
    fn group(&mut self, slot: usize) -> &mut Group {
        let index = self.groups.iter().position(|group| group.slot == slot).unwrap_or_else(|| {
            self.groups.push(Group {
                slot,
                exact: HashMap::new(),
                subtrees: HashMap::new(),
                subdomains: HashMap::new(),
                longest: 0,
            });
            self.groups.len() - 1
        });
        &mut self.groups[index]
    }
}

impl Group {
    fn add(&mut self, texts: &[Text], entry: u32) {
        for text in texts {
            let (map, text) = match text {
                Text::Exact(text) => (&mut self.exact, text),
                Text::Subtree(above) => {
                    self.longest = self.longest.max(above.len());
                    (&mut self.subtrees, above)
                }
                Text::Subdomain(suffix) => (&mut self.subdomains, suffix),
            };
            map.entry(text.clone()).or_default().push(entry);
        }
    }

    fn find(&self, value: &[u8], found: &mut Indices) {
        found.extend(self.exact.get(value).into_iter().flatten().copied());
        if !self.subdomains.is_empty()
            && let Some(suffix) = value.iter().position(|byte| *byte == b'.').and_then(|dot| value.get(dot..))
        {
            found.extend(self.subdomains.get(suffix).into_iter().flatten().copied());
        }
        if self.subtrees.is_empty() {
            return;
        }
        for end in 0..=value.len().min(self.longest) {
            if matches!(value.get(end), None | Some(b'/'))
                && let Some(subtree) = value.get(..end).and_then(|above| self.subtrees.get(above))
            {
                found.extend_from_slice(subtree);
            }
        }
    }
}

/// Returns the texts that an expectation accepts. Returns `None` if the expectation does not compare with texts.
fn texts(expectation: &Expectation) -> Option<&[Text]> {
    match expectation {
        Expectation::AnyOf(texts) => Some(texts),
        Expectation::All(expectations) => expectations.iter().find_map(texts),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(index: &Index, value: &str, indices: &[u32]) {
        let found = index.find(|_, tell| tell(value.as_bytes()));
        assert_eq!(&found[..], indices, "{value}");
    }

    fn index(expectations: &[Expectation]) -> Index {
        Index::of(expectations.iter().map(|expectation| std::iter::once((0, expectation)))).unwrap()
    }

    #[test]
    fn entries_are_found_in_their_order_by_any_of_their_texts() {
        let any = |texts: &[&str]| Expectation::AnyOf(texts.iter().map(|text| Text::exact(text)).collect());
        let mut entries = vec![any(&["a", "b"]), Expectation::Present(true), any(&["b"]), any(&["a", "a"])];
        entries.extend((0..8).map(|number| any(&[&format!("plan-{number}")])));
        let index = index(&entries);
        check(&index, "a", &[0, 1, 3]);
        check(&index, "b", &[0, 1, 2]);
        check(&index, "c", &[1]);
        check(&index, "plan-7", &[1, 11]);
    }

    #[test]
    fn a_path_is_found_below_each_of_its_ancestors() {
        let patterns = ["/*", "/v1/*", "/v1/x/*", "/v1x/*", "/v1", "/v1/", "/v1//*", "/a", "/b", "/v1/x/y/z/*"];
        let index = index(&patterns.map(|pattern| Expectation::AnyOf(vec![Text::for_path(pattern)])));
        check(&index, "/v1/x/y", &[0, 1, 2]);
        check(&index, "/v1", &[0, 1, 4]);
        check(&index, "/v1/", &[0, 1, 5, 6]);
        check(&index, "/v1x", &[0, 3]);
        check(&index, "*", &[]);
    }

    #[test]
    fn an_entry_is_found_by_what_fewest_others_expect() {
        let text = |text: &str| Expectation::AnyOf(vec![Text::for_path(text)]);
        let entries: Vec<[Expectation; 2]> =
            (0..100).map(|number| [text("api.example.com"), text(&format!("/v1/{number}/*"))]).collect();
        let index = Index::of(entries.iter().map(|entry| entry.iter().enumerate())).unwrap();
        let find = |path: &str| {
            index.find(|slot, tell| tell(if slot == 0 { b"api.example.com" } else { path.as_bytes() })).to_vec()
        };
        assert_eq!((find("/v1/7/x"), find("/v2")), (vec![7], vec![]));
    }

    #[test]
    fn a_short_list_has_no_index() {
        let one = Expectation::Present(true);
        assert!(Index::of(std::iter::once(std::iter::once((0, &one)))).is_none());
    }
}

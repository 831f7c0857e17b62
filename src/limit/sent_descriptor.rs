//! Holds a descriptor that another proxy has sent: names and values, in place of a request or along with one.

use std::borrow::Cow;
use std::fmt;

/// The attribute that is the domain of the call, whatever entry has this name.
pub const DOMAIN: &str = "domain";
/// The attribute that is the names of all entries, whatever entry has this name.
pub const ENTRIES: &str = "entries";

/// What a call sends to be looked at by rules, as `descriptor:<name>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentDescriptor<'a> {
    domain: Option<Cow<'a, str>>,
    entries: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    order: EntryOrder,
}

/// Whether the entries have an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EntryOrder {
    /// They are a list, and their names in order are an attribute as well.
    #[default]
    List,
    /// They are a map.
    Map,
}

/// Two entries of one descriptor have this name: which of the values counts is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedEntry(pub String);

impl fmt::Display for RepeatedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "two entries of a descriptor have the key {:?}", self.0)
    }
}

impl std::error::Error for RepeatedEntry {}

impl<'a> SentDescriptor<'a> {
    /// A descriptor of the rate limit service: entries in order, in a domain.
    ///
    /// # Errors
    /// If two entries have the same name.
    pub fn new<V: Into<Cow<'a, str>>>(
        domain: &'a str,
        entries: Vec<(&'a str, V)>,
    ) -> Result<SentDescriptor<'a>, RepeatedEntry> {
        for (index, (name, _)) in entries.iter().enumerate() {
            if entries.iter().skip(index + 1).any(|(other, _)| other == name) {
                return Err(RepeatedEntry((*name).to_owned()));
            }
        }
        Ok(SentDescriptor { domain: Some(Cow::Borrowed(domain)), entries: texts(entries), order: EntryOrder::List })
    }

    /// What is sent along with a request: a map, without a domain.
    pub fn of_request<V: Into<Cow<'a, str>>>(entries: Vec<(&'a str, V)>) -> SentDescriptor<'a> {
        SentDescriptor { domain: None, entries: texts(entries), order: EntryOrder::Map }
    }

    pub fn entries(&self) -> &[(Cow<'a, str>, Cow<'a, str>)] {
        &self.entries
    }

    /// The value of `descriptor:<name>`. A value that is there may be empty.
    pub fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        match name {
            DOMAIN => self.domain.as_deref().map(Cow::Borrowed),
            ENTRIES => match (self.order, &*self.entries) {
                (EntryOrder::Map, _) => None,
                (EntryOrder::List, [(only, _)]) => Some(Cow::Borrowed(&**only)),
                (EntryOrder::List, all) => {
                    let names: Vec<&str> = all.iter().map(|(name, _)| &**name).collect();
                    Some(Cow::Owned(names.join("/")))
                }
            },
            _ => self.entries.iter().find(|(found, _)| found == name).map(|(_, value)| Cow::Borrowed(&**value)),
        }
    }

    /// The same, for longer than the call that has sent it.
    pub fn to_static(&self) -> SentDescriptor<'static> {
        let owned = |text: &Cow<'_, str>| Cow::Owned(text.clone().into_owned());
        SentDescriptor {
            domain: self.domain.as_ref().map(owned),
            entries: self.entries.iter().map(|(name, value)| (owned(name), owned(value))).collect(),
            order: self.order,
        }
    }
}

fn texts<'a, V: Into<Cow<'a, str>>>(entries: Vec<(&'a str, V)>) -> Vec<(Cow<'a, str>, Cow<'a, str>)> {
    entries.into_iter().map(|(name, value)| (Cow::Borrowed(name), value.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_attributes_and_so_are_the_domain_and_the_shape() {
        let sent = SentDescriptor::new("edge", vec![("a", "1"), ("b", ""), ("domain", "x"), ("entries", "y")]).unwrap();
        let value = |name| sent.value(name).map(Cow::into_owned);
        assert_eq!(value("a").as_deref(), Some("1"));
        assert_eq!(value("b").as_deref(), Some(""));
        assert_eq!(value("c"), None);
        // No entry can take the place of these two.
        assert_eq!(value("domain").as_deref(), Some("edge"));
        assert_eq!(value("entries").as_deref(), Some("a/b/domain/entries"));
        assert_eq!(sent.to_static(), sent);
    }

    #[test]
    fn a_repeated_entry_is_an_error_and_a_map_has_no_order() {
        let repeated = SentDescriptor::new("edge", vec![("a", "1"), ("b", "2"), ("a", "1")]);
        assert_eq!(repeated, Err(RepeatedEntry("a".to_owned())));
        let map = SentDescriptor::of_request(vec![("a", "1"), ("domain", "x")]);
        assert_eq!((map.value("a").as_deref(), map.value("entries"), map.value("domain")), (Some("1"), None, None));
        let empty = SentDescriptor::new::<&str>("edge", Vec::new()).unwrap();
        assert_eq!(empty.value("entries").as_deref(), Some(""));
    }
}

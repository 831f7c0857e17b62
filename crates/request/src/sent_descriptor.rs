//! Defines a descriptor that another proxy or a service has sent, in place of a request or together with a request.

use std::borrow::Cow;

/// The name in `descriptor:domain`, the attribute with the domain of the call. An entry of this name cannot be read.
pub const DOMAIN: &str = "domain";
/// The name in `descriptor:entries`, the attribute with the names of all entries. An entry of this name cannot be read.
pub const ENTRIES: &str = "entries";

/// A descriptor that another proxy sends: entries with a name and a value. Rules read an entry as `descriptor:<name>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentDescriptor<'a> {
    domain: Option<Cow<'a, str>>,
    entries: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    order: EntryOrder,
}

/// Whether the entries have an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EntryOrder {
    /// The entries are a list. The list of their names is also an attribute.
    #[default]
    List,
    /// The entries are a map.
    Map,
}

/// Returns the name under which rules read an entry with this key. `before` is the number of earlier entries with the
/// same key: the second `k` is `k#2`.
pub fn attribute_name(key: &str, before: usize) -> Cow<'_, str> {
    match before {
        0 => Cow::Borrowed(key),
        before => Cow::Owned(format!("{key}#{}", before + 1)),
    }
}

/// Splits a name like `k#2` into the key, and the number of earlier entries with this key.
fn repeated(name: &str) -> Option<(&str, usize)> {
    let (key, number) = name.rsplit_once('#')?;
    // Each entry has only one name, so `k#02` is not accepted.
    let is_canonical = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
    let number: usize = number.parse().ok().filter(|number| is_canonical && *number > 1)?;
    Some((key, number - 1))
}

impl<'a> SentDescriptor<'a> {
    /// Makes a descriptor that was sent to the rate limit service: a domain, and entries in their order.
    pub fn new<V: Into<Cow<'a, str>>>(domain: &'a str, entries: Vec<(&'a str, V)>) -> SentDescriptor<'a> {
        SentDescriptor { domain: Some(Cow::Borrowed(domain)), entries: texts(entries), order: EntryOrder::List }
    }

    /// Makes a descriptor that a service has sent: entries in their order, and a domain if the service has named one.
    pub fn of_call<V: Into<Cow<'a, str>>>(domain: Option<&'a str>, entries: Vec<(&'a str, V)>) -> SentDescriptor<'a> {
        SentDescriptor { domain: domain.map(Cow::Borrowed), entries: texts(entries), order: EntryOrder::List }
    }

    /// Makes a descriptor from entries that another proxy sends together with a request. It has no domain.
    pub fn of_request<V: Into<Cow<'a, str>>>(entries: Vec<(&'a str, V)>) -> SentDescriptor<'a> {
        SentDescriptor { domain: None, entries: texts(entries), order: EntryOrder::Map }
    }

    pub fn entries(&self) -> &[(Cow<'a, str>, Cow<'a, str>)] {
        &self.entries
    }

    /// Returns the value of `descriptor:<name>`, which may be empty. `<key>#2` is an entry with exactly this key, or
    /// else the second entry with the key `<key>`. `None` if there is no such value.
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
            _ => self.entry(name, 0).or_else(|| {
                let (key, before) = repeated(name)?;
                self.entry(key, before)
            }),
        }
    }

    /// Returns the value of the entry with this key that follows `before` other entries with this key.
    fn entry(&self, key: &str, before: usize) -> Option<Cow<'_, str>> {
        let mut of_key = self.entries.iter().filter(|(found, _)| found == key);
        of_key.nth(before).map(|(_, value)| Cow::Borrowed(&**value))
    }

    /// Copies the descriptor, so that the copy can outlive the call.
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
        let sent = SentDescriptor::new("edge", vec![("a", "1"), ("b", ""), ("domain", "x"), ("entries", "y")]);
        let value = |name| sent.value(name).map(Cow::into_owned);
        assert_eq!(value("a").as_deref(), Some("1"));
        assert_eq!(value("b").as_deref(), Some(""));
        assert_eq!(value("c"), None);
        // Entries named `domain` and `entries` do not replace `descriptor:domain` and `descriptor:entries`.
        assert_eq!(value("domain").as_deref(), Some("edge"));
        assert_eq!(value("entries").as_deref(), Some("a/b/domain/entries"));
        assert_eq!(sent.to_static(), sent);
    }

    #[test]
    fn entries_that_repeat_a_key_are_numbered_in_their_order() {
        let entries =
            vec![("a", "1"), ("b", "2"), ("a", "3"), ("domain", "4"), ("a", "5"), ("domain", "6"), ("b#2", "7")];
        let sent = SentDescriptor::new("edge", entries);
        let value = |name| sent.value(name).map(Cow::into_owned);
        let names = ["a", "a#2", "a#3", "b", "domain#2", "b#2", "entries"];
        let values = ["1", "3", "5", "2", "6", "7", "a/b/a/domain/a/domain/b#2"];
        assert_eq!(names.map(value), values.map(|value| Some(value.to_owned())));
        for name in ["a#4", "a#1", "a#0", "a#02", "a#+2", "a#", "#2", "domain#3", "a#99999999999999999999"] {
            assert_eq!(value(name), None, "{name}");
        }
        // An entry with the key `a#2` takes precedence over the second entry with the key `a`.
        let own = SentDescriptor::new("edge", vec![("a", "1"), ("a", "2"), ("a#2", "3")]);
        assert_eq!(own.value("a#2").as_deref(), Some("3"));
        assert_eq!([attribute_name("a", 0), attribute_name("a", 1)], ["a", "a#2"]);
    }

    #[test]
    fn a_map_has_no_order() {
        let map = SentDescriptor::of_request(vec![("a", "1"), ("domain", "x")]);
        assert_eq!((map.value("a").as_deref(), map.value("entries"), map.value("domain")), (Some("1"), None, None));
        let call = SentDescriptor::of_call(None, vec![("b", "1"), ("a", "2")]);
        assert_eq!((call.value("domain"), call.value("entries").as_deref()), (None, Some("b/a")));
        let empty = SentDescriptor::new::<&str>("edge", Vec::new());
        assert_eq!(empty.value("entries").as_deref(), Some(""));
    }
}

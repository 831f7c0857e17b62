//! Holds the fields of a head as HTTP/1 lines, which are written in one copy. A header map would parse, copy and hash
//! each name.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::field_writer::{FieldWriter, UpstreamFields};
use base::split::split_once;

/// Header fields as the lines of an HTTP/1 head. Each line ends with CR LF.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldLines(Vec<u8>);

impl FieldLines {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a field after all present fields. The caller ensures that neither the name nor the value contains a line end.
    pub(crate) fn add(&mut self, name: &str, value: &[u8]) {
        // The first capacity is enough for all fields of most responses.
        self.0.reserve(if self.0.is_empty() { 384 } else { name.len() + value.len() + 4 });
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.0.extend_from_slice(part);
        }
    }

    /// Replaces all fields of this name by one field with this value.
    pub(crate) fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        self.add(name, value);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if self.first(name).is_none() {
            return;
        }
        let mut rest = FieldLines::default();
        for (found, value) in self.iter().filter(|(found, _)| !found.eq_ignore_ascii_case(name.as_bytes())) {
            rest.0.extend_from_slice(found);
            rest.0.extend_from_slice(b": ");
            rest.0.extend_from_slice(value);
            rest.0.extend_from_slice(b"\r\n");
        }
        *self = rest;
    }

    /// Returns the name and the value of each field. Names keep their spelling, and values have no surrounding white space.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let lines = self.0.split(|byte| *byte == b'\n').filter_map(|line| split_once(line, b':'));
        lines.map(|(name, value)| (name, value.trim_ascii()))
    }

    fn values<'l>(&'l self, name: &'l [u8]) -> impl Iterator<Item = &'l [u8]> {
        self.iter().filter(move |(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns the fields as a header map, for HTTP/2. A field that such a map cannot hold is left out.
    pub(crate) fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in self.iter() {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
                let _ = map.try_append(name, value);
            }
        }
        map
    }
}

impl FieldWriter for FieldLines {
    fn field(&mut self, name: &'static str, value: &HeaderValue) {
        self.add(name, value.as_bytes());
    }

    fn number(&mut self, name: &'static str, number: u64) {
        self.add(name, itoa::Buffer::new().format(number).as_bytes());
    }
}

impl UpstreamFields for FieldLines {
    fn any_name(&self, wanted: impl Fn(&[u8]) -> bool) -> bool {
        self.iter().any(|(name, _)| wanted(name))
    }

    fn first(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(found, _)| found.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }

    fn remove(&mut self, name: &'static str) {
        FieldLines::remove(self, name);
    }

    fn any_value(&self, name: &'static str, wanted: impl Fn(&[u8]) -> bool) -> bool {
        self.values(name.as_bytes()).any(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> FieldLines {
        let mut lines = FieldLines::default();
        for (name, value) in [("X-One", "1"), ("x-two", "a: b"), ("X-ONE", "3")] {
            lines.add(name, value.as_bytes());
        }
        lines
    }

    #[test]
    fn a_field_is_found_and_replaced_in_any_spelling() {
        let mut lines = lines();
        assert_eq!(lines.as_bytes(), b"X-One: 1\r\nx-two: a: b\r\nX-ONE: 3\r\n");
        assert_eq!((lines.first("x-one"), lines.first("x-tw")), (Some(&b"1"[..]), None));
        assert!(lines.any_value("x-one", |value| value == b"3") && !lines.any_value("x-two", |value| value == b"3"));
        lines.set("x-one", b"4");
        assert_eq!(lines.as_bytes(), b"x-two: a: b\r\nx-one: 4\r\n");
        lines.remove("X-Two");
        lines.remove("x-three");
        assert_eq!(lines.as_bytes(), b"x-one: 4\r\n");
    }

    #[test]
    fn a_map_has_every_field_with_its_repeats() {
        let map = lines().to_map();
        assert_eq!(map.get_all("x-one").iter().collect::<Vec<_>>(), ["1", "3"]);
        assert_eq!((map.len(), map.get("x-two").unwrap().to_str().unwrap()), (3, "a: b"));
    }
}

//! Edits a head without parsing it into a map: keeps a list of removed and added fields, and writes the new head once.
//!
//! The lines that stay are copied unchanged, in their order and spelling. Added fields follow them. The head has
//! already been checked, so every line ends with CRLF and has a name before its first colon.

use memchr::{memchr, memchr2};
use smallvec::SmallVec;

/// A head whose fields are edited: its bytes, the fields that are removed, and the fields that are added.
#[derive(Debug)]
pub(super) struct HeadEdit<'h> {
    head: &'h [u8],
    added: Vec<u8>,
    lines: SmallVec<[Line; 24]>,
}

/// One field of the received head, or one added field.
#[derive(Clone, Copy, Debug)]
struct Line {
    source: Source,
    presence: Presence,
    /// The index in the source at which the name begins.
    begin: u32,
    /// The index of the colon after the name.
    colon: u32,
    /// The index after the CRLF of the line.
    end: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Head,
    Added,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Kept,
    Removed,
}

/// Whether a field is kept in an edited head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Yes,
    No,
}

impl<'h> HeadEdit<'h> {
    /// Begins to edit `head`, a whole head with its first line and with the empty line at its end.
    pub(super) fn new(head: &'h [u8]) -> HeadEdit<'h> {
        let mut lines = SmallVec::new();
        let mut begin = memchr(b'\n', head).map_or(head.len(), |end| end + 1);
        while let Some(found) = memchr2(b':', b'\n', head.get(begin..).unwrap_or_default()) {
            let colon = begin + found;
            let end = memchr(b'\n', head.get(colon..).unwrap_or_default()).map_or(head.len(), |end| colon + end + 1);
            if head.get(colon) == Some(&b':') {
                lines.push(Line::new(Source::Head, begin, colon, end));
            }
            begin = end;
        }
        HeadEdit { head, added: Vec::new(), lines }
    }

    /// Returns the name and the trimmed value of each field that is kept.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.kept().map(|line| self.field(line))
    }

    /// Returns the trimmed values of the kept fields with this name. The case of letters does not matter.
    pub(super) fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.fields().filter(move |(found, _)| found.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }

    /// Keeps only the fields for which `keep` returns `Keep::Yes`. `keep` is called with the name and the trimmed value of each
    /// field.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&[u8], &[u8]) -> Keep) {
        for index in 0..self.lines.len() {
            let Some(line) = self.lines.get(index).copied().filter(|line| line.presence == Presence::Kept) else {
                continue;
            };
            let (name, value) = self.field(&line);
            if keep(name, value) == Keep::No
                && let Some(line) = self.lines.get_mut(index)
            {
                line.presence = Presence::Removed;
            }
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.retain(|found, _| if found.eq_ignore_ascii_case(name.as_bytes()) { Keep::No } else { Keep::Yes });
    }

    /// Adds a field after all other fields. Neither the name nor the value may contain a line end.
    pub(super) fn add(&mut self, name: &str, value: &[u8]) {
        let begin = self.added.len();
        self.added.reserve(if begin == 0 { 384 } else { name.len() + value.len() + 4 });
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.added.extend_from_slice(part);
        }
        self.lines.push(Line::new(Source::Added, begin, begin + name.len(), self.added.len()));
    }

    /// Adds a field, and removes all other fields with the same name.
    pub(super) fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        self.add(name, value);
    }

    /// Writes the fields that are kept, and the empty line after them. The first line of the head is not written.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.reserve(self.head.len() + self.added.len());
        let mut run = (0, 0);
        let head = self.kept().filter(|line| line.source == Source::Head);
        for line in head {
            let (begin, end) = line.span();
            if begin != run.1 {
                out.extend_from_slice(self.head.get(run.0..run.1).unwrap_or_default());
                run.0 = begin;
            }
            run.1 = end;
        }
        out.extend_from_slice(self.head.get(run.0..run.1).unwrap_or_default());
        for line in self.kept().filter(|line| line.source == Source::Added) {
            let (begin, end) = line.span();
            out.extend_from_slice(self.added.get(begin..end).unwrap_or_default());
        }
        out.extend_from_slice(b"\r\n");
    }

    fn kept(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.presence == Presence::Kept)
    }

    fn field(&self, line: &Line) -> (&[u8], &[u8]) {
        let source = match line.source {
            Source::Head => self.head,
            Source::Added => &self.added,
        };
        let (begin, end) = line.span();
        let whole = source.get(begin..end).unwrap_or_default();
        let colon = usize::try_from(line.colon).unwrap_or_default() - begin;
        let (name, value) = whole.split_at_checked(colon).unwrap_or_default();
        (name, value.get(1..).unwrap_or_default().trim_ascii())
    }
}

impl Line {
    fn new(source: Source, begin: usize, colon: usize, end: usize) -> Line {
        // The length of a head is limited, so the index always fits.
        let position = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let (begin, colon, end) = (position(begin), position(colon), position(end));
        Line { source, presence: Presence::Kept, begin, colon, end }
    }

    fn span(&self) -> (usize, usize) {
        (usize::try_from(self.begin).unwrap_or_default(), usize::try_from(self.end).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nX-One:  1 \r\nx-two:2\r\nX-ONE: 3\r\n\r\n";

    #[track_caller]
    fn check(edit: impl FnOnce(&mut HeadEdit<'_>), expected: &str) {
        let mut edited = HeadEdit::new(HEAD);
        edit(&mut edited);
        let mut out = Vec::new();
        edited.write(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn what_is_not_edited_stays_as_it_came() {
        check(|_| {}, "Host: a\r\nX-One:  1 \r\nx-two:2\r\nX-ONE: 3\r\n\r\n");
        check(|edit| edit.add("X-New", b"a: b"), "Host: a\r\nX-One:  1 \r\nx-two:2\r\nX-ONE: 3\r\nX-New: a: b\r\n\r\n");
    }

    #[test]
    fn every_field_of_a_name_is_replaced_the_added_ones_too() {
        check(|edit| edit.set("x-one", b"4"), "Host: a\r\nx-two:2\r\nx-one: 4\r\n\r\n");
        check(
            |edit| {
                edit.set("x-one", b"4");
                edit.set("X-One", b"5");
                edit.remove("host");
            },
            "x-two:2\r\nX-One: 5\r\n\r\n",
        );
    }

    #[test]
    fn values_are_read_trimmed_and_in_their_order() {
        let mut edit = HeadEdit::new(HEAD);
        edit.add("x-one", b"4");
        assert_eq!(edit.values("x-one").collect::<Vec<_>>(), [&b"1"[..], b"3", b"4"]);
        edit.retain(|_, value| if value == b"3" { Keep::No } else { Keep::Yes });
        assert_eq!(edit.values("x-one").collect::<Vec<_>>(), [&b"1"[..], b"4"]);
        assert_eq!((edit.values("host").count(), edit.values("hos").count()), (1, 0));
    }

    #[test]
    fn a_head_without_fields_is_one_empty_line() {
        let mut out = Vec::new();
        HeadEdit::new(b"HTTP/1.1 200 OK\r\n\r\n").write(&mut out);
        assert_eq!(out, b"\r\n");
    }
}

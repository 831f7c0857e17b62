//! Counts the text of a value, to estimate its number of tokens.

/// The beginning of a data URL (RFC 2397), in letters of any case.
const DATA_URL: &[u8] = b"data:";

/// Counts the names, strings and numbers of the open values. Each is counted when it ends.
#[derive(Clone, Debug, Default)]
pub(super) struct TextBelow {
    /// The open values: the index of their pointer, and the number of containers around each.
    open: Vec<(usize, usize)>,
    length: u64,
    /// The number of bytes of [`DATA_URL`] at the start of the string.
    matched: usize,
    /// Whether the string is a medium, whatever it begins with.
    is_medium: bool,
}

/// The kind of a name, a string or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// This number of bytes of text.
    Text(u64),
    /// A data URL, such as an image.
    Medium,
}

impl TextBelow {
    pub(super) fn clear(&mut self) {
        *self = TextBelow::default();
    }

    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn open(&mut self, index: usize, depth: usize) {
        self.open.push((index, depth));
    }

    /// Ends the values with this many containers around them.
    pub(super) fn close(&mut self, depth: usize) {
        while self.open.last().is_some_and(|(_, open)| *open == depth) {
            self.open.pop();
        }
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = usize> {
        self.open.iter().map(|(index, _)| *index)
    }

    pub(super) fn begin(&mut self) {
        (self.length, self.matched, self.is_medium) = (0, 0, false);
    }

    pub(super) fn begin_medium(&mut self) {
        self.is_medium = true;
    }

    pub(super) fn part(&mut self, part: &[u8]) {
        // The first bytes may come in several parts.
        if self.length == self.matched as u64 {
            let expected = DATA_URL.get(self.matched..).unwrap_or_default();
            let equal = expected.iter().zip(part).take_while(|(expected, byte)| byte.eq_ignore_ascii_case(expected));
            self.matched += equal.count();
        }
        self.length = self.length.saturating_add(part.len() as u64);
    }

    pub(super) fn end(&mut self, is_string: bool) -> Piece {
        if is_string && (self.is_medium || self.matched == DATA_URL.len()) {
            Piece::Medium
        } else {
            Piece::Text(self.length)
        }
    }
}

//! Counts the text of a value and of all that is inside of it, for estimates of how many tokens it is.

/// A data URL (RFC 2397) begins so, in letters of any case.
const DATA_URL: &[u8] = b"data:";

/// Counts names, strings and numbers of the values that are open. Each counts once it has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct TextBelow {
    /// The values whose text is counted, by the index of their pointer, and the number of containers around each.
    open: Vec<(usize, usize)>,
    length: u64,
    /// The number of bytes of [`DATA_URL`] that the string begins with.
    matched: usize,
}

/// What a name, a string or a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// So many bytes of text.
    Text(u64),
    /// A data URL: an image, or another medium.
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

    /// Ends the values with so many containers around them.
    pub(super) fn close(&mut self, depth: usize) {
        while self.open.last().is_some_and(|(_, open)| *open == depth) {
            self.open.pop();
        }
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = usize> {
        self.open.iter().map(|(index, _)| *index)
    }

    pub(super) fn begin(&mut self) {
        (self.length, self.matched) = (0, 0);
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
        if is_string && self.matched == DATA_URL.len() { Piece::Medium } else { Piece::Text(self.length) }
    }
}

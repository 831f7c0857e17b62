//! Counts the text of a value, to estimate its number of tokens.

/// The beginning of a data URL (RFC 2397), in letters of any case.
const DATA_URL: &[u8] = b"data:";
/// The end of the media type of a data URL, in letters of any case.
const BASE64: &[u8] = b";base64";
/// The largest number of bytes before the comma of a data URL.
const MOST_TYPE: usize = 200;

/// Counts the names, strings and numbers of the open values. Each is counted when it ends.
#[derive(Clone, Debug, Default)]
pub(super) struct TextBelow {
    /// The open values: the index of their pointer, and the number of containers around each.
    open: Vec<(usize, usize)>,
    length: u64,
    /// The first bytes of the string, up to its first comma.
    head: Vec<u8>,
    state: MediumState,
    /// Whether the string stands in the place of a medium, so that it may be base64 without the beginning of a data URL.
    is_in_place: bool,
}

/// Whether a string is a medium. Text in the place of a medium counts as text, and so does a data URL in another place: a model
/// reads it as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MediumState {
    /// The string may begin as a data URL.
    Beginning,
    /// The string has had only the characters of base64, behind the comma of a data URL or from its start.
    Base64,
    #[default]
    Text,
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
        (self.length, self.state, self.is_in_place) = (0, MediumState::Text, false);
        self.head.clear();
    }

    /// Begins a string in the place of an address, which may be a data URL.
    pub(super) fn begin_address(&mut self) {
        self.state = MediumState::Beginning;
    }

    /// Begins a string in the place of a medium.
    pub(super) fn begin_medium(&mut self) {
        (self.state, self.is_in_place) = (MediumState::Beginning, true);
    }

    pub(super) fn part(&mut self, part: &[u8]) {
        let mut rest = part;
        if self.state == MediumState::Beginning {
            rest = self.begin_url(part);
        }
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_%\r\n".contains(byte);
        if self.state == MediumState::Base64 && !rest.iter().all(is_base64) {
            self.state = MediumState::Text;
        }
        self.length = self.length.saturating_add(part.len() as u64);
    }

    pub(super) fn end(&mut self, is_string: bool) -> Piece {
        if is_string && self.state == MediumState::Base64 { Piece::Medium } else { Piece::Text(self.length) }
    }

    /// Reads the beginning of a data URL, whose bytes may come in several parts. Returns what follows its comma.
    fn begin_url<'p>(&mut self, part: &'p [u8]) -> &'p [u8] {
        let end = part.iter().position(|byte| *byte == b',');
        let (head, rest) = part.split_at(end.unwrap_or(part.len()));
        self.head.extend(head.iter().take(MOST_TYPE).map(u8::to_ascii_lowercase));
        let known = self.head.len().min(DATA_URL.len());
        let may_be_url = self.head.get(..known) == DATA_URL.get(..known) && self.head.len() < MOST_TYPE;
        if !may_be_url {
            // The parts before this one began as `data:` does. Its letters are characters of base64, and its colon is not.
            let may_be_base64 = self.is_in_place && !self.head.contains(&b':');
            self.state = if may_be_base64 { MediumState::Base64 } else { MediumState::Text };
            return part;
        }
        self.state = match end {
            None => MediumState::Beginning,
            Some(_) if self.head.ends_with(BASE64) && known == DATA_URL.len() => MediumState::Base64,
            Some(_) => MediumState::Text,
        };
        rest.get(1..).unwrap_or_default()
    }
}

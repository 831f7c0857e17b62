//! The grammar of JSON (RFC 8259) as a state machine, which reads pieces of a body.

use super::error::JsonError;
use super::number::{NumberPlace, NumberStep};
use super::text::{TextDecoder, TextStep};

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Number,
    Text,
    Array,
    Object,
}

/// Receives the parts of a body in their order. `offset` is the offset of the first byte of a value, or of the first
/// byte after a value.
pub(crate) trait Listener {
    fn begin(&mut self, kind: Kind, offset: u64);
    /// A part of the current number or decoded string. It may end within a character.
    fn part(&mut self, part: &[u8]);
    fn end(&mut self, kind: Kind, offset: u64);
    /// A part of the decoded name of the next member.
    fn name_part(&mut self, part: &[u8]);
    fn name_end(&mut self);
}

/// The state of reading a body.
#[derive(Clone, Debug)]
pub(crate) struct Grammar {
    state: State,
    text: TextDecoder,
    /// The open containers, the innermost in the lowest bit. 1 is an object.
    open: u128,
    depth: u8,
    /// The number of bytes before the current piece.
    offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a value.
    Value,
    /// After `[`: a value or the end.
    FirstElement,
    /// After `{`: a name or the end.
    FirstName,
    /// After a comma of an object.
    Name,
    InName,
    Colon,
    InText,
    InNumber(NumberPlace),
    /// In a literal, before its last bytes.
    Literal(Kind, &'static [u8]),
    /// After a value in a container.
    AfterValue,
    /// After the whole value.
    End,
    Failed(JsonError),
}

impl Default for Grammar {
    fn default() -> Grammar {
        Grammar { state: State::Value, text: TextDecoder::default(), open: 0, depth: 0, offset: 0 }
    }
}

impl Grammar {
    /// The number of bytes that were read, including those after an error.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of bytes before the error. Without an error, the number of all bytes.
    pub(crate) fn valid_up_to(&self) -> u64 {
        match self.state {
            State::Failed(
                JsonError::Syntax { offset } | JsonError::NotUtf8 { offset } | JsonError::TooDeep { offset },
            ) => offset,
            _ => self.offset,
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }

    pub(crate) fn fail(&mut self, error: JsonError) {
        if !self.has_failed() {
            self.state = State::Failed(error);
        }
    }

    /// Reads a piece of the body.
    pub(crate) fn push(&mut self, piece: &[u8], to: &mut impl Listener) {
        let mut index = 0;
        while let Some(&byte) = piece.get(index) {
            let offset = self.offset.saturating_add(index as u64);
            match self.state {
                State::InText | State::InName => {
                    let rest = piece.get(index..).unwrap_or_default();
                    index += self.read_text(rest, offset, to);
                    continue;
                }
                State::InNumber(place) => {
                    index += self.read_number(place, piece.get(index..).unwrap_or_default(), offset, to);
                    continue;
                }
                State::Literal(kind, rest) => match rest {
                    [expected] if *expected == byte => self.end_value(kind, offset + 1, to),
                    [expected, rest @ ..] if *expected == byte => self.state = State::Literal(kind, rest),
                    _ => self.state = State::Failed(JsonError::Syntax { offset }),
                },
                State::Failed(_) => break,
                _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => {}
                _ => self.structural(byte, offset, to),
            }
            index += 1;
        }
        self.offset = self.offset.saturating_add(piece.len() as u64);
    }

    /// Ends the body.
    ///
    /// # Errors
    /// If the body was not one JSON value.
    pub(crate) fn finish(&mut self, to: &mut impl Listener) -> Result<(), JsonError> {
        if let State::InNumber(place) = self.state
            && place.can_end()
            && self.depth == 0
        {
            self.end_value(Kind::Number, self.offset, to);
        }
        match self.state {
            State::End if self.text.has_lone_surrogate() => Err(JsonError::LoneSurrogate),
            State::End => Ok(()),
            State::Failed(error) => Err(error),
            _ => Err(JsonError::Incomplete),
        }
    }

    /// Reads a byte between values that is not white space.
    fn structural(&mut self, byte: u8, offset: u64, to: &mut impl Listener) {
        let in_object = self.open & 1 == 1;
        match (self.state, byte) {
            (State::Value | State::FirstElement, b'"') => {
                to.begin(Kind::Text, offset);
                self.text.restart();
                self.state = State::InText;
            }
            (State::Value | State::FirstElement, b'{') => self.open(Kind::Object, offset, to),
            (State::Value | State::FirstElement, b'[') => self.open(Kind::Array, offset, to),
            (State::FirstElement, b']') => self.close(Kind::Array, offset, to),
            (State::Value | State::FirstElement, _) => self.scalar(byte, offset, to),
            (State::FirstName | State::Name, b'"') => {
                self.text.restart();
                self.state = State::InName;
            }
            (State::FirstName, b'}') => self.close(Kind::Object, offset, to),
            (State::Colon, b':') => self.state = State::Value,
            (State::AfterValue, b',') => self.state = if in_object { State::Name } else { State::Value },
            (State::AfterValue, b'}') if in_object => self.close(Kind::Object, offset, to),
            (State::AfterValue, b']') if !in_object => self.close(Kind::Array, offset, to),
            _ => self.state = State::Failed(JsonError::Syntax { offset }),
        }
    }

    /// Reads the first byte of a number or a literal.
    fn scalar(&mut self, byte: u8, offset: u64, to: &mut impl Listener) {
        let (kind, state) = match byte {
            b't' => (Kind::Bool(true), State::Literal(Kind::Bool(true), b"rue")),
            b'f' => (Kind::Bool(false), State::Literal(Kind::Bool(false), b"alse")),
            b'n' => (Kind::Null, State::Literal(Kind::Null, b"ull")),
            _ => match NumberPlace::first(byte) {
                Some(place) => (Kind::Number, State::InNumber(place)),
                None => return self.state = State::Failed(JsonError::Syntax { offset }),
            },
        };
        to.begin(kind, offset);
        if kind == Kind::Number {
            to.part(&[byte]);
        }
        self.state = state;
    }

    /// Reads a part of a number. Returns the number of bytes read.
    fn read_number(&mut self, mut place: NumberPlace, rest: &[u8], offset: u64, to: &mut impl Listener) -> usize {
        let mut length = 0;
        let step = loop {
            let Some(&byte) = rest.get(length) else { break NumberStep::More(place) };
            match place.next(byte) {
                NumberStep::More(next) => place = next,
                end => break end,
            }
            length += 1;
        };
        to.part(rest.get(..length).unwrap_or_default());
        let offset = offset + length as u64;
        match step {
            NumberStep::More(place) => self.state = State::InNumber(place),
            // The byte is read again in the next state.
            NumberStep::End => self.end_value(Kind::Number, offset, to),
            NumberStep::Invalid => self.state = State::Failed(JsonError::Syntax { offset }),
        }
        length
    }

    /// Reads a part of a string. Returns the number of bytes read.
    fn read_text(&mut self, rest: &[u8], offset: u64, to: &mut impl Listener) -> usize {
        let is_name = self.state == State::InName;
        let step = if is_name {
            self.text.push(rest, &mut |part| to.name_part(part))
        } else {
            self.text.push(rest, &mut |part| to.part(part))
        };
        match step {
            TextStep::More => return rest.len(),
            TextStep::End(length) => {
                if is_name {
                    to.name_end();
                    self.state = State::Colon;
                } else {
                    self.end_value(Kind::Text, offset + length as u64, to);
                }
                return length;
            }
            TextStep::Syntax(index) => {
                self.state = State::Failed(JsonError::Syntax { offset: offset + index as u64 });
            }
            TextStep::NotUtf8(index) => {
                self.state = State::Failed(JsonError::NotUtf8 { offset: offset + index as u64 });
            }
        }
        rest.len()
    }

    fn open(&mut self, kind: Kind, offset: u64, to: &mut impl Listener) {
        if self.depth >= JsonError::MAX_DEPTH {
            self.state = State::Failed(JsonError::TooDeep { offset });
            return;
        }
        to.begin(kind, offset);
        self.depth += 1;
        self.open = (self.open << 1) | u128::from(kind == Kind::Object);
        self.state = if kind == Kind::Object { State::FirstName } else { State::FirstElement };
    }

    fn close(&mut self, kind: Kind, offset: u64, to: &mut impl Listener) {
        self.open >>= 1;
        self.depth -= 1;
        self.end_value(kind, offset + 1, to);
    }

    fn end_value(&mut self, kind: Kind, offset: u64, to: &mut impl Listener) {
        to.end(kind, offset);
        self.state = if self.depth == 0 { State::End } else { State::AfterValue };
    }
}

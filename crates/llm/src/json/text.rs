//! Decodes the string of a JSON value in pieces (RFC 8259 §7, RFC 3629 §4).

/// The replacement for an escape that is not Unicode.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// The result of reading a piece of a string.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TextStep {
    /// The whole piece belongs to the string.
    More,
    /// The string ended after this many bytes, including the quotation mark.
    End(usize),
    /// The byte at this index cannot be in a string.
    Syntax(usize),
    /// The byte at this index is not UTF-8.
    NotUtf8(usize),
}

/// A string after its first quotation mark.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextDecoder {
    place: Place,
    /// The first half of a surrogate pair that was escaped.
    high: Option<u16>,
    has_lone_surrogate: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Plain,
    /// In a UTF-8 sequence: the number of missing bytes, and the bounds of the next one.
    Sequence { remaining: u8, from: u8, to: u8 },
    /// After a backslash.
    Escape,
    /// After `\u` and this many digits.
    Hex { digits: u8, unit: u16 },
}

impl TextDecoder {
    /// Starts another string. `has_lone_surrogate` is kept.
    pub(crate) fn restart(&mut self) {
        *self = TextDecoder { has_lone_surrogate: self.has_lone_surrogate, ..TextDecoder::default() };
    }

    pub(crate) fn has_lone_surrogate(&self) -> bool {
        self.has_lone_surrogate
    }

    /// Reads a piece, and passes its decoded text to `out` in parts. A part may end within a character.
    pub(crate) fn push(&mut self, piece: &[u8], out: &mut impl FnMut(&[u8])) -> TextStep {
        // The bytes from `from` to `index` need no decoding.
        let (mut from, mut index) = (0, 0);
        let send = |from: usize, to: usize, out: &mut dyn FnMut(&[u8])| {
            if let Some(part) = piece.get(from..to).filter(|part| !part.is_empty()) {
                out(part);
            }
        };
        while let Some(&byte) = piece.get(index) {
            match self.place {
                Place::Plain => {
                    if byte != b'\\' && self.high.is_some() {
                        self.flush_high(out);
                    }
                    match byte {
                        b'"' => {
                            send(from, index, out);
                            return TextStep::End(index + 1);
                        }
                        b'\\' => {
                            send(from, index, out);
                            self.place = Place::Escape;
                        }
                        0..0x20 => {
                            send(from, index, out);
                            return TextStep::Syntax(index);
                        }
                        0x20..0x80 => {
                            index += plain_run(piece.get(index..).unwrap_or_default());
                            continue;
                        }
                        _ => match sequence(byte) {
                            Some(place) => self.place = place,
                            None => {
                                send(from, index, out);
                                return TextStep::NotUtf8(index);
                            }
                        },
                    }
                }
                Place::Sequence { remaining, from: least, to: most } => {
                    if !(least..=most).contains(&byte) {
                        send(from, index, out);
                        return TextStep::NotUtf8(index);
                    }
                    self.place = match remaining {
                        1 => Place::Plain,
                        _ => Place::Sequence { remaining: remaining - 1, from: 0x80, to: 0xbf },
                    };
                }
                Place::Escape => {
                    if byte == b'u' {
                        self.place = Place::Hex { digits: 0, unit: 0 };
                    } else {
                        self.flush_high(out);
                        let Some(meant) = escaped(byte) else { return TextStep::Syntax(index) };
                        out(&[meant]);
                        self.place = Place::Plain;
                    }
                    from = index + 1;
                }
                Place::Hex { digits, unit } => {
                    let Some(digit) = hex(byte) else { return TextStep::Syntax(index) };
                    let unit = (unit << 4) | digit;
                    self.place = Place::Hex { digits: digits + 1, unit };
                    if digits == 3 {
                        self.unit(unit, out);
                        self.place = Place::Plain;
                    }
                    from = index + 1;
                }
            }
            index += 1;
        }
        if matches!(self.place, Place::Plain | Place::Sequence { .. }) {
            send(from, index, out);
        }
        TextStep::More
    }

    /// Reads one escaped unit of UTF-16.
    fn unit(&mut self, unit: u16, out: &mut impl FnMut(&[u8])) {
        if let (Some(high), 0xdc00..0xe000) = (self.high, unit) {
            self.high = None;
            let code = 0x1_0000 + ((u32::from(high) - 0xd800) << 10) + (u32::from(unit) - 0xdc00);
            return write_character(code, out);
        }
        self.flush_high(out);
        match unit {
            0xd800..0xdc00 => self.high = Some(unit),
            0xdc00..0xe000 => {
                self.has_lone_surrogate = true;
                out(REPLACEMENT);
            }
            _ => write_character(u32::from(unit), out),
        }
    }

    /// Replaces the first half of a pair without a second half.
    fn flush_high(&mut self, out: &mut impl FnMut(&[u8])) {
        if self.high.take().is_some() {
            self.has_lone_surrogate = true;
            out(REPLACEMENT);
        }
    }
}

/// The number of bytes at the start that need no decoding.
fn plain_run(bytes: &[u8]) -> usize {
    let is_special = |byte: &u8| *byte < 0x20 || *byte >= 0x80 || *byte == b'"' || *byte == b'\\';
    bytes.iter().position(is_special).unwrap_or(bytes.len())
}

/// Returns the place after the first byte of a UTF-8 sequence: RFC 3629, section 4.
fn sequence(first: u8) -> Option<Place> {
    let (remaining, from, to) = match first {
        0xc2..=0xdf => (1, 0x80, 0xbf),
        0xe0 => (2, 0xa0, 0xbf),
        0xed => (2, 0x80, 0x9f),
        0xe1..=0xef => (2, 0x80, 0xbf),
        0xf0 => (3, 0x90, 0xbf),
        0xf1..=0xf3 => (3, 0x80, 0xbf),
        0xf4 => (3, 0x80, 0x8f),
        _ => return None,
    };
    Some(Place::Sequence { remaining, from, to })
}

fn escaped(byte: u8) -> Option<u8> {
    Some(match byte {
        b'"' | b'\\' | b'/' => byte,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return None,
    })
}

fn hex(byte: u8) -> Option<u16> {
    char::from(byte).to_digit(16).and_then(|digit| u16::try_from(digit).ok())
}

fn write_character(code: u32, out: &mut impl FnMut(&[u8])) {
    let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    out(character.encode_utf8(&mut [0; 4]).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a string in pieces of every size.
    #[track_caller]
    fn check(sent: &[u8], expected: &str, is_lone: bool) {
        for size in 1..=sent.len() {
            let (mut decoder, mut text, mut used) = (TextDecoder::default(), Vec::new(), 0);
            for piece in sent.chunks(size) {
                match decoder.push(piece, &mut |part| text.extend_from_slice(part)) {
                    TextStep::More => used += piece.len(),
                    TextStep::End(end) => used += end,
                    wrong => panic!("{wrong:?}"),
                }
            }
            assert_eq!(String::from_utf8(text).unwrap(), expected, "in pieces of {size}");
            assert_eq!((used, decoder.has_lone_surrogate()), (sent.len(), is_lone));
        }
    }

    #[test]
    fn a_string_is_decoded_over_any_borders() {
        check(br#"""#, "", false);
        check(br#"plain text""#, "plain text", false);
        check(br#"a\n\"\\\/\b\f\r\tz""#, "a\n\"\\/\u{8}\u{c}\r\tz", false);
        check("é€😀\"".as_bytes(), "é€😀", false);
        check(br#"\u00e9\u20AC\ud83d\ude00!""#, "é€😀!", false);
    }

    #[test]
    fn half_of_a_pair_is_replaced_and_noticed() {
        check(br#"a\ud83dz""#, "a\u{fffd}z", true);
        check(br#"a\ud83d""#, "a\u{fffd}", true);
        check(br#"a\ude00""#, "a\u{fffd}", true);
        check(br#"\ud83d\ud83d\ude00""#, "\u{fffd}😀", true);
        check(br#"\ud83d\n""#, "\u{fffd}\n", true);
        check(br#"\ud83d\u0041""#, "\u{fffd}A", true);
    }

    #[test]
    fn what_cannot_be_in_a_string_is_found_at_its_byte() {
        let read = |bytes: &[u8]| TextDecoder::default().push(bytes, &mut |_| ());
        assert_eq!(read(b"a\nb\""), TextStep::Syntax(1));
        assert_eq!(read(br#"a\x""#), TextStep::Syntax(2));
        assert_eq!(read(br#"a\u12g""#), TextStep::Syntax(5));
        for bytes in [&b"\x80"[..], b"\xc0\x80", b"\xc1\xbf", b"\xf5\x80\x80\x80", b"\xff"] {
            assert_eq!(read(bytes), TextStep::NotUtf8(0), "{bytes:?}");
        }
        for bytes in [&b"\xe0\x80\x80"[..], b"\xed\xa0\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xc3\""] {
            assert_eq!(read(bytes), TextStep::NotUtf8(1), "{bytes:?}");
        }
    }
}

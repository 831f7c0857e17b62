//! Counts the fields of trailers as the peer sends them, to find pseudo-header fields among them.
//!
//! Trailers must not contain pseudo-header fields (RFC 9113, section 8.1), and the h2 crate leaves them out without an
//! error. If the h2 crate returns fewer fields than were counted here, the message is malformed.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// The largest number of unread trailers on one connection. If there are more, the oldest trailers are forgotten, and
/// their messages count as malformed.
const MOST_TRAILERS: usize = 1024;

const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
/// The length of the priority that a frame with the flag `PRIORITY` has before its block.
const PRIORITY_LENGTH: usize = 5;

/// The numbers of fields in the trailers that have arrived on one connection and have not been read, each with its stream.
#[derive(Debug, Default)]
pub struct TrailerCounts(Mutex<VecDeque<(u32, usize)>>);

impl TrailerCounts {
    fn note(&self, stream: u32, fields: usize) {
        let mut counts = self.0.lock();
        if counts.len() == MOST_TRAILERS {
            counts.pop_front();
        }
        counts.push_back((stream, fields));
    }

    /// Returns the number of fields in a stream's trailers, and forgets this number. `None` without trailers.
    pub fn take(&self, stream: u32) -> Option<usize> {
        let mut counts = self.0.lock();
        let index = counts.iter().position(|(of, _)| *of == stream)?;
        counts.remove(index).map(|(_, fields)| fields)
    }
}

/// Counts the fields of one block, whose frames may be split in any way.
#[derive(Debug)]
pub(super) struct BlockCounter {
    stream: u32,
    /// The number of missing bytes before the block, not counting the length of the padding.
    before: usize,
    has_padding: bool,
    /// The number of missing bytes of the block in the current frame.
    content: usize,
    fields: FieldCounter,
}

impl BlockCounter {
    /// Begins a block, whose first frame has these flags and this length.
    pub(super) fn new(stream: u32, flags: u8, length: usize) -> BlockCounter {
        let before = if flags & PRIORITY == 0 { 0 } else { PRIORITY_LENGTH };
        let content = length.saturating_sub(before);
        BlockCounter { stream, before, has_padding: flags & PADDED != 0, content, fields: FieldCounter::default() }
    }

    /// Continues the block in a further frame of this length.
    pub(super) fn continue_in(&mut self, length: usize) {
        (self.before, self.has_padding, self.content) = (0, false, length);
    }

    /// Counts the fields in the next bytes of the frame's payload.
    pub(super) fn count(&mut self, payload: &[u8]) {
        for byte in payload {
            if self.has_padding {
                self.has_padding = false;
                self.content = self.content.saturating_sub(1 + usize::from(*byte));
            } else if self.before > 0 {
                self.before -= 1;
            } else if self.content > 0 {
                self.content -= 1;
                self.fields.count(*byte);
            }
        }
    }

    /// Notes the number of fields of the whole block.
    pub(super) fn end(self, counts: &TrailerCounts) {
        counts.note(self.stream, self.fields.fields);
    }
}

/// Finds the ends of the fields in a block.
#[derive(Debug, Default)]
struct FieldCounter {
    fields: usize,
    /// The number of strings of the field that are still to come: its name, its value, or both.
    strings: u8,
    part: Part,
}

/// The part of a field to which the next byte belongs.
#[derive(Clone, Copy, Debug, Default)]
enum Part {
    /// The first byte of a field, or of the length of a string.
    #[default]
    First,
    /// A further byte of an index or of the size of the table, whose value does not matter.
    Index,
    /// A further byte of a length: the sum of the bytes before it, and the number of bits by which it is shifted.
    Length(usize, u32),
    /// The content of a string, of which this many bytes are missing.
    Content(usize),
}

impl FieldCounter {
    fn count(&mut self, byte: u8) {
        self.part = match self.part {
            Part::First if self.strings == 0 => self.begin(byte),
            Part::First => match byte & 0x7f {
                0x7f => Part::Length(0x7f, 0),
                length => self.content(length.into()),
            },
            Part::Index if byte & 0x80 == 0 => Part::First,
            Part::Index => Part::Index,
            Part::Length(length, shift) => {
                let more = usize::from(byte & 0x7f).checked_shl(shift).unwrap_or(usize::MAX);
                let length = length.saturating_add(more);
                if byte & 0x80 == 0 { self.content(length) } else { Part::Length(length, shift.saturating_add(7)) }
            }
            Part::Content(left) => self.content(left - 1),
        };
    }

    /// Begins a field, or a change of the table's size, which is no field.
    fn begin(&mut self, byte: u8) -> Part {
        let (prefix, strings) = match byte {
            0x80.. => (0x7f, 0),
            0x40.. => (0x3f, 1),
            0x20.. => (0x1f, 0),
            _ => (0x0f, 1),
        };
        let index = byte & prefix;
        if !matches!(byte, 0x20..0x40) {
            self.fields += 1;
            // Index 0 means that the name is a string as well.
            self.strings = if strings == 1 && index == 0 { 2 } else { strings };
        }
        if index == prefix { Part::Index } else { Part::First }
    }

    fn content(&mut self, left: usize) -> Part {
        if left > 0 {
            return Part::Content(left);
        }
        self.strings -= 1;
        Part::First
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of fields in a block. The block is in a frame with these flags, and arrives in parts of `size` bytes.
    fn count(flags: u8, payload: &[u8], size: usize) -> Option<usize> {
        let counts = TrailerCounts::default();
        let mut block = BlockCounter::new(1, flags, payload.len());
        payload.chunks(size).for_each(|part| block.count(part));
        block.end(&counts);
        counts.take(1)
    }

    #[test]
    fn the_fields_of_a_block_are_counted_in_every_form() {
        let long = [&[0x00, 0x7f, 0x81, 0x01][..], &[b'n'; 0x7f + 0x81], &[0x7f, 0x00], &[b'v'; 0x7f]].concat();
        let cases: [(&str, &[u8], usize); 9] = [
            ("no field", &[], 0),
            ("an indexed field", &[0x82], 1),
            ("an index of two bytes", &[0xff, 0x80, 0x01, 0x82], 2),
            ("a name of the table", &[0x44, 0x01, b'/', 0x0f, 0x05, 0x01, b'v'], 2),
            ("a name and a value", &[0x40, 0x01, b'n', 0x01, b'v', 0x10, 0x01, b'n', 0x00], 2),
            ("an empty value of an indexed name", &[0x41, 0x00, 0x88], 2),
            ("Huffman codes", &[0x00, 0x82, 0xaa, 0xbb, 0x81, 0xcc, 0x82], 2),
            ("sizes of the table", &[0x20, 0x3f, 0xe1, 0x1f, 0x82], 1),
            ("long strings", &long, 1),
        ];
        for (what, block, fields) in cases {
            let padded = [&[3][..], block, &[0x82; 3]].concat();
            let both = [&[3, 0, 0, 0, 0, 1][..], block, &[0x82; 3]].concat();
            for size in [1, 2, 7, 1000] {
                assert_eq!(count(0, block, size), Some(fields), "{what}");
                assert_eq!(count(PADDED, &padded, size), Some(fields), "{what}");
                assert_eq!(count(PADDED | PRIORITY, &both, size), Some(fields), "{what}");
            }
        }
    }

    #[test]
    fn a_length_without_an_end_is_counted_without_an_overflow() {
        let endless = [&[0x00, 0x7f][..], &[0xff; 100]].concat();
        assert_eq!(count(0, &endless, 3), Some(1));
    }

    #[test]
    fn trailers_are_forgotten_once_they_are_read_and_beyond_their_bound() {
        let counts = TrailerCounts::default();
        (0..2000).for_each(|stream| counts.note(stream, 1));
        assert_eq!((counts.take(0), counts.take(1999), counts.take(1999)), (None, Some(1), None));
        assert_eq!(counts.0.lock().len(), MOST_TRAILERS - 1);
    }
}

//! Finds the values at pointers in a body that comes in pieces, and keeps nothing else.

use std::ops::Deref;

use super::error::JsonError;
use super::grammar::{Grammar, Kind, Listener};
use super::pointer_set::{Interest, NodeId, PointerSet};
use super::text_below::{Piece, TextBelow};
use super::value::{Number, Value};

/// Reads one JSON value in pieces, strictly.
///
/// The values are known at any time. Only the end shows whether the body was JSON. Memory: at most
/// [`Value::MAX_BYTES`] for each pointer, and some bytes for each level of the body.
#[derive(Clone, Debug)]
pub struct JsonScanner<S> {
    grammar: Grammar,
    walk: Walk<S>,
    max_bytes: u64,
}

/// The result at a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'v> {
    /// The body has no such value, or the value has not ended yet.
    Missing,
    /// The value. Of several elements of an array, the value in the last one.
    Value(&'v Value),
    /// A name on the way to the value occurs twice in its object, so the value is ambiguous (RFC 8259 §4).
    Twice,
}

impl<S: Deref<Target = PointerSet>> JsonScanner<S> {
    /// Makes a scanner for a body of at most `max_bytes` bytes.
    pub fn new(pointers: S, max_bytes: u64) -> JsonScanner<S> {
        let walk = Walk {
            found: vec![Found::default(); pointers.len()],
            visited_in: vec![0; pointers.node_count()],
            pointers,
            path: Vec::new(),
            objects: 0,
            ignored: 0,
            member: None,
            name: Vec::new(),
            is_name_too_long: false,
            scalar: None,
            kept: Vec::new(),
            is_too_long: false,
            measured: Vec::new(),
            text_below: TextBelow::default(),
            all_bytes: 0,
        };
        JsonScanner { grammar: Grammar::default(), walk, max_bytes }
    }

    /// Starts another body.
    pub fn reset(&mut self) {
        self.grammar = Grammar::default();
        self.walk.reset();
    }

    /// Reads the next piece of the body. After an error, the rest is ignored.
    pub fn push(&mut self, piece: &[u8]) {
        let left = self.max_bytes.saturating_sub(self.grammar.offset());
        let within = piece.get(..usize::try_from(left).unwrap_or(usize::MAX)).unwrap_or(piece);
        self.grammar.push(within, &mut self.walk);
        self.walk.measure(self.grammar.valid_up_to());
        if within.len() < piece.len() {
            self.grammar.fail(JsonError::TooLong);
        }
        if self.grammar.has_failed() {
            self.walk.measured.clear();
        }
    }

    /// Ends the body.
    ///
    /// # Errors
    /// If the body was not one JSON value in Unicode, or was too long or too deep.
    pub fn finish(&mut self) -> Result<(), JsonError> {
        self.grammar.finish(&mut self.walk)
    }

    /// Returns the result at the pointer with this index.
    pub fn value(&self, index: usize) -> Lookup<'_> {
        match self.walk.found.get(index) {
            Some(Found { is_twice: true, .. }) => Lookup::Twice,
            Some(Found { value: Some(value), .. }) => Lookup::Value(value),
            _ => Lookup::Missing,
        }
    }

    /// Whether a name on the way to the value is in the body in another case, such as `Model` for `model`. Some servers
    /// read both as the same name.
    pub fn has_other_case(&self, index: usize) -> bool {
        self.walk.found.get(index).is_some_and(|found| found.has_other_case)
    }

    /// The number of bytes that were counted at the pointer with this index.
    pub fn bytes(&self, index: usize) -> u64 {
        self.walk.found.get(index).map_or(0, |found| found.bytes)
    }

    /// The number of data URLs at the pointer with this index.
    pub fn media(&self, index: usize) -> u64 {
        self.walk.found.get(index).map_or(0, |found| found.media)
    }

    /// The offset of the first byte of the value at the pointer with this index. If the pointer leads to several
    /// elements of an array, this is the offset in the last element. `None` if the body has no such value.
    pub fn offset(&self, index: usize) -> Option<u64> {
        self.walk.found.get(index).filter(|found| found.value.is_some()).map(|found| found.begin)
    }

    /// The number of bytes that were counted at all pointers.
    pub fn all_bytes(&self) -> u64 {
        self.walk.all_bytes
    }

    /// [`all_bytes`](Self::all_bytes) at the time when the value at this pointer was read.
    pub fn all_bytes_before(&self, index: usize) -> u64 {
        self.walk.found.get(index).map_or(0, |found| found.all_bytes_before)
    }
}

/// The position in the tree of pointers.
#[derive(Clone, Debug)]
struct Walk<S> {
    pointers: S,
    found: Vec<Found>,
    /// For each node, the number of the object in which it was last reached.
    visited_in: Vec<u64>,
    /// The open objects and arrays on the way to a value of some pointer.
    path: Vec<Level>,
    /// The number of objects that pointers led through.
    objects: u64,
    /// The number of open objects and arrays inside the objects and arrays of `path`. No pointer leads into them.
    ignored: u32,
    /// The node of the next member, whose name was read.
    member: Option<NodeId>,
    name: Vec<u8>,
    is_name_too_long: bool,
    /// The node of the number, string or literal that is being read.
    scalar: Option<(NodeId, Kind)>,
    /// The bytes of `scalar` that have been read.
    kept: Vec<u8>,
    is_too_long: bool,
    measured: Vec<Measurement>,
    text_below: TextBelow,
    /// The sum of the bytes that were counted at all pointers.
    all_bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct Found {
    value: Option<Value>,
    is_twice: bool,
    has_other_case: bool,
    bytes: u64,
    media: u64,
    all_bytes_before: u64,
    /// The offset of the first byte of the value.
    begin: u64,
}

impl Found {
    /// Counts bytes at this pointer, and in the sum of all pointers.
    fn count(&mut self, bytes: u64, all_bytes: &mut u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        *all_bytes = all_bytes.saturating_add(bytes);
    }
}

/// A container that pointers lead through.
#[derive(Clone, Copy, Debug)]
struct Level {
    node: NodeId,
    /// The number of the object, from 1, or the number of the array's next element.
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Object(u64),
    Array { next: u64 },
}

/// A value whose bytes are counted as they were sent.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    index: usize,
    /// The number of containers around the value.
    depth: usize,
    /// The bytes before this offset have been counted.
    counted_to: u64,
}

impl<S: Deref<Target = PointerSet>> Walk<S> {
    fn reset(&mut self) {
        self.found.fill(Found::default());
        self.visited_in.fill(0);
        self.path.clear();
        self.measured.clear();
        self.text_below.clear();
        self.all_bytes = 0;
        (self.objects, self.ignored, self.member, self.scalar) = (0, 0, None, None);
        self.kept.clear();
        self.name.clear();
        (self.is_name_too_long, self.is_too_long) = (false, false);
    }

    fn depth(&self) -> usize {
        self.path.len() + self.ignored as usize
    }

    /// Counts the bytes of the open values up to this offset.
    fn measure(&mut self, offset: u64) {
        for open in &mut self.measured {
            if let Some(found) = self.found.get_mut(open.index) {
                found.count(offset.saturating_sub(open.counted_to), &mut self.all_bytes);
            }
            open.counted_to = offset;
        }
    }

    /// Returns the node of the next value.
    fn next_node(&mut self) -> Option<NodeId> {
        if self.ignored > 0 {
            return None;
        }
        let Some(level) = self.path.last_mut() else { return Some(0) };
        match &mut level.place {
            Place::Object(_) => self.member.take(),
            Place::Array { next } => {
                let number = *next;
                *next += 1;
                self.pointers.element(level.node, number)
            }
        }
    }

    /// Keeps the value of a node for the pointers that want it.
    fn keep(&mut self, node: NodeId, value: &Value) {
        for (index, interest) in self.pointers.wanted(node) {
            if *interest == Interest::Value
                && let Some(found) = self.found.get_mut(*index)
            {
                found.value = Some(value.clone());
                found.all_bytes_before = self.all_bytes;
            }
        }
    }

    /// Counts a name, string or number that has ended.
    fn count_below(&mut self, is_string: bool) {
        if !self.text_below.is_open() {
            return;
        }
        let piece = self.text_below.end(is_string);
        for index in self.text_below.indices() {
            if let Some(found) = self.found.get_mut(index) {
                match piece {
                    Piece::Text(length) => found.count(length, &mut self.all_bytes),
                    Piece::Medium => found.media += 1,
                }
            }
        }
        self.text_below.begin();
    }

    /// Returns the number or the string that was kept. The grammar has checked that it is UTF-8.
    fn kept_value(&mut self, kind: Kind) -> Value {
        let text = String::from_utf8(std::mem::take(&mut self.kept));
        match text {
            Ok(text) if !self.is_too_long && kind == Kind::Number => Value::Number(Number::new(text)),
            Ok(text) if !self.is_too_long => Value::Text(text),
            _ => Value::TooLong,
        }
    }
}

impl<S: Deref<Target = PointerSet>> Listener for Walk<S> {
    fn begin(&mut self, kind: Kind, offset: u64) {
        let mut node = self.next_node();
        if kind == Kind::Object {
            node = node.map(|node| self.pointers.object(node));
        }
        let is_container = matches!(kind, Kind::Array | Kind::Object);
        if let Some(node) = node {
            let depth = self.depth();
            for (index, interest) in self.pointers.wanted(node) {
                match interest {
                    Interest::SentBytes => {
                        self.measured.push(Measurement { index: *index, depth, counted_to: offset });
                    }
                    Interest::TextBelow | Interest::OwnText if kind == Kind::Text => {
                        self.text_below.open(*index, depth);
                        self.text_below.begin_address();
                    }
                    Interest::TextBelow => self.text_below.open(*index, depth),
                    Interest::Medium if kind == Kind::Text => self.text_below.begin_medium(),
                    Interest::Value => {
                        if let Some(found) = self.found.get_mut(*index) {
                            found.begin = offset;
                        }
                    }
                    Interest::TextBytes | Interest::OwnText | Interest::Medium => {}
                }
            }
            if !is_container {
                self.kept.clear();
                self.is_too_long = false;
                self.scalar = Some((node, kind));
            }
        }
        match node {
            Some(node) if is_container => {
                let place = if kind == Kind::Object {
                    self.objects += 1;
                    Place::Object(self.objects)
                } else {
                    Place::Array { next: 0 }
                };
                self.path.push(Level { node, place });
            }
            _ if is_container => self.ignored += 1,
            _ => {}
        }
    }

    fn part(&mut self, part: &[u8]) {
        if self.text_below.is_open() {
            self.text_below.part(part);
        }
        let Some((node, kind)) = self.scalar else { return };
        let mut is_wanted = false;
        for (index, interest) in self.pointers.wanted(node) {
            match interest {
                Interest::Value => is_wanted = true,
                Interest::TextBytes if kind == Kind::Text => {
                    if let Some(found) = self.found.get_mut(*index) {
                        found.count(part.len() as u64, &mut self.all_bytes);
                    }
                }
                Interest::TextBytes
                | Interest::SentBytes
                | Interest::TextBelow
                | Interest::OwnText
                | Interest::Medium => {}
            }
        }
        if is_wanted && self.kept.len() + part.len() > Value::MAX_BYTES {
            self.is_too_long = true;
        } else if is_wanted && !self.is_too_long {
            self.kept.extend_from_slice(part);
        }
    }

    fn end(&mut self, kind: Kind, offset: u64) {
        if matches!(kind, Kind::Text | Kind::Number) {
            self.count_below(kind == Kind::Text);
        }
        match kind {
            Kind::Array | Kind::Object if self.ignored > 0 => self.ignored -= 1,
            Kind::Array | Kind::Object => {
                if let Some(level) = self.path.pop() {
                    self.keep(level.node, if kind == Kind::Object { &Value::Object } else { &Value::Array });
                }
            }
            _ => {
                if let Some((node, _)) = self.scalar.take() {
                    let value = match kind {
                        Kind::Null => Value::Null,
                        Kind::Bool(value) => Value::Bool(value),
                        _ => self.kept_value(kind),
                    };
                    self.keep(node, &value);
                }
            }
        }
        if !self.measured.is_empty() {
            let depth = self.depth();
            if self.measured.last().is_some_and(|open| open.depth == depth) {
                self.measure(offset);
                self.measured.retain(|open| open.depth != depth);
            }
        }
        if self.text_below.is_open() {
            self.text_below.close(self.depth());
        }
    }

    fn name_part(&mut self, part: &[u8]) {
        if self.text_below.is_open() {
            self.text_below.part(part);
        }
        if self.ignored > 0 {
            return;
        }
        // A letter in another case may have up to three bytes.
        if self.name.len() + part.len() > self.pointers.longest_name().saturating_mul(3) {
            self.is_name_too_long = true;
        } else {
            self.name.extend_from_slice(part);
        }
    }

    fn name_end(&mut self) {
        self.count_below(false);
        let is_too_long = std::mem::take(&mut self.is_name_too_long);
        if self.ignored == 0
            && !is_too_long
            && let Some(Level { node, place: Place::Object(object) }) = self.path.last().copied()
        {
            self.member = self.pointers.member(node, &self.name);
            if let Some(member) = self.member {
                let visited_in = self.visited_in.get_mut(member);
                if visited_in.is_some_and(|visited_in| std::mem::replace(visited_in, object) == object) {
                    let found = &mut self.found;
                    self.pointers.each_below(member, &mut |index| note(found, index, |found| found.is_twice = true));
                }
            } else {
                let found = &mut self.found;
                for member in self.pointers.members_in_other_case(node, &self.name) {
                    self.pointers
                        .each_below(member, &mut |index| note(found, index, |found| found.has_other_case = true));
                }
            }
        }
        self.name.clear();
    }
}

fn note(found: &mut [Found], index: usize, change: impl FnOnce(&mut Found)) {
    if let Some(found) = found.get_mut(index) {
        change(found);
    }
}

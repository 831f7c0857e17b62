//! Parses YAML into a tree in which every value has its position.
//!
//! The structure and the positions come from the parser's events. serde_yaml decides the type of a plain scalar (text,
//! number, boolean, null). This parser rejects everything that the tree could not show: a second document, duplicate
//! keys, merge keys, tags, keys that are not plain text, unbounded nesting and unbounded aliases.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};

use crate::language::disclosure::{Disclosure, without_secret};
use crate::language::key_path::{join, push_index, push_key};
use crate::language::problem::{Problem, Report};
use crate::language::quotes::is_kind_of_attribute;
use crate::language::unreadable_text::unreadable;
use base::position::Position;

/// The largest depth of nested values. Sensible files are less deep, and recursive functions can handle this depth.
pub(super) const MAX_DEPTH: usize = 64;
/// The largest length of the texts of all values together, in bytes. A text counts again each time an alias repeats it.
const MAX_TEXT: usize = 16 << 20;

/// The largest number of nodes and the largest number of bytes that a file may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeBounds {
    pub nodes: usize,
    pub bytes: usize,
}

/// The bounds of a gateway.yaml.
pub(crate) const CONFIG: TreeBounds = TreeBounds { nodes: 200_000, bytes: 4 << 20 };

/// A value of the file, with the position of its first character.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub position: Position,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: String,
    pub key_position: Position,
    pub value: Node,
}

/// A scalar, with its text and the way in which the file writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    pub text: String,
    pub style: Style,
    pub disclosure: Disclosure,
}

/// The way in which the file writes a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Without quotes. The type of the scalar depends on the text, such as `12`, `true` or `free`.
    Plain,
    /// In quotes, or as a block. The type of the scalar is always text.
    Quoted,
    /// As a single reference to an environment variable. The value has whatever type its key requires.
    Reference,
    /// With a reference that cannot be resolved, or with a tag. This has been reported, so no other problem of the value is reported.
    Unresolved,
    /// With a variable that is not set, in a file that is only examined. The value is unknown.
    Unknown,
}

/// The type of a scalar: a YAML type, or a reference whose type depends on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Null,
    Boolean,
    Number,
    Text,
    Reference,
}

impl Scalar {
    pub(crate) fn new(text: impl Into<String>, style: Style) -> Scalar {
        Scalar { text: text.into(), style, disclosure: Disclosure::Shown }
    }

    /// Formats the scalar as a member of a list in brackets, with quotes if they are needed.
    pub fn as_member(&self) -> String {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:/-".contains(&byte);
        let starts_plain = self.text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/');
        match self.style {
            Style::Plain if starts_plain && self.text.bytes().all(is_plain) => self.text.clone(),
            _ => format!("\"{}\"", self.text.escape_debug()),
        }
    }

    /// Returns the type of the scalar. If the text has no quotes, serde_yaml decides its type.
    pub fn kind(&self) -> Kind {
        match self.style {
            Style::Quoted => Kind::Text,
            Style::Reference | Style::Unresolved | Style::Unknown => Kind::Reference,
            Style::Plain => match serde_yaml::from_str(&self.text) {
                Ok(serde_yaml::Value::Null) => Kind::Null,
                Ok(serde_yaml::Value::Bool(_)) => Kind::Boolean,
                Ok(serde_yaml::Value::Number(_)) => Kind::Number,
                _ => Kind::Text,
            },
        }
    }
}

impl Entry {
    /// Returns the key as reports show it. Of a key without a value, or with a colon and a space in it, the text after the colon is
    /// not shown: it was meant as the value, such as a password.
    pub(crate) fn shown_key(&self) -> Cow<'_, str> {
        let has_value = !matches!(&self.value.value, Value::Scalar(scalar) if scalar.kind() == Kind::Null);
        match self.key.split_once(':') {
            Some((name, rest)) if rest.starts_with(' ') || !has_value && !is_kind_of_attribute(name) => {
                Cow::Owned(format!("{name}:…"))
            }
            _ => Cow::Borrowed(&self.key),
        }
    }
}

impl Node {
    /// Describes the value by its text or its type, for the end of a message such as "must …, is …".
    pub fn found(&self) -> String {
        // The largest number of characters of the text that are shown.
        const LONGEST: usize = 60;
        match &self.value {
            Value::List(list) => if list.is_empty() { "an empty list" } else { "a list" }.to_owned(),
            Value::Map(map) => if map.is_empty() { "an empty mapping" } else { "a mapping" }.to_owned(),
            Value::Scalar(scalar) if scalar.kind() == Kind::Null => "empty".to_owned(),
            Value::Scalar(scalar) => {
                let text = without_secret(&scalar.text).escape_debug().to_string();
                let cut: String = text.chars().take(LONGEST).collect();
                let dots = if cut.len() < text.len() { "…" } else { "" };
                match scalar.kind() {
                    Kind::Text | Kind::Reference => format!("`{cut}{dots}`"),
                    _ => format!("{cut}{dots}"),
                }
            }
        }
    }
}

/// Parses a file that must contain exactly one YAML document. A problem that does not stop the reading is added to `report`.
///
/// # Errors
/// The first problem that makes it impossible to read the rest of the file.
pub(crate) fn read(bytes: &[u8], report: &Report) -> Result<Node, Problem> {
    read_within(CONFIG, bytes, report)
}

/// Parses a file that must contain exactly one YAML document, within these bounds.
///
/// # Errors
/// The first problem that makes it impossible to read the rest of the file.
pub(crate) fn read_within(bounds: TreeBounds, bytes: &[u8], report: &Report) -> Result<Node, Problem> {
    let whole = |what: String| Problem { position: None, ..fault(Position::default(), what) };
    if bytes.len() > bounds.bytes {
        return Err(whole(format!("must be at most {} bytes, is {}", bounds.bytes, bytes.len())));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let valid = String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default());
        let last = valid.rsplit('\n').next().unwrap_or_default();
        let (line, column) = (valid.matches('\n').count() + 1, last.chars().count() + 1);
        fault(Position { line, column }, "must be UTF-8 text, is not")
    })?;
    // A byte order mark is not part of the text, and would shift the columns of the first line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder {
        text,
        parser: Parser::new_from_str(text),
        report,
        anchors: HashMap::new(),
        size: Size::default(),
        most_nodes: bounds.nodes,
        path: String::new(),
    };
    builder.document()
}

struct Builder<'t> {
    text: &'t str,
    parser: Parser<'t, StrInput<'t>>,
    report: &'t Report,
    anchors: HashMap<usize, (Node, Size)>,
    size: Size,
    most_nodes: usize,
    /// The path of the value that is being read.
    path: String,
}

/// The number of nodes and the number of bytes of text, in a value or in the file so far.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    nodes: usize,
    text: usize,
}

impl<'t> Builder<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), Problem> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(unreadable(self.text, position(*error.marker()), error.info())),
            None => Ok((Event::StreamEnd, Span::empty(Marker::new(0, 1, 0)))),
        }
    }

    fn document(&mut self) -> Result<Node, Problem> {
        let mut root = None;
        loop {
            match self.next()? {
                (Event::DocumentStart(_), span) if root.is_some() => {
                    return Err(fault(position(span.start), "must be one document, a second one begins here"));
                }
                (Event::DocumentStart(_), _) => {
                    let (event, span) = self.next()?;
                    root = Some(self.node(event, span, 0)?);
                }
                (Event::StreamEnd, _) => break,
                _ => {}
            }
        }
        root.ok_or_else(|| Problem { position: None, ..fault(Position::default(), "must be a mapping, is empty") })
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Problem> {
        let position = position(span.start);
        let before = self.size;
        let text = if let Event::Scalar(text, ..) = &event { text.len() } else { 0 };
        self.count(Size { nodes: 1, text }, position)?;
        if depth > MAX_DEPTH {
            return Err(fault(position, format!("must be nested at most {MAX_DEPTH} deep")));
        }
        let (value, anchor, tag) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let style = if style == ScalarStyle::Plain { Style::Plain } else { Style::Quoted };
                let style = if tag.is_some() { Style::Unresolved } else { style };
                (Value::Scalar(Scalar::new(text, style)), anchor, tag)
            }
            Event::SequenceStart(anchor, tag) => (self.list(depth)?, anchor, tag),
            Event::MappingStart(anchor, tag) => (self.map(depth)?, anchor, tag),
            Event::Alias(anchor) => {
                let Some((target, size)) = self.anchors.get(&anchor).cloned() else {
                    return Err(fault(position, "must name an anchor that is complete, this alias is inside its own"));
                };
                self.count(size, position)?;
                (target.value, 0, None)
            }
            _ => return Err(fault(position, "must be YAML: a value is missing")),
        };
        if tag.is_some() {
            // The tag is not shown, because it may be a secret that begins with `!`.
            let hint = Some("a text that begins with `!` needs quotes".to_owned());
            self.report.add_with_hint(position, &self.path, "must have no tag, which `!` begins", hint);
        }
        let node = Node { position, value };
        if anchor > 0 {
            let size = Size { nodes: self.size.nodes - before.nodes, text: self.size.text - before.text };
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok(node)
    }

    fn count(&mut self, more: Size, position: Position) -> Result<(), Problem> {
        self.size = Size { nodes: self.size.nodes + more.nodes, text: self.size.text + more.text };
        if self.size.nodes > self.most_nodes || self.size.text > MAX_TEXT {
            let most = self.most_nodes;
            let what = format!("must have at most {most} values and {MAX_TEXT} bytes of text, aliases expanded");
            return Err(fault(position, what));
        }
        Ok(())
    }

    fn list(&mut self, depth: usize) -> Result<Value, Problem> {
        let mut list = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(list)),
                (event, span) => {
                    let length = self.path.len();
                    push_index(&mut self.path, list.len());
                    list.push(self.node(event, span, depth + 1)?);
                    self.path.truncate(length);
                }
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Problem> {
        let mut map: Vec<Entry> = Vec::new();
        let mut lines = HashMap::new();
        loop {
            let (key, style, key_position) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Value::Map(map)),
                (Event::Scalar(key, style, _, _), span) => (key.into_owned(), style, position(span.start)),
                (_, span) => {
                    let hint =
                        "a text with braces or brackets needs quotes; a variable is written `${NAME}`".to_owned();
                    let hint = Some(hint);
                    return Err(Problem { hint, ..fault(position(span.start), "a key must be plain text") });
                }
            };
            // In quotes, `<<` is an ordinary key.
            let merges = key == "<<" && style == ScalarStyle::Plain;
            if merges {
                let hint = Some("write the keys out, or make the whole value an alias".to_owned());
                self.report.add_with_hint(key_position, join(&self.path, "<<"), "merge keys are not supported", hint);
            }
            let (event, span) = self.next()?;
            let above = self.path.len();
            push_key(&mut self.path, &key);
            let value = self.node(event, span, depth + 1)?;
            self.path.truncate(above);
            if let Some(first) = lines.get(&key) {
                self.report.add(key_position, join(&self.path, &key), format!("duplicate key, first in line {first}"));
                continue;
            }
            lines.insert(key.clone(), key_position.line);
            if !merges {
                map.push(Entry { key, key_position, value });
            }
        }
    }
}

fn position(marker: Marker) -> Position {
    Position { line: marker.line(), column: marker.col() + 1 }
}

pub(super) fn fault(position: Position, what: impl Into<String>) -> Problem {
    Problem { file: None, position: Some(position), path: String::new(), what: what.into(), hint: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the tree as a value of serde_yaml. `Scalar::kind` decides which scalars are texts.
    fn as_value(node: &Node) -> serde_yaml::Value {
        match &node.value {
            Value::Scalar(scalar) if scalar.kind() == Kind::Text => serde_yaml::Value::String(scalar.text.clone()),
            Value::Scalar(scalar) => serde_yaml::from_str(&scalar.text).unwrap(),
            Value::List(list) => serde_yaml::Value::Sequence(list.iter().map(as_value).collect()),
            Value::Map(map) => {
                let pair = |entry: &Entry| (serde_yaml::Value::String(entry.key.clone()), as_value(&entry.value));
                serde_yaml::Value::Mapping(map.iter().map(pair).collect())
            }
        }
    }

    #[track_caller]
    fn agree(text: &str) {
        let report = Report::default();
        let tree = read(text.as_bytes(), &report).unwrap_or_else(|problem| panic!("{problem:?} in:\n{text}"));
        assert_eq!(report.into_problems(), [], "{text}");
        let whole: serde_yaml::Value = serde_yaml::from_str(text).unwrap();
        assert_eq!(as_value(&tree), whole, "{text}");
    }

    #[test]
    fn the_tree_and_serde_yaml_agree_on_what_a_file_means() {
        agree("a: 1\nb: [1.5, 1e3, 0x10, 0o17, .inf, -7, +3, 012, 1_000]\n");
        agree("a: true\nb: yes\nc: ~\nd:\ne: null\nf: 'true'\ng: \"12\"\nh: no\ni: Null\nj: TRUE\n");
        agree("a: http://127.0.0.1:9000\nb: 10.0.0.0/8\nc: 250ms\nd: 1.10\ne: 12:30\nf: 2026-11-20\n");
        agree("a: |\n  two\n  lines\nb: >-\n  folded\n  text\nc: plain\n  over two lines\n");
        agree("a: &x {b: [1, two]}\nc: *x\nd: [*x, *x]\n");
        agree("- a\n- {b: c, 'd e': f}\n- [g, [h]]\n-\n");
        agree("? a\n: b\n\"c\": d # comment\n\n# another\ne: '#no comment'\n");
        agree(include_str!("../../../../gateway.yaml"));
    }

    proptest! {
        #[test]
        fn every_scalar_has_the_type_that_serde_yaml_gives_it(scalar in "[0-9a-zA-Z.+_~]{1,2}[0-9a-zA-Z.+_~-]{0,4}") {
            agree(&format!("a: {scalar}\nb: '{scalar}'\n"));
        }
    }

    #[test]
    fn positions_count_characters_from_one() {
        let tree = read("ä: [é, {k: v}]\n".as_bytes(), &Report::default()).unwrap();
        let Value::Map(map) = &tree.value else { panic!("{tree:?}") };
        assert_eq!(map[0].key_position, Position { line: 1, column: 1 });
        assert_eq!(map[0].value.position, Position { line: 1, column: 4 });
        let Value::List(list) = &map[0].value.value else { panic!("{tree:?}") };
        let Value::Map(inner) = &list[1].value else { panic!("{tree:?}") };
        assert_eq!(inner[0].value.position, Position { line: 1, column: 12 });
    }

    #[test]
    fn aliases_expand_within_bounds() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let below = level - 1;
            bomb +=
                &format!("a{level}: &a{level} [*a{below}, *a{below}, *a{below}, *a{below}, *a{below}, *a{below}]\n");
        }
        let problem = read(bomb.as_bytes(), &Report::default()).unwrap_err();
        assert!(problem.what.contains("aliases expanded"), "{problem:?}");
    }

    #[test]
    fn aliases_of_a_long_text_expand_within_bounds() {
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), "*a, ".repeat(100));
        let problem = read(long.as_bytes(), &Report::default()).unwrap_err();
        assert!(problem.what.contains("aliases expanded"), "{problem:?}");
    }

    #[test]
    fn nesting_has_a_bound() {
        let deep = "[".repeat(10_000);
        let problem = read(deep.as_bytes(), &Report::default()).unwrap_err();
        assert_eq!(problem.what, format!("must be nested at most {MAX_DEPTH} deep"));
    }
}

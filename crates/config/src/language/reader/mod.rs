//! Reads typed values from the tree, and reports every value that is not what it must be.
//!
//! A [`Section`] is a mapping with its declaration, from which it takes bounds and defaults; keys that are not declared
//! are reported, with the nearest declared name as a hint. Every function here that returns an `Option` returns `None`
//! after it has reported a problem, so that callers go on and the rest of the file is checked as well.

mod section;

pub use section::Section;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::language::duration;
use crate::language::key::Mapping;
use crate::language::key_path::join;
use crate::language::network;
use crate::language::problem::{ListKey, ReadList, Report};
use crate::language::remarks::ListSize;
use crate::language::suggest::{listed, nearest, nearest_name};
use crate::language::tree::{self, Entry, Kind, Node, Scalar, Style, Value};
use base::position::Position;
use base::time::Micros;
use ledger::cost::{Cost, ExtraDecimals};

/// What a socket address must be.
pub const SOCKET_ADDRESS_SHAPE: &str = "be an IP address with a port, like 0.0.0.0:8080 or [::]:8080";

/// One value of the file, with its path from the root.
#[derive(Clone, Debug)]
pub struct Field<'t> {
    node: &'t Node,
    /// Where problems are reported: the start of the value, or of its key if the key is what is wrong.
    position: Position,
    path: String,
    report: &'t Report,
    disclosure: Disclosure,
}

/// Whether a report may repeat a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disclosure {
    Shown,
    /// The value may be a secret.
    Hidden,
}

impl<'t> Field<'t> {
    pub fn root(node: &'t Node, report: &'t Report) -> Field<'t> {
        Field::new(node, String::new(), report)
    }

    fn new(node: &'t Node, path: String, report: &'t Report) -> Field<'t> {
        Field { node, position: node.position, path, report, disclosure: Disclosure::Shown }
    }

    /// Where problems are reported.
    pub fn position(&self) -> Position {
        self.position
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn is_null(&self) -> bool {
        self.scalar().is_some_and(|scalar| scalar.kind() == Kind::Null)
    }

    /// The same value, with problems reported at `position`, such as that of its key.
    pub fn at(self, position: Position) -> Field<'t> {
        Field { position, ..self }
    }

    /// The same value, which reports do not repeat.
    pub fn hidden(self) -> Field<'t> {
        Field { disclosure: Disclosure::Hidden, ..self }
    }

    /// Reports what must hold here, and what was found.
    pub fn must(&self, hold: impl fmt::Display) {
        self.must_hinting(hold, None);
    }

    /// The same, with a hint.
    pub fn must_hinting(&self, hold: impl fmt::Display, hint: Option<String>) {
        match (&self.node.value, self.disclosure) {
            (Value::Scalar(_), Disclosure::Hidden) => {
                self.wrong(format!("must {hold}; the value is not shown: it may hold a secret"), hint);
            }
            _ => self.wrong(format!("must {hold}, is {}", self.node.found()), hint),
        }
    }

    /// Reports a problem. A value whose reference to the environment was reported has no other problem.
    pub fn wrong(&self, what: impl fmt::Display, hint: Option<String>) {
        match self.style() {
            Some(Style::Unresolved) => return,
            // Where nobody can do without the value.
            Some(Style::Unknown) => return self.report.add_unknown(self.node.position, &self.path),
            _ => {}
        }
        self.report.add_with_hint(self.position, &self.path, what.to_string(), hint);
    }

    /// Whether the value is not known here, and need not be.
    pub fn is_unknown(&self) -> bool {
        self.style() == Some(Style::Unknown)
    }

    /// Records that the value is not known here, if it need not be. Returns whether it need not.
    pub fn allows_unknown(&self, what: String) -> bool {
        self.report.allows_unknown(self.position, &self.path, what)
    }

    /// The same in a check beside a gateway, of a secret that the gateway can read and the check cannot.
    pub fn allows_hidden(&self, what: String) -> bool {
        self.report.allows_hidden(self.position, &self.path, what)
    }

    /// Reads the value, or in place of an unknown one this text.
    pub fn known_or<T>(&self, stand_in: &str, read: impl FnOnce(Field<'_>) -> Option<T>) -> Option<T> {
        if self.is_unknown() { read_text(stand_in, read) } else { read(self.clone()) }
    }

    /// Notes that the file at this path holds a secret.
    pub fn note_secret_file(&self, path: PathBuf) {
        self.report.note_secret_file(path);
    }

    /// Notes how long the list is in the file that this value names.
    pub fn note_list(&self, file: &str, entries: usize, max_shrink: u8) {
        let (file, path, position) = (file.to_owned(), self.path.clone(), self.position);
        self.report.note_list(ListSize { file, position, path, entries, max_shrink });
    }

    /// Reports a problem in the file that this value names.
    pub fn elsewhere(&self, file: &str, position: Option<Position>, what: String) {
        self.report.add_elsewhere(file, position, what);
    }

    /// Reports the first problems of the file that this value names.
    pub fn adopt(&self, file: &str, most: usize, of_file: Report) {
        self.report.adopt(file, most, of_file);
    }

    /// The list in a file, which is read once however many values name it.
    pub fn list_once(&self, key: ListKey, read: impl FnOnce() -> Option<ReadList>) -> Option<ReadList> {
        self.report.list_once(key, read)
    }

    /// The entries of a mapping; of another value none.
    pub fn entries(&self) -> &'t [Entry] {
        match &self.node.value {
            Value::Map(entries) => entries,
            Value::List(_) | Value::Scalar(_) => &[],
        }
    }

    /// A mapping with these keys.
    pub fn section(self, mapping: &'static Mapping) -> Option<Section<'t>> {
        match &self.node.value {
            Value::Map(entries) => {
                let (position, path, report) = (self.node.position, self.path, self.report);
                Some(Section { position, path, entries, mapping, report })
            }
            _ => {
                self.must("be a mapping");
                None
            }
        }
    }

    /// The pairs of a mapping whose keys the operator chooses, each key with its position.
    pub fn pairs(&self) -> Option<Vec<(&'t str, Position, Field<'t>)>> {
        let Value::Map(entries) = &self.node.value else {
            self.must("be a mapping");
            return None;
        };
        let pair = |entry: &'t Entry| {
            let field = Field::new(&entry.value, join(&self.path, &entry.key), self.report);
            (&*entry.key, entry.key_position, field)
        };
        Some(entries.iter().map(pair).collect())
    }

    /// The members of a list of mappings.
    pub fn list_of_mappings(&self) -> Option<Vec<Field<'t>>> {
        if matches!(self.node.value, Value::Scalar(_)) {
            self.must("be a list");
            return None;
        }
        self.list()
    }

    /// The members of a list.
    pub fn list(&self) -> Option<Vec<Field<'t>>> {
        let Value::List(list) = &self.node.value else {
            let single = self.scalar().filter(|scalar| scalar.kind() != Kind::Null && !scalar.text.contains(','));
            let single = single.filter(|_| self.disclosure == Disclosure::Shown);
            self.must_hinting("be a list", single.map(|scalar| format!("write `[{}]`", scalar.as_member())));
            return None;
        };
        let member =
            |(index, node): (usize, &'t Node)| Field::new(node, format!("{}[{index}]", self.path), self.report);
        Some(list.iter().enumerate().map(member).collect())
    }

    /// The members of a list, or a single value as the only member.
    pub fn one_or_list(&self) -> Option<Vec<Field<'t>>> {
        match &self.node.value {
            Value::List(_) => self.list(),
            _ => Some(vec![self.clone()]),
        }
    }

    /// Whether this is a list with members, all of them mappings, and none has this key.
    pub fn is_list_without(&self, key: &str) -> bool {
        let lacks =
            |node: &Node| matches!(&node.value, Value::Map(entries) if entries.iter().all(|entry| entry.key != key));
        matches!(&self.node.value, Value::List(members) if !members.is_empty() && members.iter().all(lacks))
    }

    /// Whether this is a list of mappings, of which every one has this key.
    pub fn is_list_with(&self, key: &str) -> bool {
        let has =
            |node: &Node| matches!(&node.value, Value::Map(entries) if entries.iter().any(|entry| entry.key == key));
        matches!(&self.node.value, Value::List(members) if !members.is_empty() && members.iter().all(has))
    }

    pub fn is_map(&self) -> bool {
        matches!(self.node.value, Value::Map(_))
    }

    /// Whether this is a mapping or a list without members.
    pub fn is_empty(&self) -> bool {
        match &self.node.value {
            Value::Map(map) => map.is_empty(),
            Value::List(list) => list.is_empty(),
            Value::Scalar(_) => false,
        }
    }

    /// A scalar of any kind but null, as it is written.
    pub fn written(&self) -> Option<&'t str> {
        match self.scalar() {
            Some(scalar) if scalar.kind() != Kind::Null => Some(&scalar.text),
            _ => {
                self.must("be a single value");
                None
            }
        }
    }

    /// Text. Numbers and booleans are rejected: which text `1.10` means would be a guess.
    pub fn text(&self) -> Option<&'t str> {
        match self.scalar() {
            Some(scalar) if matches!(scalar.kind(), Kind::Text | Kind::Reference) => Some(&scalar.text),
            _ => {
                self.must("be text");
                None
            }
        }
    }

    /// The text of a single value, if it is one.
    pub fn text_if_any(&self) -> Option<&'t str> {
        self.scalar().map(|scalar| &*scalar.text)
    }

    /// How a number in quotes, or a rate in the place of one, is to be written.
    pub fn hint_for_number(&self) -> Option<String> {
        let scalar =
            self.scalar().filter(|scalar| scalar.kind() == Kind::Text && self.disclosure == Disclosure::Shown)?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        match scalar.text.split_once('/') {
            None if scalar.style == Style::Quoted && digits(&scalar.text) => {
                Some(format!("without quotes it is a number: {}", scalar.text))
            }
            Some((amount, period)) if digits(amount) && period.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                Some(format!("a rate in another unit is written `rate: {}`", scalar.text))
            }
            _ => None,
        }
    }

    /// Whether this is a single value with this text.
    pub fn is_written(&self, text: &str) -> bool {
        self.scalar().is_some_and(|scalar| scalar.text == text)
    }

    /// The scalar, unless it is unknown.
    pub fn scalar(&self) -> Option<&'t Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) => (scalar.style != Style::Unknown).then_some(scalar),
            _ => None,
        }
    }

    fn style(&self) -> Option<Style> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar.style),
            _ => None,
        }
    }

    /// `true` or `false`.
    pub fn boolean(&self) -> Option<bool> {
        let truth = self.truth();
        if truth.is_none() {
            let scalar = self.scalar().filter(|scalar| scalar.style == Style::Quoted);
            let quoted = scalar.map(|scalar| &*scalar.text).filter(|text| matches!(*text, "true" | "false"));
            self.must_hinting("be true or false", quoted.map(|text| format!("without quotes it is: {text}")));
        }
        truth
    }

    /// The same, where a mapping may be as well.
    pub fn switch(&self) -> Option<bool> {
        let truth = self.truth();
        if truth.is_none() {
            self.must("be true, false or a mapping");
        }
        truth
    }

    fn truth(&self) -> Option<bool> {
        let scalar = self.scalar().filter(|scalar| matches!(scalar.kind(), Kind::Boolean | Kind::Reference));
        match scalar.map(|scalar| &*scalar.text) {
            Some("true" | "True" | "TRUE") => Some(true),
            Some("false" | "False" | "FALSE") => Some(false),
            _ => None,
        }
    }

    /// A whole number within `bounds`.
    pub fn whole(&self, bounds: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let number = self.number().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let number = number.and_then(|text| text.parse().ok()).filter(|number| bounds.contains(number));
        if number.is_none() {
            match *bounds.end() {
                u64::MAX => {
                    self.must_hinting(
                        format_args!("be a whole number of at least {}", bounds.start()),
                        self.hint_for_number(),
                    );
                }
                end => self.must_hinting(
                    format_args!("be a whole number from {} to {end}", bounds.start()),
                    self.hint_for_number(),
                ),
            }
        }
        number
    }

    /// A decimal above zero with at most three decimals, read from its digits and never through a float.
    pub fn cost(&self) -> Option<Cost> {
        let number = self.number().and_then(|text| Cost::parse(text.as_bytes(), ExtraDecimals::Refuse));
        let number = number.filter(|number| *number > Cost::default() && *number < Cost::from_tokens(u64::MAX));
        if number.is_none() {
            self.must_hinting("be a number above 0 with at most 3 decimals", self.hint_for_number());
        }
        number
    }

    /// The text of a number.
    pub fn number(&self) -> Option<&'t str> {
        let scalar = self.scalar()?;
        matches!(scalar.kind(), Kind::Number | Kind::Reference).then_some(&*scalar.text)
    }

    /// `250ms`, `20s`, `5m`, `1h`, `1d`.
    pub fn duration(&self) -> Option<Micros> {
        let duration = self.scalar().and_then(|scalar| duration::parse(&scalar.text));
        if duration.is_none() {
            self.must("be a duration like 250ms, 20s, 5m, 1h or 1d");
        }
        duration
    }

    /// A duration above zero.
    pub fn positive_duration(&self) -> Option<Micros> {
        let duration = self.duration()?;
        if duration == Micros(0) {
            self.must("be longer than 0");
            return None;
        }
        Some(duration)
    }

    /// An IP address with a port.
    pub fn socket_address(&self) -> Option<SocketAddr> {
        let address = self.scalar().and_then(|scalar| scalar.text.parse().ok());
        if address.is_none() {
            self.must(SOCKET_ADDRESS_SHAPE);
        }
        address
    }

    /// A network like `10.0.0.0/8`; a lone address is the network of itself.
    pub fn network(&self) -> Option<IpNet> {
        let network = self.scalar().and_then(|scalar| network::parse(&scalar.text));
        match network {
            None => self.must("be a network like 10.0.0.0/8 or 2001:db8::/32"),
            Some(network) if network.addr() != network.network() => {
                let what =
                    format!("{network} is the whole network {}: the address in it says nothing", network.trunc());
                self.report.note_host_bits(self.position, &self.path, what);
            }
            Some(_) => {}
        }
        network
    }

    /// One of these names.
    pub fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.scalar().map(|scalar| &*scalar.text);
        let found = choices.iter().find(|(name, _)| Some(*name) == text);
        if found.is_none() {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            let what = format!("must be {}, is {}", listed(&names), self.node.found());
            self.wrong(what, text.and_then(|text| nearest(text, &names)));
        }
        found.map(|(_, choice)| *choice)
    }

    /// The choice whose name is like a wrong one.
    pub fn similar_choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        let similar = nearest_name(&self.scalar()?.text, &names)?;
        choices.iter().find(|(name, _)| *name == similar).map(|(_, choice)| *choice)
    }
}

/// Reads a default, or what stands for an unknown value. Tests read all of these: nothing is reported.
fn read_text<T>(text: &str, read: impl FnOnce(Field<'_>) -> Option<T>) -> Option<T> {
    let report = Report::default();
    let node = tree::read(text.as_bytes(), &report).ok()?;
    read(Field::root(&node, &report))
}

/// Reads every member, including those after a wrong one. `None` if any was wrong.
pub fn all<'t, T>(members: Vec<Field<'t>>, read: impl FnMut(Field<'t>) -> Option<T>) -> Option<Vec<T>> {
    let read: Vec<Option<T>> = members.into_iter().map(read).collect();
    read.into_iter().collect()
}

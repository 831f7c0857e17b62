//! Walks the tree, key by key, and reports whatever is not as it must be.
//!
//! A [`Section`] remembers which keys it was asked for: what else stands in the file is unknown, and the nearest asked-for
//! name is the hint. A reader returns nothing when it has reported, so that everything else is still looked at.

use std::cell::RefCell;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

use super::problem::Report;
use super::tree::{Entry, Kind, Node, Scalar, Style, Value};
use crate::base::position::Position;
use crate::base::time::Micros;
use crate::limit::cost::{Beyond, Cost};

/// One value of the file, with its path from the root.
#[derive(Clone, Debug)]
pub struct Field<'t> {
    node: &'t Node,
    /// Where to report: the value's start, unless it is the key that is wrong.
    place: Position,
    path: String,
    report: &'t Report,
    /// Whether what stands here may be a secret, and so is never repeated.
    hidden: bool,
}

/// A mapping whose keys are all known by name.
#[derive(Debug)]
pub struct Section<'t> {
    place: Position,
    path: String,
    entries: &'t [Entry],
    asked: RefCell<Vec<&'static str>>,
    report: &'t Report,
}

impl<'t> Field<'t> {
    pub fn root(node: &'t Node, report: &'t Report) -> Field<'t> {
        Field { node, place: node.place, path: String::new(), report, hidden: false }
    }

    /// Where it is reported.
    pub fn place(&self) -> Position {
        self.place
    }

    /// The same value, with what is wrong reported at its key.
    pub fn at(self, place: Position) -> Field<'t> {
        Field { place, ..self }
    }

    /// The same value, which is not to be repeated in a report.
    pub fn hidden(self) -> Field<'t> {
        Field { hidden: true, ..self }
    }

    /// Reports what must hold here, and what was found.
    pub fn must(&self, hold: impl fmt::Display) {
        self.must_hinting(hold, None);
    }

    pub fn must_hinting(&self, hold: impl fmt::Display, hint: Option<String>) {
        match (&self.node.value, self.hidden) {
            (Value::Scalar(_), true) => {
                self.wrong(format!("must {hold}; what it is is not shown, it may hold a secret"), hint);
            }
            _ => self.wrong(format!("must {hold}, is {}", self.node.found()), hint),
        }
    }

    pub fn wrong(&self, what: impl fmt::Display, hint: Option<String>) {
        if self.scalar().is_some_and(|scalar| scalar.style == Style::Unresolved) {
            return;
        }
        self.report.add_with_hint(self.place, &self.path, what.to_string(), hint);
    }

    /// Reports what is wrong in a file that this value names.
    pub fn elsewhere(&self, file: &str, place: Option<Position>, what: String) {
        self.report.add_elsewhere(file, place, what);
    }

    pub fn section(self) -> Option<Section<'t>> {
        match &self.node.value {
            Value::Map(entries) => Some(Section {
                place: self.node.place,
                path: self.path,
                entries,
                asked: RefCell::new(Vec::new()),
                report: self.report,
            }),
            _ => {
                self.must("be a mapping");
                None
            }
        }
    }

    /// The pairs of a mapping whose keys the operator chooses, each key with its place.
    pub fn pairs(&self) -> Option<Vec<(&'t str, Position, Field<'t>)>> {
        let Value::Map(entries) = &self.node.value else {
            self.must("be a mapping");
            return None;
        };
        let pair = |entry: &'t Entry| {
            let path = join(&self.path, &entry.key);
            let field =
                Field { node: &entry.value, place: entry.value.place, path, report: self.report, hidden: false };
            (&*entry.key, entry.key_place, field)
        };
        Some(entries.iter().map(pair).collect())
    }

    pub fn list(&self) -> Option<Vec<Field<'t>>> {
        let Value::List(list) = &self.node.value else {
            self.must("be a list");
            return None;
        };
        let member = |(index, node): (usize, &'t Node)| {
            let path = format!("{}[{index}]", self.path);
            Field { node, place: node.place, path, report: self.report, hidden: false }
        };
        Some(list.iter().enumerate().map(member).collect())
    }

    /// A list, or one thing that stands for a list of itself.
    pub fn one_or_list(&self) -> Option<Vec<Field<'t>>> {
        match &self.node.value {
            Value::List(_) => self.list(),
            _ => Some(vec![self.clone()]),
        }
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

    /// A scalar of any kind, as it is written; nothing at all is not one.
    pub fn written(&self) -> Option<&'t str> {
        match &self.node.value {
            Value::Scalar(scalar) if scalar.kind() != Kind::Null => Some(&scalar.text),
            _ => {
                self.must("be a single value");
                None
            }
        }
    }

    /// Text. A number or a boolean is not: `1.10` would have to be guessed at.
    pub fn text(&self) -> Option<&'t str> {
        match &self.node.value {
            Value::Scalar(scalar) if matches!(scalar.kind(), Kind::Text | Kind::Reference) => Some(&scalar.text),
            _ => {
                self.must("be text");
                None
            }
        }
    }

    fn scalar(&self) -> Option<&'t Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    pub fn boolean(&self) -> Option<bool> {
        let scalar = self.scalar().filter(|scalar| matches!(scalar.kind(), Kind::Boolean | Kind::Reference));
        match scalar.map(|scalar| &*scalar.text) {
            Some("true" | "True" | "TRUE") => Some(true),
            Some("false" | "False" | "FALSE") => Some(false),
            _ => {
                self.must("be true or false");
                None
            }
        }
    }

    /// A whole number within `bounds`.
    pub fn whole(&self, bounds: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let number = self.number().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let number = number.and_then(|text| text.parse().ok()).filter(|number| bounds.contains(number));
        if number.is_none() {
            match *bounds.end() {
                u64::MAX => self.must(format_args!("be a whole number of at least {}", bounds.start())),
                end => self.must(format_args!("be a whole number from {} to {end}", bounds.start())),
            }
        }
        number
    }

    /// A decimal above zero with at most three decimals, taken from the text and never through a float.
    pub fn cost(&self) -> Option<Cost> {
        let number = self.number().and_then(|text| Cost::parse(text.as_bytes(), Beyond::Refuse));
        let number = number.filter(|number| *number > Cost::default() && *number < Cost::from_tokens(u64::MAX));
        if number.is_none() {
            self.must("be a number above 0 with at most 3 decimals");
        }
        number
    }

    fn number(&self) -> Option<&'t str> {
        let scalar = self.scalar()?;
        matches!(scalar.kind(), Kind::Number | Kind::Reference).then_some(&*scalar.text)
    }

    /// `250ms`, `20s`, `5m`, `1h`, `1d`.
    pub fn duration(&self) -> Option<Micros> {
        let duration = self.scalar().and_then(|scalar| parse_duration(&scalar.text));
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

    /// A share from 0 to 1, in millionths.
    pub fn share(&self) -> Option<u32> {
        let share = self.number().and_then(|text| {
            let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
            let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            if !digits(whole) || !digits(decimals) || decimals.len() > 6 {
                return None;
            }
            let millionths = format!("{decimals:0<6}").parse::<u32>().ok()?;
            whole.parse::<u32>().ok()?.checked_mul(1_000_000)?.checked_add(millionths)
        });
        let share = share.filter(|millionths| *millionths <= 1_000_000);
        if share.is_none() {
            self.must("be a number from 0 to 1 with at most 6 decimals");
        }
        share
    }

    /// Anything that parses from text; `hold` says what must hold when it does not.
    pub fn parsed<T: FromStr>(&self, hold: &str) -> Option<T> {
        let parsed = self.scalar().and_then(|scalar| scalar.text.parse().ok());
        if parsed.is_none() {
            self.must(hold);
        }
        parsed
    }

    pub fn socket_address(&self) -> Option<SocketAddr> {
        self.parsed("be an IP address with a port, like 0.0.0.0:8080 or [::]:8080")
    }

    /// A network like `10.0.0.0/8`; a lone address is the network of itself.
    pub fn network(&self) -> Option<IpNet> {
        let text = self.scalar().map_or("", |scalar| &*scalar.text);
        let network = match text.parse::<IpAddr>() {
            Ok(address) => Some(IpNet::from(address)),
            Err(_) => text.parse().ok(),
        };
        let network = network.map(canonical);
        if network.is_none() {
            self.must("be a network like 10.0.0.0/8 or 2001:db8::/32");
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
}

impl<'t> Section<'t> {
    /// The value of a key, if it is there.
    pub fn get(&self, key: &'static str) -> Option<Field<'t>> {
        self.asked.borrow_mut().push(key);
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        let path = join(&self.path, key);
        Some(Field { node: &entry.value, place: entry.value.place, path, report: self.report, hidden: false })
    }

    /// The value of a key that must be there.
    pub fn need(&self, key: &'static str) -> Option<Field<'t>> {
        let field = self.get(key);
        if field.is_none() {
            self.wrong(key, "missing");
        }
        field
    }

    pub fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// Reports about a key that is not there, at the mapping's own place.
    pub fn wrong(&self, key: &str, what: impl fmt::Display) {
        self.report.add(self.place, join(&self.path, key), what.to_string());
    }

    /// Reports a key that must not be there beside others, at its own place.
    pub fn unwanted(&self, key: &'static str, what: impl fmt::Display) {
        if let Some(entry) = self.entries.iter().find(|entry| entry.key == key) {
            self.report.add(entry.key_place, join(&self.path, key), what.to_string());
        }
    }

    /// To be called when every key has been asked for: what else stands here is unknown.
    pub fn close(self) {
        let asked = self.asked.into_inner();
        for entry in self.entries {
            if !asked.contains(&&*entry.key) {
                let (path, hint) = (join(&self.path, &entry.key), nearest(&entry.key, &asked));
                self.report.add_with_hint(entry.key_place, path, "unknown key", hint);
            }
        }
    }
}

/// Reads every member, also behind one that is wrong; none if any was.
pub fn all<'t, T>(members: Vec<Field<'t>>, read: impl FnMut(Field<'t>) -> Option<T>) -> Option<Vec<T>> {
    let read: Vec<Option<T>> = members.into_iter().map(read).collect();
    read.into_iter().collect()
}

/// ``did you mean `x`?``, if anything comes near.
pub fn nearest(text: &str, names: &[&str]) -> Option<String> {
    let distance = |name: &&&str| strsim::osa_distance(text, name);
    let best = names.iter().min_by_key(distance)?;
    let near = distance(&best) <= 1 + best.chars().count() / 4 && !text.is_empty();
    near.then(|| format!("did you mean `{best}`?"))
}

/// The path of a key in a mapping.
pub fn join(path: &str, key: &str) -> String {
    let mut path = path.to_owned();
    push_key(&mut path, key);
    path
}

pub fn push_key(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

/// `a, b or c`.
pub fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

pub fn parse_duration(text: &str) -> Option<Micros> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let scale: u64 = match unit {
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale).map(Micros)
}

/// A network of IPv4-mapped addresses is one of IPv4: that is how every address is held before it is looked for.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else { return network };
    let inner = mapped.addr().to_ipv4_mapped().zip(mapped.prefix_len().checked_sub(96));
    inner.and_then(|(address, length)| Ipv4Net::new(address, length).ok()).map_or(network, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_with_a_unit() {
        assert_eq!(parse_duration("250ms"), Some(Micros(250_000)));
        assert_eq!(parse_duration("1d"), Some(Micros(86_400_000_000)));
        for text in ["", "5", "s", "1.5s", "-1s", "5 s", "5S", "5us", "99999999999999999999s"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_hint_names_what_is_near_and_nothing_far() {
        let names = ["limit_keys", "algorithm", "match"];
        assert_eq!(nearest("limit_key", &names).as_deref(), Some("did you mean `limit_keys`?"));
        assert_eq!(nearest("algoritm", &names).as_deref(), Some("did you mean `algorithm`?"));
        assert_eq!(nearest("colour", &names), None);
    }

    #[test]
    fn a_network_of_mapped_addresses_is_one_of_ipv4() {
        for (text, held) in [
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:a00:1/128", "10.0.0.1/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8::/96", "2001:db8::/96"),
            ("10.0.0.0/8", "10.0.0.0/8"),
        ] {
            assert_eq!(canonical(text.parse().unwrap()).to_string(), held);
        }
    }
}

//! Reads a file of envoyproxy/ratelimit as a tree of descriptors.

use super::{ImportedFile, Losses};
use crate::language::key::{Key, Mapping, TEXT, unconstrained};
use crate::language::problem::{Problem, Report};
use crate::language::reader::{Field, Section, all};
use crate::language::tree;
use base::position::Position;

/// A domain of an envoyproxy/ratelimit file, with its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Domain {
    pub name: String,
    pub nodes: Vec<Node>,
    /// The place at which the files name the domain first.
    pub place: Place,
}

/// One descriptor of a file: an entry of a call, and, as children, the entries that may follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub key: String,
    /// The value that the entry must have. A `*` in the value stands for any text. `None`: the entry may have any value.
    pub value: Option<String>,
    pub limit: Option<NodeLimit>,
    /// The name that the imported file gives to the limit. `None` if the file gives no name.
    pub limit_name: Option<LimitName>,
    pub children: Vec<Node>,
    pub mode: NodeMode,
    pub counting: PatternCounting,
    pub place: Place,
}

/// The value of `rate_limit.name`. Envoy's service reports this name with the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitName {
    pub text: String,
    pub position: Position,
    pub path: String,
}

/// The file, position and path of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub file: String,
    pub position: Position,
    pub path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeLimit {
    Unlimited,
    /// At most `count` requests in each window. Windows begin at multiples of their length, counted from the Unix epoch.
    Requests {
        count: u64,
        window: &'static str,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeMode {
    Enforced,
    Shadow,
}

/// How requests are counted if a node's value is a pattern, such as `a*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatternCounting {
    /// Each value that matches the pattern is counted separately.
    Each,
    /// All values that match the pattern are counted together, as `share_threshold` says.
    Together,
}

/// The service's units of time and their lengths. A month has 30 days, a year 365.
const UNITS: [(&str, &str); 7] = [
    ("second", "1s"),
    ("minute", "1m"),
    ("hour", "1h"),
    ("day", "1d"),
    ("week", "7d"),
    ("month", "30d"),
    ("year", "365d"),
];

const fn key(name: &'static str) -> Key {
    Key::optional(name, TEXT, "")
}

const fn mapping(keys: &'static [Key]) -> Mapping {
    Mapping { heading: None, definition: None, keys, constraints: unconstrained }
}

static FILE: Mapping = mapping(&[key("domain"), key("descriptors")]);
static DESCRIPTOR: Mapping = mapping(&[
    key("key"),
    key("value"),
    key("rate_limit"),
    key("descriptors"),
    key("shadow_mode"),
    key("quota_mode"),
    key("detailed_metric"),
    key("value_to_metric"),
    key("share_threshold"),
    key("metadata"),
]);
static RATE_LIMIT: Mapping =
    mapping(&[key("unit"), key("requests_per_unit"), key("unlimited"), key("name"), key("replaces")]);
static REPLACED: Mapping = mapping(&[key("name")]);

impl Node {
    /// Returns the key and the value in one text, by which the service finds a node.
    fn composite(&self) -> String {
        match &self.value {
            Some(value) => format!("{}_{value}", self.key),
            None => self.key.clone(),
        }
    }

    pub(super) fn is_pattern(&self) -> bool {
        self.value.as_ref().is_some_and(|value| value.contains('*'))
    }
}

/// Reads a file, and adds its descriptors to the domain that the file names. Smaller problems are added to `report`.
///
/// # Errors
/// The problem that makes it impossible to read the file.
pub(super) fn read(
    file: &ImportedFile<'_>,
    report: &Report,
    domains: &mut Vec<Domain>,
    losses: &mut Losses,
) -> Result<(), Problem> {
    let root = tree::read(file.bytes, report)?;
    let mut reader = Reader { file: file.name, losses };
    let Some(section) = Field::root(&root, report).section(&FILE) else { return Ok(()) };
    let name = match section.get("domain").filter(|field| !field.is_null()) {
        Some(field) => field.written().filter(|name| !name.is_empty()),
        None => None,
    };
    if name.is_none() {
        section.wrong("domain", "must be a name, is missing or empty");
    }
    let nodes = section.get("descriptors").and_then(|field| reader.nodes(&field));
    let position = section.get("domain").map_or(Position::default(), |field| field.position());
    section.close();
    let (Some(name), nodes) = (name, nodes.unwrap_or_default()) else { return Ok(()) };
    let place = Place { file: file.name.to_owned(), position, path: "domain".to_owned() };
    match domains.iter_mut().find(|domain| domain.name == name) {
        None => domains.push(Domain { name: name.to_owned(), nodes, place }),
        // The service also merges domains of the same name, if its setting MERGE_DOMAIN_CONFIG is on.
        Some(domain) => {
            let Place { file: first, position: Position { line, .. }, .. } = &domain.place;
            let name = name.escape_debug();
            let what = format!(
                "`{name}` is the domain of {first}:{line} too, and the descriptors of both hold here; there, this is an error \
                 unless MERGE_DOMAIN_CONFIG is set"
            );
            reader.losses.add(file.name, place.position, &place.path, what);
            for node in nodes {
                let composite = node.composite();
                if let Some(first) = domain.nodes.iter().find(|other| other.composite() == composite) {
                    report.add(node.place.position, node.place.path, twice(&composite, &first.place));
                } else {
                    domain.nodes.push(node);
                }
            }
        }
    }
    Ok(())
}

fn twice(composite: &str, Place { file, position, .. }: &Place) -> String {
    let (name, line) = (composite.escape_debug(), position.line);
    format!("`{name}` is there twice, as key and value with `_` between: first in {file}:{line}")
}

struct Reader<'r> {
    file: &'r str,
    losses: &'r mut Losses,
}

impl Reader<'_> {
    fn nodes(&mut self, field: &Field<'_>) -> Option<Vec<Node>> {
        if field.is_null() {
            return Some(Vec::new());
        }
        let mut nodes: Vec<Node> = Vec::new();
        all(field.list()?, |member| {
            let position = member.position();
            let node = self.node(member.clone())?;
            let composite = node.composite();
            if let Some(first) = nodes.iter().find(|other| other.composite() == composite) {
                member.at(position).wrong(twice(&composite, &first.place), None);
                return None;
            }
            nodes.push(node);
            Some(())
        })?;
        Some(nodes)
    }

    fn node(&mut self, field: Field<'_>) -> Option<Node> {
        let place = Place { file: self.file.to_owned(), position: field.position(), path: field.path().to_owned() };
        let section = field.section(&DESCRIPTOR)?;
        let text = |name: &str| section.get(name).filter(|field| !field.is_null()).map(|field| field.written());
        let key = match text("key") {
            Some(key) => key.filter(|key| !key.is_empty()).map(str::to_owned),
            None => None,
        };
        if key.is_none() {
            section.wrong("key", "must be a name, is missing or empty");
        }
        let value = match text("value") {
            Some(value) => Some(value?.to_owned()).filter(|value| !value.is_empty()),
            None => None,
        };
        let limit = match section.get("rate_limit").filter(|field| !field.is_null()) {
            Some(field) => self.limit(field).map(|(limit, name)| (Some(limit), name)),
            None => Some((None, None)),
        };
        let children = section.get("descriptors").map_or(Some(Vec::new()), |field| self.nodes(&field));
        let [shadow, quota, detailed, value_to_metric, share] =
            ["shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold"]
                .map(|name| flag(&section, name));
        if share == Some(true) && !value.as_ref().is_some_and(|value| value.contains('*')) {
            section.unwanted("share_threshold", "is for values with a `*`, which this descriptor does not have");
        }
        for (name, is_set, what) in [
            (
                "quota_mode",
                quota == Some(true),
                "in a call with several descriptors this limit refuses the call by itself; there, all of this mode had to",
            ),
            ("detailed_metric", detailed == Some(true), "metrics name rules, and never values that clients send"),
            (
                "value_to_metric",
                value_to_metric == Some(true),
                "metrics name rules, and never values that clients send",
            ),
            ("metadata", section.has("metadata"), "a response has no metadata of descriptors"),
        ] {
            if let Some(field) = section.get(name).filter(|_| is_set) {
                self.losses.add(self.file, field.position(), field.path(), what);
            }
        }
        section.close();
        let mode = if shadow? { NodeMode::Shadow } else { NodeMode::Enforced };
        let counting = if share? { PatternCounting::Together } else { PatternCounting::Each };
        let (limit, limit_name) = limit?;
        Some(Node { key: key?, value, limit, limit_name, children: children?, mode, counting, place })
    }

    fn limit(&mut self, field: Field<'_>) -> Option<(NodeLimit, Option<LimitName>)> {
        let section = field.section(&RATE_LIMIT)?;
        let unlimited = flag(&section, "unlimited");
        let unit = section.get("unit").filter(|field| !field.is_null());
        let window = unit.as_ref().and_then(|field| {
            let text = field.text_if_any().unwrap_or_default().to_ascii_lowercase();
            UNITS.into_iter().find(|(name, _)| *name == text).map(|(_, window)| window)
        });
        let count = match section.get("requests_per_unit").filter(|field| !field.is_null()) {
            Some(field) => field.whole(0..=u64::from(u32::MAX)),
            None => Some(0),
        };
        let name = section.get("name").and_then(|field| {
            let text = field.text_if_any().filter(|name| !name.is_empty())?.to_owned();
            Some(LimitName { text, position: field.position(), path: field.path().to_owned() })
        });
        let own = name.as_ref().map_or("", |name| &*name.text);
        let replaces = section.get("replaces").filter(|field| !field.is_null());
        let replaced = replaces.as_ref().map_or(Some(Vec::new()), |field| self.replaced(field, own));
        let result = match (unlimited?, window) {
            (true, Some(_)) => {
                section.unwanted("unit", "must not be there with `unlimited`");
                None
            }
            (true, None) => Some(NodeLimit::Unlimited),
            (false, Some(window)) => Some(NodeLimit::Requests { count: count?, window }),
            (false, None) => {
                let names = UNITS.map(|(name, _)| name).join(", ");
                match &unit {
                    Some(field) => field.must(format_args!("be one of {names}")),
                    None => section.wrong("unit", format_args!("missing: must be one of {names}")),
                }
                None
            }
        };
        section.close();
        replaced?;
        Some((result?, name))
    }

    /// Reads the names of the limits that the limit `own` replaces if both apply to a call.
    fn replaced(&mut self, field: &Field<'_>, own: &str) -> Option<Vec<String>> {
        let names = all(field.list()?, |member| {
            let section = member.section(&REPLACED)?;
            let name = section.get("name").filter(|field| !field.is_null()).and_then(|field| field.text_if_any());
            let valid = match name.unwrap_or_default() {
                "" => Err("must not be empty"),
                name if name == own => Err("must be the name of another limit, is the limit's own"),
                name => Ok(name.to_owned()),
            };
            let name = valid.map_err(|why| section.wrong("name", why)).ok();
            section.close();
            name
        })?;
        if !names.is_empty() {
            let listed = names.join("`, `");
            let what = format!(
                "in a call that also has a descriptor limited by `{}`, both limits hold; there, this one replaced the other",
                listed.escape_debug()
            );
            self.losses.add(self.file, field.position(), field.path(), what);
        }
        Some(names)
    }
}

/// Reads a boolean key whose default is `false`.
fn flag(section: &Section<'_>, name: &str) -> Option<bool> {
    section.get(name).filter(|field| !field.is_null()).map_or(Some(false), |field| field.boolean())
}

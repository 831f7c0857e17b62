//! Declares the keys of gateway.yaml: the one place where a key has its name, type, default and meaning.
//!
//! The file that reads a mapping declares it as a [`Mapping`]. [`crate::language::reader::Section`] takes known names, bounds and
//! defaults from the declaration, [`crate::schema()`] emits the JSON Schema from it, and docs/configuration/keys.md
//! lists them.

use serde_json::{Value, json};

use crate::language::shape::Shape;
use crate::language::{size, value_types};

/// A mapping whose possible keys are all declared.
#[derive(Debug)]
pub struct Mapping {
    /// The title of the table of its keys, such as "key of a rule". `None`: another mapping has the same keys, and the title.
    pub heading: Option<&'static str>,
    /// The name of the mapping in the schema's definitions, if several keys have this type.
    pub definition: Option<&'static str>,
    pub keys: &'static [Key],
    /// The constraints in the schema on several keys, such as keys that exclude each other.
    pub constraints: fn() -> Value,
}

/// All keys of a kind of file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileKeys {
    pub root: &'static Mapping,
    /// The hint for an unknown key that other programs have: how gateway.yaml writes it.
    pub other_name: fn(&Mapping, &str) -> Option<&'static str>,
    /// Whether the value at a path must be known only if the file is run, not if it is examined.
    pub is_for_running: fn(&str) -> bool,
    /// The key of the root whose values must be known for [`Purpose::ReachStore`](super::problem::Purpose).
    pub store: &'static str,
}

/// The declaration of a key.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Type,
    pub presence: Presence,
    /// The effect of the key, in Markdown. The schema contains it as plain text.
    pub doc: &'static str,
}

/// Whether a key is required, and the default of one that is not.
#[derive(Clone, Copy, Debug)]
pub enum Presence {
    Required,
    Optional,
    /// The default, in YAML: the reader reads it where the key is missing.
    Default(&'static str),
    /// The default depends on other keys. The text describes it in the reference, in Markdown.
    Depends(&'static str),
}

/// The type of a key's value.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// A value of this shape. The reference says `text`.
    Own {
        text: &'static str,
        shape: Shape,
    },
    /// A value of this shape, or a mapping.
    OwnOr {
        text: &'static str,
        shape: Shape,
        mapping: &'static Mapping,
    },
    /// A whole number.
    Whole {
        least: u64,
        most: u64,
    },
    /// A number of bytes, with a unit.
    Size {
        least: u64,
        most: u64,
    },
    /// One of these names.
    Choice(&'static [&'static str]),
    /// A list of these names, with at least so many members.
    Choices {
        names: &'static [&'static str],
        least: usize,
    },
    Mapping(&'static Mapping),
    /// `true`, `false`, or a mapping.
    Switch(&'static Mapping),
    /// A list of mappings, with at least so many members.
    List {
        of: &'static Mapping,
        least: usize,
    },
    /// A list of values of their own kind, or mappings, with at least so many members.
    ListOfOwnOr {
        text: &'static str,
        shape: Shape,
        mapping: &'static Mapping,
        least: usize,
    },
    /// A mapping from names that the operator chooses.
    Named(&'static Mapping),
    /// One of these mappings, which another key chooses. The schema has this among the constraints.
    OneOf(&'static [&'static Mapping]),
    /// A mapping from names that the operator chooses to such mappings.
    NamedOneOf(&'static [&'static Mapping]),
}

pub(crate) const BOOLEAN: Type = Type::Own { text: "`true`, `false`", shape: value_types::BOOLEAN };
pub(crate) const DURATION: Type = Type::Own { text: "duration", shape: value_types::DURATION };
pub(crate) const POSITIVE_DURATION: Type =
    Type::Own { text: "duration above 0", shape: value_types::POSITIVE_DURATION };
pub(crate) const NAME: Type = Type::Own { text: "text", shape: value_types::NAME };
pub(crate) const PATH: Type = Type::Own { text: "path", shape: value_types::PATH };
pub(crate) const SOCKET_ADDRESS: Type = Type::Own { text: "IP address with port", shape: value_types::SOCKET_ADDRESS };
/// The type of a single value of any kind, taken as it is written.
pub(crate) const TEXT: Type = Type::Own { text: "text", shape: value_types::SCALAR };

impl Key {
    pub const fn required(name: &'static str, kind: Type, doc: &'static str) -> Key {
        Key { name, kind, presence: Presence::Required, doc }
    }

    pub const fn optional(name: &'static str, kind: Type, doc: &'static str) -> Key {
        Key { name, kind, presence: Presence::Optional, doc }
    }

    /// Declares a key with a default, which is given as YAML.
    pub const fn default(name: &'static str, kind: Type, default: &'static str, doc: &'static str) -> Key {
        Key { name, kind, presence: Presence::Default(default), doc }
    }

    /// Declares a key whose default depends on other keys. `without` describes the default in Markdown.
    pub const fn depends(name: &'static str, kind: Type, without: &'static str, doc: &'static str) -> Key {
        Key { name, kind, presence: Presence::Depends(without), doc }
    }
}

impl Mapping {
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.keys.iter().map(|key| key.name).collect()
    }
}

impl Type {
    /// The mappings that a value can be or contain.
    pub fn mappings(&self) -> &[&'static Mapping] {
        match self {
            Type::Mapping(of)
            | Type::Switch(of)
            | Type::List { of, .. }
            | Type::Named(of)
            | Type::OwnOr { mapping: of, .. }
            | Type::ListOfOwnOr { mapping: of, .. } => std::slice::from_ref(of),
            Type::OneOf(of) | Type::NamedOneOf(of) => of,
            _ => &[],
        }
    }

    /// The shape of a single value, or of the members of a list of words. `None` for mappings.
    pub fn shape(&self) -> Option<Shape> {
        match self {
            Type::Own { shape, .. } | Type::OwnOr { shape, .. } | Type::ListOfOwnOr { shape, .. } => Some(*shape),
            Type::Whole { least, most } => Some(Shape::whole(*least, *most)),
            Type::Size { .. } => Some(value_types::SIZE),
            Type::Choice(names) | Type::Choices { names, .. } => Some(Shape::Words(names)),
            Type::Switch(_) => Some(value_types::BOOLEAN),
            Type::Mapping(_) | Type::List { .. } | Type::Named(_) | Type::OneOf(_) | Type::NamedOneOf(_) => None,
        }
    }

    /// The name of the type in the reference, in Markdown.
    pub fn text(&self) -> String {
        let quoted = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        match self {
            Type::Own { text, .. } | Type::OwnOr { text, .. } | Type::ListOfOwnOr { text, .. } => (*text).to_owned(),
            Type::Whole { least, most } => format!("{least} to {most}"),
            Type::Size { least, most } => format!("size, {} to {}", size::print(*least), size::print(*most)),
            Type::Choice(names) => quoted(names),
            // A long list has a page of its own.
            Type::Choices { names, .. } if names.len() > 20 => "list of names".to_owned(),
            Type::Choices { names, .. } => format!("list of {}", quoted(names)),
            Type::Mapping(_) | Type::OneOf(_) => "mapping".to_owned(),
            Type::Switch(_) => "`true`, `false` or mapping".to_owned(),
            Type::List { .. } => "list of mappings".to_owned(),
            Type::Named(_) | Type::NamedOneOf(_) => "mapping of mappings".to_owned(),
        }
    }
}

/// These mappings and all mappings within them, each once, in the order in which keys name them.
pub(crate) fn within(mut found: Vec<&'static Mapping>) -> Vec<&'static Mapping> {
    let mut next = 0;
    while let Some(mapping) = found.get(next) {
        for key in mapping.keys {
            for inner in key.kind.mappings() {
                if !found.iter().any(|known| std::ptr::eq(*known, *inner)) {
                    found.push(inner);
                }
            }
        }
        next += 1;
    }
    found
}

/// The constraints of a mapping whose keys do not depend on each other: none.
pub(crate) fn unconstrained() -> Value {
    json!({})
}

/// The names of choices, for the declaration of a key.
pub(crate) const fn names<T, const COUNT: usize>(choices: &[(&'static str, T); COUNT]) -> [&'static str; COUNT] {
    let mut names = [""; COUNT];
    let mut index = 0;
    while index < COUNT {
        #[allow(clippy::indexing_slicing, reason = "the index is below the length of both; iterators are not const")]
        {
            names[index] = choices[index].0;
        }
        index += 1;
    }
    names
}

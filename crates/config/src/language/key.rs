//! Declares the keys of gateway.yaml: the one place where a key has its name, type, default and meaning.
//!
//! The file that reads a mapping declares it as a [`Mapping`]. Three users read the declaration:
//! [`crate::language::reader::Section`] takes names, bounds and defaults from it, [`crate::schema()`] makes the JSON
//! Schema from it, and docs/configuration/keys.md lists it.

use serde_json::{Value, json};

use crate::language::shape::Shape;
use crate::language::{size, value_types};

/// A mapping in gateway.yaml, with the declarations of all keys that it may have.
#[derive(Debug)]
pub struct Mapping {
    /// The title of the table of these keys in the reference, such as "key of a rule". `None`: the mapping has no table
    /// of its own, because the table of another mapping lists the same keys.
    pub heading: Option<&'static str>,
    /// The name of the mapping among the schema's definitions. `None`: the schema describes the mapping in place.
    pub definition: Option<&'static str>,
    pub keys: &'static [Key],
    /// Returns the constraints that the schema puts on several keys together, such as keys that exclude each other.
    pub constraints: fn() -> Value,
}

/// The keys that a kind of file may have, and how the values of these keys are treated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileKeys {
    pub root: &'static Mapping,
    /// Returns the hint for an unknown key that other programs use: how gateway.yaml writes the same setting.
    pub other_name: fn(&Mapping, &str) -> Option<&'static str>,
    /// Whether the value at a path may be unknown while the file is only examined.
    pub is_for_running: fn(&str) -> bool,
    /// The name of the root key for the store. Its values must be known for
    /// [`Purpose::ReachStore`](super::problem::Purpose).
    pub store: &'static str,
}

/// The declaration of a key: its name, type, default and description.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Type,
    pub presence: Presence,
    /// The description of the key's effect, in Markdown. The schema contains the description as plain text.
    pub doc: &'static str,
}

/// Whether a key is required, and which default the key has if it is missing.
#[derive(Clone, Copy, Debug)]
pub enum Presence {
    Required,
    Optional,
    /// The default, written in YAML. The reader reads this text if the key is missing.
    Default(&'static str),
    /// The key has a default that depends on other keys. The text describes this default in the reference, in Markdown.
    Depends(&'static str),
}

/// The type of a key's value. Both the schema and the reference are made from this type.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// A value of this shape. In the reference, `text` is the name of the type.
    Own {
        text: &'static str,
        shape: Shape,
    },
    /// Either a value of this shape, or this mapping.
    OwnOr {
        text: &'static str,
        shape: Shape,
        mapping: &'static Mapping,
    },
    /// A whole number from `least` to `most`.
    Whole {
        least: u64,
        most: u64,
    },
    /// A number of bytes with a unit, such as `64KiB`, from `least` to `most`.
    Size {
        least: u64,
        most: u64,
    },
    /// A text that must be one of these names.
    Choice(&'static [&'static str]),
    /// A list of these names. The list has at least `least` members.
    Choices {
        names: &'static [&'static str],
        least: usize,
    },
    Mapping(&'static Mapping),
    /// Either `true` or `false`, or this mapping.
    Switch(&'static Mapping),
    /// A list of mappings. The list has at least `least` members.
    List {
        of: &'static Mapping,
        least: usize,
    },
    /// A list whose members are values of this shape or mappings. The list has at least `least` members.
    ListOfOwnOr {
        text: &'static str,
        shape: Shape,
        mapping: &'static Mapping,
        least: usize,
    },
    /// A mapping whose keys are names that the operator chooses. Each value is the mapping given here.
    Named(&'static Mapping),
    /// One of these mappings. Another key chooses the mapping.
    OneOf(&'static [&'static Mapping]),
    /// A mapping whose keys are names that the operator chooses. Each value is one of the mappings given here.
    NamedOneOf(&'static [&'static Mapping]),
}

pub(crate) const BOOLEAN: Type = Type::Own { text: "`true`, `false`", shape: value_types::BOOLEAN };
pub(crate) const DURATION: Type = Type::Own { text: "duration", shape: value_types::DURATION };
pub(crate) const POSITIVE_DURATION: Type =
    Type::Own { text: "duration above 0", shape: value_types::POSITIVE_DURATION };
pub(crate) const NAME: Type = Type::Own { text: "text", shape: value_types::NAME };
pub(crate) const PATH: Type = Type::Own { text: "path", shape: value_types::PATH };
pub(crate) const SOCKET_ADDRESS: Type = Type::Own { text: "IP address with port", shape: value_types::SOCKET_ADDRESS };
/// The type of a key that accepts any single value and takes its text as written.
pub(crate) const TEXT: Type = Type::Own { text: "text", shape: value_types::SCALAR };

impl Key {
    pub const fn required(name: &'static str, kind: Type, doc: &'static str) -> Key {
        Key { name, kind, presence: Presence::Required, doc }
    }

    pub const fn optional(name: &'static str, kind: Type, doc: &'static str) -> Key {
        Key { name, kind, presence: Presence::Optional, doc }
    }

    /// Declares a key with a default. `default` is written in YAML.
    pub const fn default(name: &'static str, kind: Type, default: &'static str, doc: &'static str) -> Key {
        Key { name, kind, presence: Presence::Default(default), doc }
    }

    /// Declares a key whose default depends on other keys. `without` describes this default, in Markdown.
    pub const fn depends(name: &'static str, kind: Type, without: &'static str, doc: &'static str) -> Key {
        Key { name, kind, presence: Presence::Depends(without), doc }
    }
}

impl Mapping {
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Returns the hint for another value in place of the mapping: the names of its keys. `None` if it has many.
    pub(crate) fn hint_for_keys(&self) -> Option<String> {
        const MOST: usize = 10;
        match self.keys {
            [] => None,
            [only] => Some(format!("write `{{{}: …}}`", only.name)),
            keys if keys.len() > MOST => None,
            keys => {
                let names: Vec<String> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
                Some(format!("its keys are {}", names.join(", ")))
            }
        }
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.keys.iter().map(|key| key.name).collect()
    }
}

impl Type {
    /// Returns the mappings that a value of this type can be or contain.
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

    /// Returns the shape of a single value, or of the members of a list of words. `None` if the type is only a mapping.
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

    /// Returns the name of the type as the reference prints it, in Markdown.
    pub fn text(&self) -> String {
        let quoted = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        match self {
            Type::Own { text, .. } | Type::OwnOr { text, .. } | Type::ListOfOwnOr { text, .. } => (*text).to_owned(),
            Type::Whole { least, most } => format!("{least} to {most}"),
            Type::Size { least, most } => format!("size, {} to {}", size::print(*least), size::print(*most)),
            Type::Choice(names) => quoted(names),
            // The names of a long list are on a separate page of the reference.
            Type::Choices { names, .. } if names.len() > 20 => "list of names".to_owned(),
            Type::Choices { names, .. } => format!("list of {}", quoted(names)),
            Type::Mapping(_) | Type::OneOf(_) => "mapping".to_owned(),
            Type::Switch(_) => "`true`, `false` or mapping".to_owned(),
            Type::List { .. } => "list of mappings".to_owned(),
            Type::Named(_) | Type::NamedOneOf(_) => "mapping of mappings".to_owned(),
        }
    }
}

/// Returns these mappings and all mappings in their keys, each once, in the order in which keys refer to them.
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

/// Returns no constraints, for a mapping whose keys do not depend on each other.
pub(crate) fn unconstrained() -> Value {
    json!({})
}

/// Returns these keys and one more, for the declaration of a mapping that shares them with another one.
#[allow(clippy::indexing_slicing, reason = "the index is below the length of both; iterators are not const")]
pub(crate) const fn and_key<const COUNT: usize, const WITH: usize>(keys: [Key; COUNT], more: Key) -> [Key; WITH] {
    let mut all = [more; WITH];
    let mut index = 0;
    while index < COUNT {
        all[index] = keys[index];
        index += 1;
    }
    all
}

/// Returns the names of these choices, for the declaration of a key.
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

//! Describes as data what a value must be. The JSON Schema is made from these shapes, and
//! [`crate::language::reader::Field::check`] checks values by them.
//!
//! References to the environment are replaced before the check. The schema accepts a reference in place of any value.

mod bounds;
mod schema;
mod text;

pub(crate) use bounds::{DURATION, Decimal, Duration, DurationBound, Least, POSITIVE_DURATION, Whole};
pub(crate) use text::{Exception, Scalars, Text, matches};

use crate::language::suggest::listed;

/// The shape of the values that a key accepts. The schema and the checks of the reader are made from the shape.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A shape that several keys share. The schema defines it once, under its name.
    Defined(&'static Definition),
    /// Any single value except null. The text is taken as written.
    Scalar,
    Boolean,
    /// A single value that must be one of these words.
    Words(&'static [&'static str]),
    /// A number that must be one of these numbers. In the file, the number may have quotes or not.
    Numerals(&'static [&'static str]),
    Whole(Whole),
    Decimal(Decimal),
    Text(Text),
    /// Text of at least one character. `must` is the message for any other value.
    NonEmptyText {
        must: &'static str,
    },
    Duration(Duration),
    /// The shape `of`. `must` is the message of a reader that checks more than this shape.
    WithMessage {
        must: &'static str,
        of: &'static Shape,
    },
    /// One of several shapes: kinds of single values, or one kind of single value and a mapping.
    Either {
        of: &'static [Shape],
        /// The message for any other value, as in [`Shape::must`]. `None`: the message joins the messages of the alternatives.
        must: Option<&'static str>,
    },
    List(List),
    /// A list, or a single value that is read as a list with one member.
    OneOrList(List),
    /// A mapping from names to values of the shape `of`. The mapping has at least `least` entries.
    Map {
        of: &'static Shape,
        least: usize,
        /// The message for a mapping with too few entries, such as "have at least one condition".
        empty: &'static str,
    },
    /// A mapping from attributes to at least `least` conditions. [`crate::keys`] defines its schema under the name
    /// `definition`.
    Conditions {
        definition: &'static str,
        least: usize,
        /// The message for a mapping with too few entries, such as "have at least one condition".
        empty: &'static str,
    },
}

/// A shape that has a name among the schema's definitions, so that several keys can refer to it.
#[derive(Debug)]
pub struct Definition {
    pub name: &'static str,
    pub shape: Shape,
}

/// The shape of a list. The members of the list are checked when they are read.
#[derive(Clone, Copy, Debug)]
pub struct List {
    pub of: &'static Shape,
    pub least: usize,
    /// The message for a list that is too short, such as "have at least one origin".
    pub empty: &'static str,
    pub most: usize,
    /// The word for the members, used in the message for a list that is too long.
    pub members: &'static str,
    /// Whether the list may contain each member only once.
    pub unique: bool,
}

impl List {
    /// Makes the shape of a list of any length. `of` is the shape of the members.
    pub const fn of(of: &'static Shape) -> List {
        List { of, least: 0, empty: "", most: usize::MAX, members: "", unique: false }
    }

    /// Makes the shape of a list with at least one member. `empty` is the message for an empty list.
    pub const fn non_empty(of: &'static Shape, empty: &'static str) -> List {
        List { least: 1, empty, ..List::of(of) }
    }
}

impl Shape {
    pub const fn whole(least: u64, most: u64) -> Shape {
        Shape::Whole(Whole::new(least, most))
    }

    pub const fn either(of: &'static [Shape]) -> Shape {
        Shape::Either { of, must: None }
    }

    /// Makes the shape of a text that matches one of these patterns. A number without quotes is not a text.
    pub const fn text(patterns: &'static [&'static str], must: &'static str) -> Shape {
        Shape::Text(Text::new(Scalars::Text, patterns, must))
    }

    /// Returns the message for a value of another shape, without the "must", such as "be a whole number from 1 to 7".
    pub fn must(&self) -> String {
        match self {
            Shape::Defined(definition) => definition.shape.must(),
            Shape::Scalar => "be a single value".to_owned(),
            Shape::Boolean => "be true or false".to_owned(),
            Shape::Words(words) | Shape::Numerals(words) => format!("be {}", listed(words)),
            Shape::Whole(Whole { least, most: u64::MAX, .. }) => format!("be a whole number of at least {least}"),
            Shape::Whole(Whole { least, most, .. }) => format!("be a whole number from {least} to {most}"),
            Shape::Decimal(decimal) => decimal.must(),
            Shape::Text(Text { must, .. })
            | Shape::NonEmptyText { must }
            | Shape::WithMessage { must, .. }
            | Shape::Duration(Duration { must, .. }) => (*must).to_owned(),
            Shape::Either { must: Some(must), .. } => (*must).to_owned(),
            Shape::Either { of, must: None } => either_must(of),
            Shape::List(_) | Shape::OneOrList(_) => "be a list".to_owned(),
            Shape::Map { .. } | Shape::Conditions { .. } => "be a mapping".to_owned(),
        }
    }

    /// Returns the message for a list or a mapping where a single value is required. `None`: the message is
    /// [`Shape::must`].
    pub fn must_be_single(&self) -> Option<&'static str> {
        match self {
            Shape::Defined(definition) => definition.shape.must_be_single(),
            Shape::Text(Text { scalars: Scalars::Text, .. }) => Some("be text"),
            Shape::Text(_) | Shape::Scalar => Some("be a single value"),
            _ => None,
        }
    }

    pub fn is_map(&self) -> bool {
        matches!(self, Shape::Map { .. } | Shape::Conditions { .. })
    }
}

/// Returns a message such as `be auto or a whole number from 1 to 7`, `be a whole number from 1 to 7, or unlimited`.
fn either_must(shapes: &[Shape]) -> String {
    let mut must = String::new();
    for (index, shape) in shapes.iter().enumerate() {
        let own = shape.must();
        match index.checked_sub(1).and_then(|before| shapes.get(before)) {
            None => must = own,
            Some(before) => {
                must.push_str(if matches!(before, Shape::Words(_)) { " or " } else { ", or " });
                must.push_str(own.strip_prefix("be ").unwrap_or(&own));
            }
        }
    }
    must
}

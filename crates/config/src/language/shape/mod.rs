//! Says what a value must be, as data: the JSON Schema is made of it, and [`crate::language::reader::Field::check`] checks values by it.
//!
//! A value of the file is checked after references to the environment have been replaced. The schema also accepts such a reference
//! in the place of any value.

mod bounds;
mod schema;
mod text;

pub(crate) use bounds::{DURATION, Decimal, Duration, DurationBound, Least, POSITIVE_DURATION, Whole};
pub(crate) use text::{Exception, Scalars, Text, matches};

use crate::language::suggest::listed;

/// The values that a key accepts.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A shape that several keys share. The schema has it once, under its name.
    Defined(&'static Definition),
    /// Any single value, as it is written.
    Scalar,
    Boolean,
    /// One of these words.
    Words(&'static [&'static str]),
    /// One of these numbers, with or without quotes.
    Numerals(&'static [&'static str]),
    Whole(Whole),
    Decimal(Decimal),
    Text(Text),
    /// Text of at least one character, and the message for an empty one.
    NonEmptyText {
        must: &'static str,
    },
    Duration(Duration),
    /// A value of another shape, with a message for what its reader checks beyond that shape.
    WithMessage {
        must: &'static str,
        of: &'static Shape,
    },
    /// One of these: single values, or one kind of single value and a mapping.
    Either {
        of: &'static [Shape],
        /// The message, as in [`Shape::must`]. `None`: it is made of the messages of the alternatives.
        must: Option<&'static str>,
    },
    List(List),
    /// A list, or its only member without brackets.
    OneOrList(List),
    /// A mapping from names to values, at least so many.
    Map {
        of: &'static Shape,
        least: usize,
        /// The message for a mapping with fewer: "have at least one condition".
        empty: &'static str,
    },
    /// A mapping from attributes, at least so many. [`crate::keys`] defines its schema under `definition`.
    Conditions {
        definition: &'static str,
        least: usize,
        /// The message for a mapping with fewer: "have at least one condition".
        empty: &'static str,
    },
}

/// A shape with a name in the schema's definitions.
#[derive(Debug)]
pub struct Definition {
    pub name: &'static str,
    pub shape: Shape,
}

/// The shape of a list. Its members are checked when they are read.
#[derive(Clone, Copy, Debug)]
pub struct List {
    pub of: &'static Shape,
    pub least: usize,
    /// The message for a list that is too short: "have at least one origin".
    pub empty: &'static str,
    pub most: usize,
    /// The word for the members, in the message for a list that is too long.
    pub members: &'static str,
    /// Whether a member may occur only once.
    pub unique: bool,
}

impl List {
    /// A list of any length.
    pub const fn of(of: &'static Shape) -> List {
        List { of, least: 0, empty: "", most: usize::MAX, members: "", unique: false }
    }

    /// A list with at least one member. `empty` is the message for an empty list.
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

    /// Text, not a number, that matches one of these patterns.
    pub const fn text(patterns: &'static [&'static str], must: &'static str) -> Shape {
        Shape::Text(Text::new(Scalars::Text, patterns, must))
    }

    /// The message for a value that does not have this shape, without the "must" before it: "be a whole number from 1 to 7".
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

    /// The message for a list or a mapping where a single value is required, if it differs from [`Shape::must`].
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

/// `be auto or a whole number from 1 to 7`, `be a whole number from 1 to 7, or unlimited`.
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

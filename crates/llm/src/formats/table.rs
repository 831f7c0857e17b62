//! A table of pointers with their roles, and the values found there.

use crate::json::{Interest, JsonScanner, Lookup, Pointer, PointerSet, Value};
use crate::usage::{Count, Counts};

/// The meaning of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Tokens(Count),
    /// The model that answered.
    Model,
    /// The type of an event.
    EventType,
    /// The object with the numbers of tokens. The numbers are used only after this object has ended.
    Usage,
    /// Such an object in an element of an array. Its numbers do not count later text.
    ElementUsage,
    /// A string that the model wrote.
    Text,
    /// A value of any type that the model wrote.
    Arguments,
}

/// The pointers of one kind of body. `*` stands for every element of an array.
#[derive(Debug)]
pub(crate) struct Table {
    roles: Vec<Role>,
    pub(crate) pointers: PointerSet,
}

/// The values found in a body.
#[derive(Debug, Default)]
pub(crate) struct Reading<'v> {
    /// The numbers of tokens. `None` if there are no numbers, or if a value is ambiguous or not a number.
    pub(crate) counts: Option<Counts>,
    pub(crate) model: Option<&'v str>,
    pub(crate) event_type: Option<&'v str>,
    /// The number of bytes of text.
    pub(crate) text_bytes: u64,
    /// The number of bytes of text that the numbers of tokens do not count.
    pub(crate) text_bytes_after: u64,
}

impl Table {
    pub(crate) fn new<'t>(rows: impl IntoIterator<Item = (&'t str, Role)>) -> Table {
        let (pointers, roles): (Vec<_>, Vec<_>) = rows
            .into_iter()
            .map(|(pointer, role)| {
                let interest = match role {
                    Role::Text => Interest::TextBytes,
                    Role::Arguments => Interest::SentBytes,
                    _ => Interest::Value,
                };
                ((Pointer::with_wildcards(pointer), interest), role)
            })
            .unzip();
        Table { roles, pointers: PointerSet::new(pointers) }
    }

    /// Returns what a scanner of these pointers has found so far.
    pub(crate) fn read<'v>(&self, scanner: &'v JsonScanner<&'static PointerSet>) -> Reading<'v> {
        let mut reading = Reading { text_bytes: scanner.all_bytes(), ..Reading::default() };
        let (mut counts, mut has_usage, mut is_clear) = (Counts::default(), false, true);
        for (index, role) in self.roles.iter().enumerate() {
            let value = scanner.value(index);
            let text = match value {
                Lookup::Value(value) => value.as_text().filter(|text| !text.is_empty()),
                Lookup::Missing | Lookup::Twice => None,
            };
            match (role, value) {
                (Role::Tokens(_), Lookup::Twice) => is_clear = false,
                (Role::Tokens(_), Lookup::Missing | Lookup::Value(Value::Null)) => {}
                (Role::Tokens(count), Lookup::Value(value)) => {
                    match value.as_number().and_then(|number| number.ceil(0)) {
                        // If a number has two names, the larger value counts.
                        Some(tokens) => counts.set(*count, tokens.max(counts.get(*count).unwrap_or_default())),
                        None => is_clear = false,
                    }
                }
                (Role::Usage, Lookup::Value(Value::Object)) => has_usage = true,
                (Role::ElementUsage, Lookup::Value(Value::Object)) => {
                    has_usage = true;
                    reading.text_bytes_after = reading.text_bytes.saturating_sub(scanner.all_bytes_before(index));
                }
                (Role::Model, _) => reading.model = text.or(reading.model),
                (Role::EventType, _) => reading.event_type = text,
                (Role::Usage | Role::ElementUsage | Role::Text | Role::Arguments, _) => {}
            }
        }
        reading.counts = (has_usage && is_clear && !counts.is_empty()).then_some(counts);
        if reading.counts.is_none() {
            reading.text_bytes_after = reading.text_bytes;
        }
        reading
    }
}

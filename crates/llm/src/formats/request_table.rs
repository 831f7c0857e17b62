//! A table of pointers into a request, with their roles.

use crate::json::{Interest, Pointer, PointerSet};

/// What a value of a request means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestRole {
    /// The model that is asked for.
    Model,
    /// The largest number of tokens in one answer. If a request gives several such numbers, the largest counts.
    MaxOutput,
    /// How many answers are asked for.
    Answers,
    Stream,
    /// Whether the model still works when the response has ended.
    Background,
    /// The object that contains [`RequestRole::AsksForUsage`].
    StreamOptions,
    /// Whether a stream is to end with its usage.
    AsksForUsage,
    /// An address or an id of content that is not in the request itself. A data URL contains its content.
    Elsewhere,
    /// A string that is an address or an id of such content. An object in its place has them in members with pointers of
    /// their own.
    ElsewhereString,
    /// A string with an image, sound or file in base64.
    Medium,
    /// The whole request.
    Body,
}

/// The pointers of the requests of one format.
#[derive(Debug)]
pub(crate) struct RequestTable {
    pub(crate) roles: Vec<RequestRole>,
    pub(crate) pointers: PointerSet,
}

impl RequestTable {
    pub(crate) fn new(rows: &[(&str, RequestRole)]) -> RequestTable {
        let rows = rows.iter().map(|(pointer, role)| (Pointer::with_wildcards(pointer), *role));
        // The root is in the set twice: for its text, and for its type.
        let root = || Pointer::with_wildcards("");
        let own = [(root(), Interest::TextBelow), (root(), Interest::Value)].map(|row| (row, RequestRole::Body));
        let row = |(pointer, role): (Pointer, RequestRole)| {
            let interest = match role {
                RequestRole::Elsewhere => Interest::TextBelow,
                RequestRole::ElsewhereString => Interest::OwnText,
                RequestRole::Medium => Interest::Medium,
                _ => Interest::Value,
            };
            ((pointer, interest), role)
        };
        let (pointers, roles): (Vec<_>, Vec<_>) = own.into_iter().chain(rows.map(row)).unzip();
        RequestTable { roles, pointers: PointerSet::new(pointers) }
    }

    /// The index of the text of the whole request among the pointers.
    pub(crate) const TEXT: usize = 0;
    /// The index of the type of the whole request among the pointers.
    pub(crate) const ROOT: usize = 1;
}

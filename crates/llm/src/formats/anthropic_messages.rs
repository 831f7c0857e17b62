//! Anthropic's messages: `POST …/v1/messages`.
//!
//! There is no total. Cached tokens are beside `input_tokens`. In a stream, `message_start` has the input and the first
//! tokens of the output, and `message_delta` the output of the whole message: its numbers are cumulative and replace those
//! before. Some servers send the input only there, and 0 at the start; others the input only at the start, and 0 there.

use std::sync::LazyLock;

use super::table::{Role, Table};
use crate::usage::{Count, Counts};

const USAGE: [(&str, Role); 5] = [
    ("/usage", Role::Usage),
    ("/usage/input_tokens", Role::Tokens(Count::Input)),
    ("/usage/output_tokens", Role::Tokens(Count::Output)),
    ("/usage/cache_read_input_tokens", Role::Tokens(Count::Cached)),
    ("/usage/cache_creation_input_tokens", Role::Tokens(Count::CacheWrite)),
];

pub(super) static WHOLE: LazyLock<Table> = LazyLock::new(|| {
    let own = [
        ("/model", Role::Model),
        ("/content/*/text", Role::Text),
        ("/content/*/thinking", Role::Text),
        ("/content/*/name", Role::Text),
        ("/content/*/input", Role::Arguments),
    ];
    Table::new(USAGE.into_iter().chain(own))
});

pub(super) static EVENT: LazyLock<Table> = LazyLock::new(|| {
    let start = USAGE.map(|(pointer, role)| (format!("/message{pointer}"), role));
    let own = [
        ("/message/model", Role::Model),
        ("/content_block/text", Role::Text),
        ("/content_block/thinking", Role::Text),
        ("/content_block/name", Role::Text),
        ("/delta/text", Role::Text),
        ("/delta/thinking", Role::Text),
        ("/delta/partial_json", Role::Text),
    ];
    Table::new(start.iter().map(|(pointer, role)| (pointer.as_str(), *role)).chain(USAGE).chain(own))
});

/// A cumulative number never falls to 0: a server that sends 0 does not know it there.
pub(super) fn update(known: &mut Counts, event: &Counts) {
    let zeros = known.get(Count::Input).is_none();
    known.replace(&if zeros { *event } else { event.without_zeros() });
}

//! Anthropic's messages: `POST …/v1/messages`.
//!
//! `input_tokens` does not include cached tokens. In a stream, `message_start` has the input and the first tokens of
//! the output. The cumulative numbers of `message_delta` replace them. Some servers send the input in only one of the
//! two events, and 0 in the other event.

use std::sync::LazyLock;

use super::request_table::RequestRole;
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

/// Updates the known numbers, but not to 0: a server sends 0 for a number that it does not know.
pub(super) fn update(known: &mut Counts, event: &Counts) {
    let zeros = known.get(Count::Input).is_none();
    known.replace(&if zeros { *event } else { event.without_zeros() });
}

/// The pointers into a request, each with the meaning of its value.
pub(super) const REQUEST: &[(&str, RequestRole)] = &[
    ("/model", RequestRole::Model),
    ("/max_tokens", RequestRole::MaxOutput),
    ("/stream", RequestRole::Stream),
    ("/container", RequestRole::Elsewhere),
    ("/mcp_servers/*/url", RequestRole::Elsewhere),
    ("/messages/*/content/*/source/url", RequestRole::Elsewhere),
    ("/messages/*/content/*/source/file_id", RequestRole::Elsewhere),
    ("/messages/*/content/*/content/*/source/url", RequestRole::Elsewhere),
    ("/messages/*/content/*/content/*/source/file_id", RequestRole::Elsewhere),
    ("/messages/*/content/*/source/content/*/source/url", RequestRole::Elsewhere),
    ("/messages/*/content/*/source/content/*/source/file_id", RequestRole::Elsewhere),
    ("/messages/*/content/*/file_id", RequestRole::Elsewhere),
    ("/messages/*/content/*/source/data", RequestRole::Medium),
    ("/messages/*/content/*/content/*/source/data", RequestRole::Medium),
    ("/messages/*/content/*/source/content/*/source/data", RequestRole::Medium),
];

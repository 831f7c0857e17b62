//! OpenAI's responses: `POST …/v1/responses`.
//!
//! `input_tokens` includes cached tokens, and `output_tokens` includes reasoning. The last event of a stream has the
//! usage: `response.completed`, `.incomplete` or `.failed`.

use std::sync::LazyLock;

use super::request_table::RequestRole;
use super::table::{Role, Table};
use crate::usage::Count;

/// The parts of a response other than its text.
const RESPONSE: [(&str, Role); 7] = [
    ("/model", Role::Model),
    ("/usage", Role::Usage),
    ("/usage/input_tokens", Role::Tokens(Count::Input)),
    ("/usage/output_tokens", Role::Tokens(Count::Output)),
    ("/usage/total_tokens", Role::Tokens(Count::Total)),
    ("/usage/input_tokens_details/cached_tokens", Role::Tokens(Count::Cached)),
    ("/usage/input_tokens_details/cache_write_tokens", Role::Tokens(Count::CacheWrite)),
];

const OUTPUT: [(&str, Role); 8] = [
    ("/output/*/content/*/text", Role::Text),
    ("/output/*/content/*/refusal", Role::Text),
    ("/output/*/summary/*/text", Role::Text),
    ("/output/*/name", Role::Text),
    ("/output/*/arguments", Role::Text),
    // The input of tools that take any text, and of the code interpreter.
    ("/output/*/input", Role::Text),
    ("/output/*/code", Role::Text),
    ("/output/*/content/*/transcript", Role::Text),
];

pub(super) static WHOLE: LazyLock<Table> = LazyLock::new(|| Table::new(RESPONSE.into_iter().chain(OUTPUT)));

pub(super) static EVENT: LazyLock<Table> = LazyLock::new(|| {
    let response = RESPONSE.map(|(pointer, role)| (format!("/response{pointer}"), role));
    // The text comes in deltas. The events that end a part repeat its text.
    let own = [("/type", Role::EventType), ("/delta", Role::Text), ("/item/name", Role::Text)];
    Table::new(response.iter().map(|(pointer, role)| (pointer.as_str(), *role)).chain(own))
});

/// Whether an event has new text: it is not audio, and was not sent before.
pub(super) fn has_text(event_type: Option<&str>) -> bool {
    event_type.is_some_and(|name| {
        name == "response.output_item.added" || (name.ends_with(".delta") && !name.ends_with("audio.delta"))
    })
}

/// The pointers into a request, each with the meaning of its value.
pub(super) const REQUEST: &[(&str, RequestRole)] = &[
    ("/model", RequestRole::Model),
    ("/max_output_tokens", RequestRole::MaxOutput),
    ("/stream", RequestRole::Stream),
    ("/background", RequestRole::Background),
    ("/previous_response_id", RequestRole::Elsewhere),
    ("/conversation", RequestRole::Elsewhere),
    ("/prompt/id", RequestRole::Elsewhere),
    ("/input/*/id", RequestRole::Elsewhere),
    ("/input/*/content/*/image_url", RequestRole::Elsewhere),
    ("/input/*/content/*/file_url", RequestRole::Elsewhere),
    ("/input/*/content/*/file_id", RequestRole::Elsewhere),
    ("/input/*/output/*/image_url", RequestRole::Elsewhere),
    ("/input/*/output/*/file_url", RequestRole::Elsewhere),
    ("/input/*/output/*/file_id", RequestRole::Elsewhere),
    ("/tools/*/vector_store_ids", RequestRole::Elsewhere),
    ("/tools/*/server_url", RequestRole::Elsewhere),
    ("/tools/*/connector_id", RequestRole::Elsewhere),
    ("/tools/*/container", RequestRole::ElsewhereString),
    ("/tools/*/container/file_ids", RequestRole::Elsewhere),
    ("/input/*/content/*/file_data", RequestRole::Medium),
    ("/input/*/output/*/file_data", RequestRole::Medium),
    ("/input/*/content/*/input_audio/data", RequestRole::Medium),
    ("/input/*/result", RequestRole::Medium),
];

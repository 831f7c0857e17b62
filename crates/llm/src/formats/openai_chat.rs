//! OpenAI's chat completions: `POST …/chat/completions`. vLLM, OpenRouter, DeepSeek, Azure and others answer the same.
//!
//! `prompt_tokens` includes cached tokens. In a stream, the last `usage` counts. OpenAI sends a `usage` before
//! `[DONE]`, if the request has `stream_options.include_usage`. vLLM can send a cumulative `usage` in every chunk.

use std::sync::LazyLock;

use super::request_table::RequestRole;
use super::table::{Role, Table};
use crate::usage::Count;

const USAGE: [(&str, Role); 8] = [
    ("/model", Role::Model),
    ("/usage", Role::Usage),
    ("/usage/prompt_tokens", Role::Tokens(Count::Input)),
    ("/usage/completion_tokens", Role::Tokens(Count::Output)),
    ("/usage/total_tokens", Role::Tokens(Count::Total)),
    // The name that DeepSeek uses.
    ("/usage/prompt_cache_hit_tokens", Role::Tokens(Count::Cached)),
    ("/usage/prompt_tokens_details/cached_tokens", Role::Tokens(Count::Cached)),
    // The name that OpenRouter uses.
    ("/usage/prompt_tokens_details/cache_write_tokens", Role::Tokens(Count::CacheWrite)),
];

/// The text that the model wrote in a message, or in a part of it.
const MESSAGE: [(&str, Role); 10] = [
    ("/content", Role::Text),
    // Mistral's content is a list, which includes thoughts.
    ("/content/*/text", Role::Text),
    ("/content/*/thinking/*/text", Role::Text),
    ("/refusal", Role::Text),
    // The name of DeepSeek and vLLM, then the name of OpenRouter and newer vLLM.
    ("/reasoning_content", Role::Text),
    ("/reasoning", Role::Text),
    ("/tool_calls/*/function/name", Role::Text),
    ("/tool_calls/*/function/arguments", Role::Text),
    ("/function_call/name", Role::Text),
    ("/function_call/arguments", Role::Text),
];

pub(super) static WHOLE: LazyLock<Table> = LazyLock::new(|| table("/choices/*/message"));
pub(super) static EVENT: LazyLock<Table> = LazyLock::new(|| table("/choices/*/delta"));

fn table(message: &str) -> Table {
    let rows: Vec<(String, Role)> = MESSAGE.map(|(pointer, role)| (format!("{message}{pointer}"), role)).into();
    Table::new(USAGE.into_iter().chain(rows.iter().map(|(pointer, role)| (pointer.as_str(), *role))))
}

/// The pointers into a request, each with the meaning of its value.
pub(super) const REQUEST: &[(&str, RequestRole)] = &[
    ("/model", RequestRole::Model),
    ("/max_completion_tokens", RequestRole::MaxOutput),
    ("/max_tokens", RequestRole::MaxOutput),
    ("/n", RequestRole::Answers),
    ("/stream", RequestRole::Stream),
    ("/stream_options", RequestRole::StreamOptions),
    ("/stream_options/include_usage", RequestRole::AsksForUsage),
    ("/messages/*/content/*/image_url/url", RequestRole::Elsewhere),
    ("/messages/*/content/*/audio_url/url", RequestRole::Elsewhere),
    ("/messages/*/content/*/video_url/url", RequestRole::Elsewhere),
    ("/messages/*/images/*/image_url/url", RequestRole::Elsewhere),
    // Mistral and vLLM also take the address itself.
    ("/messages/*/content/*/image_url", RequestRole::ElsewhereString),
    ("/messages/*/content/*/audio_url", RequestRole::ElsewhereString),
    ("/messages/*/content/*/video_url", RequestRole::ElsewhereString),
    ("/messages/*/content/*/document_url", RequestRole::ElsewhereString),
    ("/messages/*/content/*/file/file_id", RequestRole::Elsewhere),
    // OpenRouter also takes an address in place of base64.
    ("/messages/*/content/*/file/file_data", RequestRole::Elsewhere),
    ("/messages/*/audio/id", RequestRole::Elsewhere),
    ("/messages/*/content/*/input_audio/data", RequestRole::Medium),
    ("/messages/*/content/*/file/file_data", RequestRole::Medium),
];

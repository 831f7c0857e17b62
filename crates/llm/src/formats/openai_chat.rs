//! OpenAI's chat completions: `POST …/chat/completions`. vLLM, OpenRouter, DeepSeek, Azure and others answer the same.
//!
//! Cached tokens are inside of `prompt_tokens`. In a stream, the last `usage` counts: OpenAI sends one, in a chunk without
//! choices before `[DONE]`, if the request has `stream_options.include_usage`; `usage: null` before it says nothing. vLLM
//! with continuous usage sends one in every chunk, each cumulative.

use std::sync::LazyLock;

use super::table::{Role, Table};
use crate::usage::Count;

const USAGE: [(&str, Role); 8] = [
    ("/model", Role::Model),
    ("/usage", Role::Usage),
    ("/usage/prompt_tokens", Role::Tokens(Count::Input)),
    ("/usage/completion_tokens", Role::Tokens(Count::Output)),
    ("/usage/total_tokens", Role::Tokens(Count::Total)),
    // DeepSeek's name, beside the next.
    ("/usage/prompt_cache_hit_tokens", Role::Tokens(Count::Cached)),
    ("/usage/prompt_tokens_details/cached_tokens", Role::Tokens(Count::Cached)),
    // OpenRouter's.
    ("/usage/prompt_tokens_details/cache_write_tokens", Role::Tokens(Count::CacheWrite)),
];

/// What a message, or a part of one, has of the model.
const MESSAGE: [(&str, Role); 10] = [
    ("/content", Role::Text),
    // Mistral's content is a list, also of what the model thought.
    ("/content/*/text", Role::Text),
    ("/content/*/thinking/*/text", Role::Text),
    ("/refusal", Role::Text),
    // DeepSeek, vLLM; then OpenRouter, and vLLM of late.
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

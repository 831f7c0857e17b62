//! Gemini's `…/models/{model}:generateContent` and `:streamGenerateContent`, also of Vertex AI.
//!
//! `promptTokenCount` includes cached tokens. Thoughts and the results of tools have numbers of their own. A stream is
//! a JSON array of responses, or events with `alt=sse`. Each response has the numbers so far.

use std::sync::LazyLock;

use super::request_table::RequestRole;
use super::table::{Role, Table};
use crate::usage::Count;

const RESPONSE: [(&str, Role); 12] = [
    ("/modelVersion", Role::Model),
    ("/usageMetadata", Role::Usage),
    ("/usageMetadata/promptTokenCount", Role::Tokens(Count::Input)),
    ("/usageMetadata/toolUsePromptTokenCount", Role::Tokens(Count::ToolResults)),
    ("/usageMetadata/candidatesTokenCount", Role::Tokens(Count::Output)),
    ("/usageMetadata/thoughtsTokenCount", Role::Tokens(Count::Reasoning)),
    ("/usageMetadata/totalTokenCount", Role::Tokens(Count::Total)),
    ("/usageMetadata/cachedContentTokenCount", Role::Tokens(Count::Cached)),
    ("/candidates/*/content/parts/*/text", Role::Text),
    ("/candidates/*/content/parts/*/functionCall/name", Role::Text),
    ("/candidates/*/content/parts/*/functionCall/args", Role::Arguments),
    ("/candidates/*/content/parts/*/executableCode/code", Role::Text),
];

pub(super) static EVENT: LazyLock<Table> = LazyLock::new(|| Table::new(RESPONSE));

/// One response, or an array of them.
pub(super) static WHOLE: LazyLock<Table> = LazyLock::new(|| {
    let elements = RESPONSE
        .map(|(pointer, role)| (format!("/*{pointer}"), if role == Role::Usage { Role::ElementUsage } else { role }));
    Table::new(RESPONSE.into_iter().chain(elements.iter().map(|(pointer, role)| (pointer.as_str(), *role))))
});

/// The pointers into a request, each with the meaning of its value. The model is in the path. JSON of protocol buffers
/// may write a name in camelCase or in snake_case.
pub(super) const REQUEST: &[(&str, RequestRole)] = &[
    ("/generationConfig|generation_config/maxOutputTokens|max_output_tokens", RequestRole::MaxOutput),
    ("/generationConfig|generation_config/candidateCount|candidate_count", RequestRole::Answers),
    ("/cachedContent|cached_content", RequestRole::Elsewhere),
    ("/contents/*/parts/*/fileData|file_data/fileUri|file_uri", RequestRole::Elsewhere),
    (
        "/contents/*/parts/*/functionResponse|function_response/parts/*/fileData|file_data/fileUri|file_uri",
        RequestRole::Elsewhere,
    ),
    ("/systemInstruction|system_instruction/parts/*/fileData|file_data/fileUri|file_uri", RequestRole::Elsewhere),
    ("/tools/*/fileSearch|file_search/fileSearchStoreNames|file_search_store_names", RequestRole::Elsewhere),
    ("/tools/*/retrieval", RequestRole::Elsewhere),
    ("/contents/*/parts/*/inlineData|inline_data/data", RequestRole::Medium),
    ("/contents/*/parts/*/functionResponse|function_response/parts/*/inlineData|inline_data/data", RequestRole::Medium),
    ("/systemInstruction|system_instruction/parts/*/inlineData|inline_data/data", RequestRole::Medium),
];

//! The formats of answers: each file lists the pointers to tokens, model and text.

mod anthropic_messages;
mod endpoint;
mod gemini;
mod openai_chat;
mod openai_embeddings;
mod openai_responses;
mod request_table;
mod table;

pub use endpoint::Endpoint;
pub(crate) use request_table::{RequestRole, RequestTable};
pub(crate) use table::{Reading, Table};

use std::sync::LazyLock;

use crate::usage::{Counts, Usage};

/// The format of a request and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// OpenAI's chat completions, which many other servers also answer.
    OpenAiChat,
    /// OpenAI's responses.
    OpenAiResponses,
    /// OpenAI's embeddings.
    OpenAiEmbeddings,
    /// Anthropic's messages.
    AnthropicMessages,
    /// Gemini's `generateContent` and `streamGenerateContent`.
    Gemini,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 5] = [
        Format::OpenAiChat,
        Format::OpenAiResponses,
        Format::OpenAiEmbeddings,
        Format::AnthropicMessages,
        Format::Gemini,
    ];

    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Format::OpenAiChat => "openai_chat",
            Format::OpenAiResponses => "openai_responses",
            Format::OpenAiEmbeddings => "openai_embeddings",
            Format::AnthropicMessages => "anthropic_messages",
            Format::Gemini => "gemini",
        }
    }

    /// The pointers of a request.
    pub(crate) fn request(self) -> &'static RequestTable {
        static TABLES: LazyLock<[RequestTable; 5]> = LazyLock::new(|| {
            [
                openai_chat::REQUEST,
                openai_responses::REQUEST,
                openai_embeddings::REQUEST,
                anthropic_messages::REQUEST,
                gemini::REQUEST,
            ]
            .map(RequestTable::new)
        });
        let [chat, responses, embeddings, messages, gemini] = &*TABLES;
        match self {
            Format::OpenAiChat => chat,
            Format::OpenAiResponses => responses,
            Format::OpenAiEmbeddings => embeddings,
            Format::AnthropicMessages => messages,
            Format::Gemini => gemini,
        }
    }

    /// The pointers of an answer that is one JSON value.
    pub(crate) fn whole(self) -> &'static Table {
        match self {
            Format::OpenAiChat => &openai_chat::WHOLE,
            Format::OpenAiResponses => &openai_responses::WHOLE,
            Format::OpenAiEmbeddings => &openai_embeddings::WHOLE,
            Format::AnthropicMessages => &anthropic_messages::WHOLE,
            Format::Gemini => &gemini::WHOLE,
        }
    }

    /// The pointers of one event of a streamed answer.
    pub(crate) fn event(self) -> &'static Table {
        match self {
            Format::OpenAiChat => &openai_chat::EVENT,
            Format::OpenAiResponses => &openai_responses::EVENT,
            Format::OpenAiEmbeddings => &openai_embeddings::WHOLE,
            Format::AnthropicMessages => &anthropic_messages::EVENT,
            Format::Gemini => &gemini::EVENT,
        }
    }

    /// Adds the numbers of an event to the known numbers.
    pub(crate) fn update(self, known: &mut Counts, event: &Counts) {
        match self {
            Format::AnthropicMessages => anthropic_messages::update(known, event),
            _ => known.replace(event),
        }
    }

    pub(crate) fn usage(self, counts: &Counts) -> Option<Usage> {
        match self {
            Format::AnthropicMessages => counts.with_cached_beside(),
            _ => counts.with_cached_inside(),
        }
    }

    /// Whether the model wrote the text of an event of this type.
    pub(crate) fn has_text(self, event_type: Option<&str>) -> bool {
        match self {
            Format::OpenAiResponses => openai_responses::has_text(event_type),
            _ => true,
        }
    }
}

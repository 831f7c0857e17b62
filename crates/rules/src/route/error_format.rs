//! Defines the formats of the gateway's own error responses.

/// A model provider's format for the gateway's own error responses, which the provider's libraries can parse. Without a
/// format, the responses are problem documents (RFC 9457).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorFormat {
    /// `{"error": {"message", "type", "param", "code"}}`.
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}, "request_id"}`.
    Anthropic,
}

impl ErrorFormat {
    /// The formats with their names in the file.
    pub const ALL: [(&str, ErrorFormat); 2] = [("openai", ErrorFormat::OpenAi), ("anthropic", ErrorFormat::Anthropic)];

    pub fn name(self) -> &'static str {
        match self {
            ErrorFormat::OpenAi => "openai",
            ErrorFormat::Anthropic => "anthropic",
        }
    }
}

//! Determines the format of a request by its path.
//!
//! Only the end of a path decides, so prefixes do not matter. Letters are compared without their case, and one slash
//! at the end is ignored, because servers differ about both.

use super::Format;

/// The format and the model that the path of a `POST` request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint<'p> {
    pub format: Format,
    /// The model in the path, as it was sent, or the deployment that Azure's paths name instead. `None` if the path
    /// names neither.
    pub model: Option<&'p [u8]>,
}

impl<'p> Endpoint<'p> {
    /// Reads a path without its query. `None` if its format is not known.
    ///
    /// | end of the path | format |
    /// |---|---|
    /// | `/chat/completions` | [`Format::OpenAiChat`] |
    /// | `/responses`, `/embeddings`, after a version or `openai` | [`Format::OpenAiResponses`], [`Format::OpenAiEmbeddings`] |
    /// | `/deployments/{model}/chat/completions`, `/deployments/{model}/embeddings` | the same, with a model |
    /// | `/messages`, after a version | [`Format::AnthropicMessages`] |
    /// | `/models/{model}:generateContent`, `/tunedModels/{model}:streamGenerateContent` | [`Format::Gemini`], with a model |
    ///
    /// A version is `v`, a digit, and any letters and digits after them: `v1`, `v1beta`. A longer path has no known
    /// format: `/v1/messages/count_tokens`, `/v1/responses/{id}/cancel`.
    pub fn of_path(path: &'p [u8]) -> Option<Endpoint<'p>> {
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let mut segments = path.rsplit(|byte| *byte == b'/');
        let [last, second, third, fourth] = [0; 4].map(|_| segments.next().unwrap_or_default());
        let is = |segment: &[u8], name: &str| segment.eq_ignore_ascii_case(name.as_bytes());
        let deployment = |name: &'p [u8], before: &[u8]| is(before, "deployments").then_some(name);

        if is(last, "completions") && is(second, "chat") {
            return Some(Endpoint { format: Format::OpenAiChat, model: deployment(third, fourth) });
        }
        if is(last, "embeddings") && (is_version(second) || is(second, "openai") || is(third, "deployments")) {
            return Some(Endpoint { format: Format::OpenAiEmbeddings, model: deployment(second, third) });
        }
        if is(last, "responses") && (is_version(second) || is(second, "openai")) {
            return Some(Endpoint { format: Format::OpenAiResponses, model: None });
        }
        if is(last, "messages") && is_version(second) {
            return Some(Endpoint { format: Format::AnthropicMessages, model: None });
        }
        let (model, method) = base::split::rsplit_once(last, b':')?;
        let is_method = is(method, "generateContent") || is(method, "streamGenerateContent");
        let is_model = !model.is_empty() && (is(second, "models") || is(second, "tunedModels"));
        (is_method && is_model).then_some(Endpoint { format: Format::Gemini, model: Some(model) })
    }
}

fn is_version(segment: &[u8]) -> bool {
    matches!(segment, [b'v' | b'V', digit, rest @ ..]
        if digit.is_ascii_digit() && rest.iter().all(u8::is_ascii_alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, format: Format, model: Option<&str>) {
        let expected = Endpoint { format, model: model.map(str::as_bytes) };
        assert_eq!(Endpoint::of_path(path.as_bytes()), Some(expected), "{path}");
    }

    #[test]
    fn the_end_of_a_path_names_a_format() {
        check("/v1/chat/completions", Format::OpenAiChat, None);
        check("/v1/chat/completions/", Format::OpenAiChat, None);
        check("/V1/Chat/Completions", Format::OpenAiChat, None);
        check("/chat/completions", Format::OpenAiChat, None);
        check("/api/paas/v4/chat/completions", Format::OpenAiChat, None);
        check("/v1beta/openai/chat/completions", Format::OpenAiChat, None);
        check("/openai/deployments/gpt-4o-eu/chat/completions", Format::OpenAiChat, Some("gpt-4o-eu"));
        check("/openai/deployments/ada/embeddings", Format::OpenAiEmbeddings, Some("ada"));
        check("/v1/embeddings", Format::OpenAiEmbeddings, None);
        check("/team/v1beta/openai/embeddings", Format::OpenAiEmbeddings, None);
        check("/v1/responses", Format::OpenAiResponses, None);
        check("/openai/v1/responses", Format::OpenAiResponses, None);
        check("/openai/responses", Format::OpenAiResponses, None);
        check("/anthropic/v1/messages", Format::AnthropicMessages, None);
        check("/v1beta/models/gemini-2.5-pro:generateContent", Format::Gemini, Some("gemini-2.5-pro"));
        check("/v1beta/models/gemini-2.5-pro:streamGenerateContent", Format::Gemini, Some("gemini-2.5-pro"));
        check("/v1/projects/p/locations/l/publishers/google/models/g:generateContent", Format::Gemini, Some("g"));
        check("/v1/tunedModels/mine:generateContent", Format::Gemini, Some("mine"));
    }

    #[test]
    fn another_path_is_of_no_format() {
        for path in [
            "",
            "/",
            "/v1/models",
            "/v1/completions",
            "/v1/messages/count_tokens",
            "/v1/messages/batches",
            "/v1/responses/resp_1/cancel",
            "/v1/responses/input_tokens",
            "/v1/chat/completions/chatcmpl-1",
            "/v1/chat/completions//",
            "/forms/responses",
            "/messages",
            "/inbox/messages",
            "/versions/messages",
            "/v1/audio/transcriptions",
            "/v1beta/models/gemini-2.5-pro:countTokens",
            "/v1beta/models/gemini-2.5-pro:embedContent",
            "/v1beta/models/:generateContent",
            "/v1beta/things/a:generateContent",
        ] {
            assert_eq!(Endpoint::of_path(path.as_bytes()), None, "{path}");
        }
    }
}

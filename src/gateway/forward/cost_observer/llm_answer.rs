//! Counts the tokens that a request to a language model has used. The response may be whole, streamed or cut.

use http::request::Parts;

use crate::gateway::enforcement::unsettled_costs::RequestResult;
use crate::gateway::forward::head_edit::HeadEdit;
use llm::answer::AnswerReader;
use llm::formats::Format;
use llm::usage::Usage;
use request::llm_model::format_of;
use request::model_request::ModelRequest;

/// The response of a language model, as far as it has been read.
#[derive(Debug)]
pub(super) struct LlmAnswer {
    format: Format,
    /// `None` before the head, and for a body that cannot be read because it is compressed.
    reader: Option<AnswerReader>,
    is_streamed: bool,
    /// The number of bytes of the body.
    bytes: u64,
    /// The estimated number of tokens of the request, without content that the request only refers to.
    input_estimate: u64,
    bytes_per_token: u64,
    unknown: UnknownTokens,
}

/// The tokens that cannot be estimated from the request and the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnknownTokens {
    has_content_elsewhere: bool,
    /// Whether the model works on after the response.
    is_background: bool,
    /// The request's own maximum of output.
    max_output: Option<u64>,
}

/// The tokens of a response that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnsweredTokens {
    /// The known tokens, without those of `unknown`.
    usage: Usage,
    pub model: Option<String>,
    pub is_estimated: bool,
    unknown: UnknownTokens,
}

impl LlmAnswer {
    /// Returns the reader of the response to the request `model`, which has this head. `None` if the path belongs to no
    /// known format.
    pub(super) fn of(head: &Parts, model: &ModelRequest) -> Option<Box<LlmAnswer>> {
        Some(Box::new(LlmAnswer {
            format: format_of(head)?,
            reader: None,
            is_streamed: false,
            bytes: 0,
            input_estimate: model.input_estimate(0),
            bytes_per_token: model.bytes_per_token.get(),
            unknown: UnknownTokens {
                has_content_elsewhere: model.body.has_content_elsewhere,
                is_background: model.body.is_background,
                max_output: model.body.max_output,
            },
        }))
    }

    pub(super) fn head(&mut self, fields: &HeadEdit<'_>) {
        let content_type = fields.values("content-type").next().unwrap_or_default();
        self.is_streamed = content_type.to_ascii_lowercase().starts_with(b"text/event-stream");
        let mut encodings = fields.values("content-encoding");
        let is_plain = encodings.all(|value| value.is_empty() || value.eq_ignore_ascii_case(b"identity"));
        self.reader = is_plain.then(|| AnswerReader::new(self.format, content_type, AnswerReader::MAX_WHOLE));
    }

    pub(super) fn data(&mut self, data: &[u8]) {
        self.bytes = self.bytes.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        if let Some(reader) = &mut self.reader {
            reader.push(data);
        }
    }

    /// Ends the response. If the request has failed and the response has no usage, it counts as one token of input.
    pub(super) fn finish(self, result: RequestResult) -> AnsweredTokens {
        let has_failed = result.has_failed();
        let LlmAnswer { reader, is_streamed, bytes, input_estimate, bytes_per_token, unknown, .. } = self;
        let Some(report) = reader.map(AnswerReader::finish) else {
            let usage = Usage { input: input_estimate, output: bytes.div_ceil(bytes_per_token), ..Usage::default() };
            return AnsweredTokens::estimated(usage, None, unknown).unless(has_failed);
        };
        // A usage of 0 is from the beginning of a stream that was cut, or from a server that does not count.
        let told = report.usage.filter(|usage| *usage != Usage::default());
        let is_all_read = report.text_bytes_after_usage == 0 && report.unread_bytes == 0;
        match told {
            // A usage in a stream, or in a cut JSON array of Gemini, counts only the text before it. So it is used only
            // if no text follows.
            Some(usage) if is_all_read || !is_streamed && !result.is_cut() => {
                let unknown = UnknownTokens::default();
                AnsweredTokens { usage, model: report.model, is_estimated: false, unknown }
            }
            _ => {
                let usage = report.estimate(input_estimate, bytes_per_token);
                // A usage in the response includes the content that the request only refers to.
                let has_content_elsewhere = unknown.has_content_elsewhere && told.is_none();
                let unknown = UnknownTokens { has_content_elsewhere, ..unknown };
                AnsweredTokens::estimated(usage, report.model, unknown).unless(has_failed && told.is_none())
            }
        }
    }
}

/// The largest estimate of the output of a model that works on in the background. The request can name any maximum,
/// so without this bound one client could use up a shared budget.
const MOST_OUTPUT: u64 = 1_000_000;

impl AnsweredTokens {
    fn estimated(usage: Usage, model: Option<String>, unknown: UnknownTokens) -> AnsweredTokens {
        AnsweredTokens { usage, model, is_estimated: true, unknown }
    }

    /// Returns one token of input in place of this estimate if the response `has_failed`.
    fn unless(self, has_failed: bool) -> AnsweredTokens {
        match has_failed {
            true => AnsweredTokens { usage: Usage::ONE_INPUT, unknown: UnknownTokens::default(), ..self },
            false => self,
        }
    }

    /// Returns the tokens. `default_output` stands for content that the request only refers to, and for a maximum of output that it
    /// does not name.
    pub(super) fn usage(&self, default_output: u64) -> Usage {
        let UnknownTokens { has_content_elsewhere, is_background, max_output } = self.unknown;
        let input = if has_content_elsewhere { default_output } else { 0 };
        let most = max_output.unwrap_or(default_output).min(MOST_OUTPUT.max(default_output));
        let output = if is_background { most } else { 0 };
        Usage { input: self.usage.input.saturating_add(input), output: self.usage.output.max(output), ..self.usage }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use llm::request::RequestReader;

    fn used(path: &str, content_type: &str, pieces: &[&str]) -> AnsweredTokens {
        ended(path, content_type, pieces, RequestResult::Cut(200))
    }

    fn ended(path: &str, content_type: &str, pieces: &[&str], result: RequestResult) -> AnsweredTokens {
        let request = http::Request::post(path).body(()).unwrap().into_parts().0;
        let mut body = RequestReader::new(Format::OpenAiChat, 1000);
        body.push(format!("{{\"input\":\"{}\"}}", "x".repeat(395)).as_bytes());
        let bytes_per_token = NonZeroU64::new(4).unwrap();
        let model = ModelRequest { body: body.finish().unwrap(), bytes_per_token, media: 0, is_signed: false };
        let mut answer = LlmAnswer::of(&request, &model).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\n{content_type}\r\n\r\n");
        answer.head(&HeadEdit::new(head.as_bytes()));
        pieces.iter().for_each(|piece| answer.data(piece.as_bytes()));
        answer.finish(result)
    }

    const STREAM: &str = "Content-Type: Text/Event-Stream; charset=utf-8";
    const JSON: &str = "Content-Type: application/json";

    #[test]
    fn a_response_with_usage_is_not_estimated() {
        let usage = r#""usage":{"prompt_tokens":9,"completion_tokens":2}"#;
        let expected = Usage { input: 9, output: 2, ..Usage::default() };
        for body in [
            format!(r#"{{"model":"m-1",{usage},"choices":[{{"message":{{"content":"a long text"}}}}]}}"#),
            format!(r#"{{"choices":[{{"message":{{"content":"a long text"}}}}],"model":"m-1",{usage}}}"#),
        ] {
            let AnsweredTokens { usage, model, is_estimated, .. } = used("/v1/chat/completions", JSON, &[&body]);
            assert_eq!((usage, model.as_deref(), is_estimated), (expected, Some("m-1"), false));
        }
        let last = format!("data: {{\"choices\":[],{usage}}}\n\n");
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\n";
        let used = used("/v1/chat/completions", STREAM, &[text, &last, "data: [DONE]\n\n"]);
        assert_eq!((used.usage, used.is_estimated), (expected, false));
    }

    #[test]
    fn a_response_without_usage_is_estimated_from_the_request_and_its_text() {
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\n";
        let estimated = |input, output| (Usage { input, output, ..Usage::default() }, true);
        let used = |content_type, pieces: &[&str]| {
            let used = used("/v1/chat/completions", content_type, pieces);
            (used.usage, used.is_estimated)
        };
        assert_eq!(used(STREAM, &[text, text, "data: {\"cho"]), estimated(100, 3));
        assert_eq!(used(STREAM, &[]), estimated(100, 0));
        // All bytes of a body that is not JSON count as text.
        assert_eq!(used(JSON, &["not JSON"]), estimated(100, 2));
        assert_eq!(used(STREAM, &["data: not JSON\n\n", text]), estimated(100, 4));
        // A compressed body cannot be read, so all of its bytes count as text.
        assert_eq!(used("Content-Encoding: gzip", &["12345678"]), estimated(100, 2));
    }

    #[test]
    fn text_after_the_last_usage_of_a_stream_is_estimated() {
        let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"c\",\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
        let text = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"12345678\"}}\n\n";
        let end = "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":7}}\n\n";
        let tokens = |pieces: &[&str]| {
            let used = used("/v1/messages", STREAM, pieces);
            (used.usage.input, used.usage.output, used.is_estimated)
        };
        assert_eq!(tokens(&[start, text]), (9, 3, true));
        assert_eq!(tokens(&[start, text, end]), (9, 7, false));
        // A stream of Gemini may be a JSON array.
        let first = r#"[{"candidates":[{"content":{"parts":[{"text":"12345678"}]}}],"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":2}},"#;
        let second = r#"{"candidates":[{"content":{"parts":[{"text":"abcdefgh"#;
        let array = |pieces: &[&str]| {
            let used = used("/v1beta/models/g:streamGenerateContent", JSON, pieces);
            (used.usage.input, used.usage.output, used.is_estimated)
        };
        assert_eq!([array(&[first]), array(&[first, second])], [(9, 2, false), (9, 4, true)]);
        // In a whole array, the usage counts all text, also the text after it.
        let last = r#"[{"usageMetadata":{"promptTokenCount":9},"candidates":[{"content":{"parts":[{"text":"a"}]}}]}]"#;
        let whole = ended("/v1beta/models/g:streamGenerateContent", JSON, &[last], RequestResult::Answered(200));
        assert_eq!((whole.usage.input, whole.usage.output, whole.is_estimated), (9, 0, false));
        // Some servers name a usage of 0 at the beginning of a stream, so the tokens are estimated.
        let nothing = start.replace(":9,", ":0,").replace(":1}", ":0}");
        assert_eq!(tokens(&[&nothing]), (100, 0, true));
    }

    #[test]
    fn a_usage_of_0_is_none() {
        let body =
            r#"{"usage":{"prompt_tokens":0,"completion_tokens":0},"choices":[{"message":{"content":"12345678"}}]}"#;
        let answered = |status| {
            let used = ended("/v1/chat/completions", JSON, &[body], RequestResult::Answered(status));
            (used.usage.input, used.usage.output, used.is_estimated)
        };
        assert_eq!([answered(200), answered(404)], [(100, 2, true), (1, 0, true)]);
    }

    #[test]
    fn a_failed_response_without_usage_is_one_token() {
        let failed = |content_type, body: &str| {
            let result = RequestResult::Answered(404);
            let AnsweredTokens { usage, is_estimated, .. } =
                ended("/v1/chat/completions", content_type, &[body], result);
            (usage.input, usage.output, is_estimated)
        };
        for content_type in [JSON, STREAM, "Content-Encoding: gzip", "Content-Type: text/html"] {
            assert_eq!(failed(content_type, "<h1>Not found</h1>"), (1, 0, true), "{content_type}");
        }
        assert_eq!(failed(JSON, r#"{"error":{"message":"no such model"}}"#), (1, 0, true));
        let usage = r#"{"error":{},"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;
        assert_eq!(failed(JSON, usage), (9, 2, false));
    }

    #[test]
    fn what_goes_on_in_the_background_is_estimated_by_the_maximum() {
        let answered = |body: &str, response: &str, status| {
            let head = http::Request::post("/v1/responses").body(()).unwrap().into_parts().0;
            let mut reader = RequestReader::new(Format::OpenAiResponses, 1000);
            reader.push(body.as_bytes());
            let bytes_per_token = NonZeroU64::new(4).unwrap();
            let model = ModelRequest { body: reader.finish().unwrap(), bytes_per_token, media: 0, is_signed: false };
            let mut answer = LlmAnswer::of(&head, &model).unwrap();
            answer.head(&HeadEdit::new(format!("HTTP/1.1 200 OK\r\n{JSON}\r\n\r\n").as_bytes()));
            answer.data(response.as_bytes());
            answer.finish(RequestResult::Answered(status)).usage(700).output
        };
        let queued = r#"{"status":"queued","usage":null}"#;
        assert_eq!(answered(r#"{"background":true,"max_output_tokens":90}"#, queued, 200), 90);
        assert_eq!(answered(r#"{"background":true,"max_output_tokens":9000000000000000}"#, queued, 200), MOST_OUTPUT);
        assert_eq!(answered(r#"{"background":true}"#, queued, 200), 700);
        assert_eq!(answered(r#"{"background":false}"#, queued, 200), 0);
        assert_eq!(answered(r#"{"background":true}"#, r#"{"error":{}}"#, 404), 0);
        let told = r#"{"usage":{"input_tokens":2,"output_tokens":3}}"#;
        assert_eq!(answered(r#"{"background":true}"#, told, 200), 3);
    }
}

//! Counts the tokens that a request to a language model has used. The response may be whole, streamed or cut.

use http::request::Parts;

use crate::gateway::enforcement::unsettled_costs::UsedTokens;
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
    /// The estimated number of tokens of the request.
    input_estimate: u64,
    bytes_per_token: u64,
}

impl LlmAnswer {
    /// Returns the reader of the response to the request `model`, which has this head. `None` if the path belongs to no
    /// known format.
    pub(super) fn of(head: &Parts, model: &ModelRequest) -> Option<Box<LlmAnswer>> {
        let format = format_of(head)?;
        let bytes_per_token = model.bytes_per_token.get();
        let input_estimate = model.input_estimate(ModelRequest::DEFAULT_OUTPUT);
        let (reader, is_streamed, bytes) = (None, false, 0);
        Some(Box::new(LlmAnswer { format, reader, is_streamed, bytes, input_estimate, bytes_per_token }))
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

    /// Ends the response, whether it was whole or was cut.
    pub(super) fn finish(self) -> UsedTokens {
        let LlmAnswer { reader, is_streamed, bytes, input_estimate, bytes_per_token, .. } = self;
        let Some(report) = reader.map(AnswerReader::finish) else {
            let usage = Usage { input: input_estimate, output: bytes.div_ceil(bytes_per_token), ..Usage::default() };
            return UsedTokens { usage, model: None, is_estimated: true };
        };
        match report.usage {
            // A usage in a stream counts only the text before it, so no text may follow. A usage of 0 is from the
            // beginning of a stream that was cut.
            Some(usage) if !is_streamed || report.text_bytes_after_usage == 0 && usage != Usage::default() => {
                UsedTokens { usage, model: report.model, is_estimated: false }
            }
            _ => {
                let usage = report.estimate(input_estimate, bytes_per_token);
                UsedTokens { usage, model: report.model, is_estimated: true }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use llm::request::RequestReader;

    fn used(path: &str, content_type: &str, pieces: &[&str]) -> UsedTokens {
        let request = http::Request::post(path).body(()).unwrap().into_parts().0;
        let mut body = RequestReader::new(Format::OpenAiChat, 1000);
        body.push(format!("{{\"input\":\"{}\"}}", "x".repeat(395)).as_bytes());
        let bytes_per_token = NonZeroU64::new(4).unwrap();
        let model = ModelRequest { body: body.finish().unwrap(), bytes_per_token, media: 0 };
        let mut answer = LlmAnswer::of(&request, &model).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\n{content_type}\r\n\r\n");
        answer.head(&HeadEdit::new(head.as_bytes()));
        pieces.iter().for_each(|piece| answer.data(piece.as_bytes()));
        answer.finish()
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
            let UsedTokens { usage, model, is_estimated } = used("/v1/chat/completions", JSON, &[&body]);
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
        assert_eq!(used(JSON, &["not JSON"]), estimated(100, 0));
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
        // Some servers name a usage of 0 at the beginning of a stream, so the tokens are estimated.
        let nothing = start.replace(":9,", ":0,").replace(":1}", ":0}");
        assert_eq!(tokens(&[&nothing]), (100, 0, true));
    }
}

//! Calls of language models in four formats: their requests, and the events of their responses.

use std::time::Duration;

use serde_json::{Value, json};

/// A token of an answer. It has four bytes, as many as `llm.bytes_per_token` takes for a token.
pub(crate) const WORD: &str = "fox ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    OpenAiChat,
    OpenAiResponses,
    Anthropic,
    Gemini,
}

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Whole,
    /// The upstream answers 503, which costs nothing.
    Failure,
    /// The upstream closes the connection after so many words.
    UpstreamLeaves(u64),
    /// The client leaves when the upstream has the request. There is no response.
    ClientLeavesBeforeHead,
    /// The client leaves after so many words. No more are sent.
    ClientLeavesAfterWords(u64),
    /// The client leaves at this time after it sent the request.
    ClientLeavesAt(Duration),
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub id: u64,
    pub api: Api,
    pub end: End,
    pub is_stream: bool,
    /// The tokens of the prompt: a quarter of the bytes of all texts in the request, without a rest.
    pub prompt: u64,
    /// The words of the whole answer.
    pub words: u64,
    /// The most words that the request allows.
    pub most: u64,
    /// The time between two words.
    pub pause: Duration,
    body: Value,
}

/// The parts of a call that a test chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallShape {
    pub api: Api,
    pub end: End,
    pub is_stream: bool,
    /// Whether the client asks for the usage of a stream. If it does not, the gateway asks.
    pub asks: bool,
    /// The words of the whole answer, and how many more the request allows.
    pub words: u64,
    pub spare: u64,
    /// The least number of bytes in the message.
    pub bytes: u64,
    pub pause: Duration,
}

impl Call {
    pub(crate) fn random(id: u64, random: &mut fastrand::Rng) -> Call {
        let words = random.u64(1..=40);
        let end = match random.u8(..20) {
            0..10 => End::Whole,
            10 => End::Failure,
            11..13 => End::UpstreamLeaves(random.u64(..words)),
            13..15 => End::ClientLeavesBeforeHead,
            15..17 => End::ClientLeavesAfterWords(random.u64(1..=words)),
            _ => End::ClientLeavesAt(Duration::from_millis(random.u64(1..120))),
        };
        // Only a stream can be cut after a word.
        let is_stream = !matches!(end, End::Whole | End::Failure) || random.bool();
        let api = [Api::OpenAiChat, Api::OpenAiResponses, Api::Anthropic, Api::Gemini][random.usize(..4)];
        let (spare, bytes, asks) = (random.u64(..5), random.u64(..60), random.bool());
        let pause = Duration::from_millis(random.u64(..4));
        Call::new(id, CallShape { api, end, is_stream, asks, words, spare, bytes, pause })
    }

    pub(crate) fn new(id: u64, shape: CallShape) -> Call {
        let CallShape { api, end, is_stream, asks, words, spare, bytes, pause } = shape;
        let most = words + spare;
        let around = text_bytes(&request(api, is_stream, asks, most, ""));
        let filled = (around + bytes).div_ceil(4) * 4;
        let body = request(api, is_stream, asks, most, &"x".repeat(usize::try_from(filled - around).unwrap()));
        Call { id, api, end, is_stream, prompt: filled / 4, words, most, pause, body }
    }

    pub(crate) fn path(&self) -> &'static str {
        match (self.api, self.is_stream) {
            (Api::OpenAiChat, _) => "/v1/chat/completions",
            (Api::OpenAiResponses, _) => "/v1/responses",
            (Api::Anthropic, _) => "/v1/messages",
            (Api::Gemini, false) => "/v1beta/models/m:generateContent",
            (Api::Gemini, true) => "/v1beta/models/m:streamGenerateContent?alt=sse",
        }
    }

    pub(crate) fn body(&self) -> String {
        self.body.to_string()
    }

    /// Returns the body of a response that is no stream.
    pub(crate) fn whole(&self) -> Value {
        let text = WORD.repeat(usize::try_from(self.words).unwrap());
        let content = json!([{"type": "text", "text": text}]);
        match self.api {
            Api::OpenAiChat => {
                json!({"model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}],
                "usage": self.usage(self.words)})
            }
            Api::OpenAiResponses => json!({"model": "m", "usage": self.usage(self.words),
                "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}),
            Api::Anthropic => {
                json!({"type": "message", "model": "m", "content": content, "usage": self.usage(self.words)})
            }
            Api::Gemini => self.gemini(&text, self.words),
        }
    }

    /// Returns the events before the first word.
    pub(crate) fn beginning(&self) -> String {
        match self.api {
            Api::OpenAiChat | Api::Gemini => String::new(),
            Api::OpenAiResponses => named("response.created", json!({"response": {"model": "m", "usage": null}})),
            Api::Anthropic => named(
                "message_start",
                json!({"message": {"type": "message", "model": "m", "content": [], "usage": self.usage(0)}}),
            ),
        }
    }

    /// Returns the event of one word, before which this number of words was sent.
    pub(crate) fn word(&self, before: u64) -> String {
        match self.api {
            Api::OpenAiChat => event(&json!({"model": "m", "choices": [{"index": 0, "delta": {"content": WORD}}]})),
            Api::OpenAiResponses => named("response.output_text.delta", json!({"delta": WORD})),
            Api::Anthropic => {
                named("content_block_delta", json!({"index": 0, "delta": {"type": "text_delta", "text": WORD}}))
            }
            Api::Gemini => event(&self.gemini(WORD, before + 1)),
        }
    }

    /// Returns the events after the last word.
    pub(crate) fn finish(&self) -> String {
        let usage = self.usage(self.words);
        match self.api {
            Api::OpenAiChat => event(&json!({"model": "m", "choices": [], "usage": usage})) + "data: [DONE]\n\n",
            Api::OpenAiResponses => named("response.completed", json!({"response": {"model": "m", "usage": usage}})),
            Api::Anthropic => {
                named(
                    "message_delta",
                    json!({"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": self.words}}),
                ) + &named("message_stop", json!({}))
            }
            Api::Gemini => String::new(),
        }
    }

    fn usage(&self, words: u64) -> Value {
        match self.api {
            Api::OpenAiChat => {
                json!({"prompt_tokens": self.prompt, "completion_tokens": words, "total_tokens": self.prompt + words})
            }
            _ => json!({"input_tokens": self.prompt, "output_tokens": words}),
        }
    }

    fn gemini(&self, text: &str, words: u64) -> Value {
        let usage = json!({"promptTokenCount": self.prompt, "candidatesTokenCount": words, "totalTokenCount": self.prompt + words});
        json!({"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}], "usageMetadata": usage})
    }
}

fn request(api: Api, is_stream: bool, asks_for_usage: bool, most: u64, text: &str) -> Value {
    let messages = json!([{"role": "user", "content": text}]);
    let mut body = match api {
        Api::OpenAiChat => json!({"model": "m", "max_completion_tokens": most, "messages": messages}),
        Api::OpenAiResponses => json!({"model": "m", "max_output_tokens": most, "input": text}),
        Api::Anthropic => json!({"model": "m", "max_tokens": most, "messages": messages}),
        Api::Gemini => {
            json!({"contents": [{"parts": [{"text": text}]}], "generationConfig": {"maxOutputTokens": most}})
        }
    };
    if is_stream && api != Api::Gemini {
        body["stream"] = true.into();
    }
    // If the client does not ask, the gateway does.
    if is_stream && api == Api::OpenAiChat && asks_for_usage {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// Returns the bytes of all names, texts and numbers.
fn text_bytes(value: &Value) -> u64 {
    match value {
        Value::Object(members) => members.iter().map(|(name, value)| name.len() as u64 + text_bytes(value)).sum(),
        Value::Array(elements) => elements.iter().map(text_bytes).sum(),
        Value::String(text) => text.len() as u64,
        Value::Number(number) => number.to_string().len() as u64,
        Value::Bool(_) | Value::Null => 0,
    }
}

fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// Returns an event whose data have its type.
fn named(kind: &str, mut data: Value) -> String {
    data["type"] = kind.into();
    format!("event: {kind}\ndata: {data}\n\n")
}

//! Holds what is known of a request to a language model before the request is sent.

use std::num::NonZeroU64;

use llm::request::{LlmRequest, UsageQuestion};

/// A request to a language model whose body has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRequest {
    /// What the body says. `model` is also set if only the path names the model.
    pub body: LlmRequest,
    /// The number of bytes of text that an estimate counts as one token.
    pub bytes_per_token: NonZeroU64,
    /// The number of tokens that an estimate counts for each image or other medium.
    pub media: u64,
    /// Whether the head has a digest or a signature of the body, so that the gateway must not change the body.
    pub is_signed: bool,
}

/// What the body of a request asks of a language model, if the body has been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelBody {
    /// The body has not been read.
    #[default]
    Unread,
    /// The body is in no format of a language model, or there is no body.
    Other,
    Read(Box<ModelRequest>),
}

impl ModelRequest {
    /// The tokens of output that a request without a maximum is expected to use, if a limit names no other number.
    pub const DEFAULT_OUTPUT: u64 = 4096;

    /// Returns how the gateway can ask for the usage of a stream in the client's place. `None` if it must not, or need not.
    pub fn usage_question(&self) -> Option<&UsageQuestion> {
        self.body.usage_question.as_ref().filter(|_| !self.is_signed)
    }

    /// Whether the response will tell its usage. `gateway_asks`: the gateway asks where it can.
    pub fn tells_usage(&self, gateway_asks: bool) -> bool {
        self.body.tells_usage(gateway_asks && !self.is_signed)
    }

    /// Estimates the tokens of the request itself. `elsewhere` is added if a part of the content is not in the request,
    /// such as an image behind a URL.
    pub fn input_estimate(&self, elsewhere: u64) -> u64 {
        self.body.input_estimate(self.bytes_per_token, self.media, elsewhere)
    }
}

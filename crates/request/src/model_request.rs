//! Holds what is known of a request to a language model before the request is sent.

use std::num::NonZeroU64;

use llm::request::LlmRequest;

/// A request to a language model whose body has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRequest {
    /// What the body says. `model` is also set if only the path names the model.
    pub body: LlmRequest,
    /// The number of bytes of text that an estimate counts as one token.
    pub bytes_per_token: NonZeroU64,
    /// The number of tokens that an estimate counts for each image or other medium.
    pub media: u64,
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

    /// Estimates the tokens of the request itself. `elsewhere` is added if a part of the content is not in the request,
    /// such as an image behind a URL.
    pub fn input_estimate(&self, elsewhere: u64) -> u64 {
        self.body.input_estimate(self.bytes_per_token, self.media, elsewhere)
    }
}

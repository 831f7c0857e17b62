//! Reads the cost of a language model's answer while its bytes pass: tokens by kind, the model, and their price.
//!
//! An [`AnswerReader`](answer::AnswerReader) gets the pieces of a body, and reports tokens, model and text:
//!
//! ```
//! use llm::answer::AnswerReader;
//! use llm::formats::{Endpoint, Format};
//! use llm::usage::Usage;
//!
//! let endpoint = Endpoint::of_path(b"/v1/chat/completions").unwrap();
//! assert_eq!(endpoint.format, Format::OpenAiChat);
//!
//! let mut answer = AnswerReader::new(endpoint.format, b"text/event-stream", AnswerReader::MAX_WHOLE);
//! for piece in [
//!     "data: {\"model\":\"m-1\",\"choices\":[{\"delta\":{\"content\":\"Hel",
//!     "lo\"}}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,",
//!     "\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n",
//! ] {
//!     answer.push(piece.as_bytes());
//! }
//! let report = answer.finish();
//! assert_eq!(report.usage, Some(Usage { input: 1, output: 2, cached: 8, cache_write: 0 }));
//! assert_eq!((report.model.as_deref(), report.text_bytes), (Some("m-1"), 5));
//! ```
//!
//! Invariants: no I/O, no clock, no log. Memory is bounded, and no input causes a panic or an error: an answer that
//! cannot be read has no usage. The result does not depend on how the bytes were cut.

pub mod answer;
pub mod event_stream;
pub mod formats;
pub mod json;
pub mod prices;
pub mod request;
pub mod usage;
pub mod usage_event;

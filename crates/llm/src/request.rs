//! Reads a request to a language model from the pieces of its body: the model, and how much it may cost.

use std::fmt;
use std::num::NonZeroU64;

use crate::formats::{Format, RequestRole, RequestTable};
use crate::json::{JsonError, JsonScanner, Lookup, Number, PointerSet, Value};

/// The reader of one request. It keeps no body, only the model and numbers.
///
/// ```
/// use llm::formats::Format;
/// use llm::request::RequestReader;
///
/// let mut reader = RequestReader::new(Format::OpenAiChat, 1 << 20);
/// for piece in ["{\"model\":\"m-1\",\"max_tok", "ens\":50,\"n\":2,\"messages\":[{\"content\":\"Hello\"}]}"] {
///     reader.push(piece.as_bytes());
/// }
/// let request = reader.finish().unwrap();
/// assert_eq!((request.model.as_deref(), request.most_output(4096)), (Some("m-1"), 100));
/// ```
#[derive(Clone, Debug)]
pub struct RequestReader {
    table: &'static RequestTable,
    scanner: JsonScanner<&'static PointerSet>,
}

/// What a request says about its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LlmRequest {
    /// The model that is asked for. `None` if the body does not name it. Then the path may name it.
    pub model: Option<String>,
    /// The largest number of tokens in one answer. `None` if the request names no maximum. 0 for embeddings.
    pub max_output: Option<u64>,
    /// How many answers are asked for, at least 1.
    pub answers: u64,
    /// Whether the body asks for a stream. Gemini's path says so instead.
    pub is_stream: bool,
    /// Whether the response tells its usage. A stream of OpenAI's chat completions does so only if the request asks for it.
    pub tells_usage: bool,
    /// The bytes of all names, strings and numbers, decoded, without media.
    pub text_bytes: u64,
    /// The images, sounds and files in the request.
    pub media: u64,
    /// Whether the request refers to content that it does not contain, such as by an address or an id.
    pub has_content_elsewhere: bool,
    /// Whether the model still works when the response has ended. Then a response that is not a stream has no usage.
    pub is_background: bool,
    /// The change with which the body asks for the usage of its stream. `None` if the request asks already, or if its
    /// format has no such setting.
    pub usage_question: Option<UsageQuestion>,
}

/// A change of a body, with which the request asks for the usage of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageQuestion {
    /// The offset of the bytes to replace.
    pub offset: u64,
    /// How many bytes are replaced.
    pub replaced: u64,
    /// The new bytes.
    pub text: &'static str,
    /// Whether the new bytes are the first member of an object. Then a comma follows them, unless the object is empty.
    pub is_member: bool,
}

/// The largest number of media that an estimate counts. No model accepts more.
const MOST_MEDIA: u64 = 4_096;

/// The reason why a body cannot be read as a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidRequest {
    Json(JsonError),
    /// The body is not an object. It may be an array, such as a batch.
    NotAnObject,
    /// A name on the way to this setting occurs twice in its object, and readers differ about which one counts.
    Twice(&'static str),
    /// A name on the way to this setting is in another case, and some readers take it for the setting.
    OtherCase(&'static str),
    /// The value of this setting has another type, and readers differ about what it means.
    OtherType(&'static str),
}

impl fmt::Display for InvalidRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidRequest::Json(error) => error.fmt(out),
            InvalidRequest::NotAnObject => out.write_str("must be a JSON object"),
            InvalidRequest::Twice(what) => write!(out, "must name {what} once"),
            InvalidRequest::OtherCase(what) => write!(out, "must name {what} in its own case"),
            InvalidRequest::OtherType(what) => write!(out, "must give {what} a value of its own type"),
        }
    }
}

impl std::error::Error for InvalidRequest {}

impl RequestReader {
    /// Makes a reader for a body of at most `max_bytes`.
    pub fn new(format: Format, max_bytes: u64) -> RequestReader {
        let table = format.request();
        RequestReader { table, scanner: JsonScanner::new(&table.pointers, max_bytes) }
    }

    /// Reads the next piece of the body.
    pub fn push(&mut self, piece: &[u8]) {
        self.scanner.push(piece);
    }

    /// Ends the body.
    ///
    /// # Errors
    /// If the body is not a JSON object in Unicode, is too long or too deep, names a setting twice or in another case,
    /// or gives `stream_options` or `include_usage` a value of another type.
    pub fn finish(mut self) -> Result<LlmRequest, InvalidRequest> {
        self.scanner.finish().map_err(InvalidRequest::Json)?;
        if !matches!(self.scanner.value(RequestTable::ROOT), Lookup::Value(Value::Object)) {
            return Err(InvalidRequest::NotAnObject);
        }
        // In a format without a maximum of output, such as the format of embeddings, answers have no output.
        let has_output = self.table.roles.contains(&RequestRole::MaxOutput);
        let mut request = LlmRequest {
            model: None,
            max_output: if has_output { None } else { Some(0) },
            answers: 1,
            is_stream: false,
            tells_usage: true,
            text_bytes: self.scanner.bytes(RequestTable::TEXT),
            media: self.scanner.media(RequestTable::TEXT),
            has_content_elsewhere: false,
            is_background: false,
            usage_question: None,
        };
        let mut usage = UsagePlaces { root: self.scanner.offset(RequestTable::ROOT), ..UsagePlaces::default() };
        for (index, role) in self.table.roles.iter().enumerate() {
            if self.scanner.has_other_case(index) {
                return Err(InvalidRequest::OtherCase(role.name()));
            }
            let value = match self.scanner.value(index) {
                Lookup::Twice => return Err(InvalidRequest::Twice(role.name())),
                Lookup::Value(value) => Some(value),
                Lookup::Missing => None,
            };
            let number = value.and_then(most_that_is_read);
            match role {
                RequestRole::Model => request.model = value.and_then(Value::as_text).map(str::to_owned),
                RequestRole::MaxOutput => request.max_output = request.max_output.max(number),
                RequestRole::Answers => request.answers = request.answers.max(number.unwrap_or(1)),
                RequestRole::Stream => request.is_stream = value.is_some_and(may_be_true),
                RequestRole::Background => request.is_background = value.is_some_and(may_be_true),
                RequestRole::StreamOptions => {
                    if !matches!(value, None | Some(Value::Null | Value::Object)) {
                        return Err(InvalidRequest::OtherType(role.name()));
                    }
                    usage.options = value.zip(self.scanner.offset(index)).map(|(value, at)| (value.clone(), at));
                }
                RequestRole::AsksForUsage => {
                    // A server may read the text "false" or the number 0 as `false`, and then tells no usage.
                    if !matches!(value, None | Some(Value::Null | Value::Bool(_))) {
                        return Err(InvalidRequest::OtherType(role.name()));
                    }
                    usage.is_asked = value == Some(&Value::Bool(true));
                    usage.is_known = true;
                    usage.answer = value.zip(self.scanner.offset(index)).map(|(value, at)| (value.clone(), at));
                }
                RequestRole::Elsewhere | RequestRole::ElsewhereString => {
                    request.has_content_elsewhere |= self.scanner.bytes(index) > 0;
                }
                RequestRole::Medium | RequestRole::Body => {}
            }
        }
        if !request.is_stream {
            request.tells_usage = !request.is_background;
        } else {
            request.tells_usage = !usage.is_known || usage.is_asked;
            request.usage_question = usage.question();
        }
        Ok(request)
    }
}

/// The largest number that a server may read in a value: some take a text such as `"100"` for its number. `None` if no
/// server reads a number in it.
fn most_that_is_read(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.ceil(0),
        Value::Text(text) => Number::in_text(text)?.ceil(0),
        Value::TooLong => Some(u64::MAX),
        Value::Null | Value::Bool(_) | Value::Array | Value::Object => None,
    }
}

/// Whether some server may read the value as `true`: some take a number or a text for it, or anything that is not empty.
fn may_be_true(value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value,
        Value::Number(number) => number.ceil(0) != Some(0),
        Value::Text(text) => {
            !["", "false", "f", "0", "no", "n", "off"].iter().any(|word| text.trim().eq_ignore_ascii_case(word))
        }
        Value::TooLong | Value::Array | Value::Object => true,
        Value::Null => false,
    }
}

/// Where a body says whether its stream is to end with the usage.
#[derive(Clone, Debug, Default)]
struct UsagePlaces {
    /// Whether requests in this format must ask for the usage of a stream.
    is_known: bool,
    is_asked: bool,
    root: Option<u64>,
    options: Option<(Value, u64)>,
    answer: Option<(Value, u64)>,
}

impl UsagePlaces {
    fn question(&self) -> Option<UsageQuestion> {
        if !self.is_known {
            return None;
        }
        let replace = |offset, replaced, text| Some(UsageQuestion { offset, replaced, text, is_member: false });
        let insert = |brace: u64, text| Some(UsageQuestion { offset: brace + 1, replaced: 0, text, is_member: true });
        match (&self.options, &self.answer) {
            (_, Some((Value::Bool(false), at))) => replace(*at, 5, "true"),
            (_, Some((Value::Null, at))) => replace(*at, 4, "true"),
            (_, Some(_)) => None,
            (Some((Value::Object, at)), None) => insert(*at, "\"include_usage\":true"),
            (Some((Value::Null, at)), None) => replace(*at, 4, "{\"include_usage\":true}"),
            (Some(_), None) => None,
            (None, None) => insert(self.root?, "\"stream_options\":{\"include_usage\":true}"),
        }
    }
}

impl UsageQuestion {
    /// Returns the parts of the changed body, which asks for the number of used tokens. `None` if `body` is too short to
    /// be the body that this question was made for.
    pub fn ask<'b>(&self, body: &'b [u8]) -> Option<AskingBody<'b>> {
        let (before, rest) = body.split_at_checked(usize::try_from(self.offset).ok()?)?;
        let after = rest.get(usize::try_from(self.replaced).ok()?..)?;
        let is_empty = after.trim_ascii_start().starts_with(b"}");
        let comma = if self.is_member && !is_empty { "," } else { "" };
        Some(AskingBody { before, question: self.text, comma, after })
    }
}

/// The parts of a body that asks for the usage of its stream, in the order in which they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskingBody<'b> {
    pub before: &'b [u8],
    pub question: &'static str,
    pub comma: &'static str,
    pub after: &'b [u8],
}

impl RequestRole {
    fn name(self) -> &'static str {
        match self {
            RequestRole::Model => "the model",
            RequestRole::MaxOutput => "the maximum of output tokens",
            RequestRole::Answers => "the number of answers",
            RequestRole::Stream => "stream",
            RequestRole::Background => "background",
            RequestRole::StreamOptions | RequestRole::AsksForUsage => "stream_options",
            RequestRole::Elsewhere | RequestRole::ElsewhereString => "the place of content",
            RequestRole::Medium => "a medium",
            RequestRole::Body => "the body",
        }
    }
}

impl LlmRequest {
    /// Whether the response will tell its usage. `gateway_asks`: the gateway asks if the client does not.
    pub fn tells_usage(&self, gateway_asks: bool) -> bool {
        self.tells_usage || gateway_asks && self.usage_question.is_some()
    }

    /// The largest number of tokens that all answers together may have. `default` is for a request without a maximum.
    pub fn most_output(&self, default: u64) -> u64 {
        self.max_output.unwrap_or(default).saturating_mul(self.answers)
    }

    /// Estimates the tokens of the request itself: one for `bytes_per_token` bytes of text, rounded up, and `media` for each
    /// image or other medium. If the request names content elsewhere, `elsewhere` is added.
    pub fn input_estimate(&self, bytes_per_token: NonZeroU64, media: u64, elsewhere: u64) -> u64 {
        let text = self.text_bytes.div_ceil(bytes_per_token.get());
        let media = self.media.min(MOST_MEDIA).saturating_mul(media);
        text.saturating_add(media).saturating_add(if self.has_content_elsewhere { elsewhere } else { 0 })
    }
}

//! Requests of every format: what they may cost, in pieces of every size.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::num::NonZeroU64;

use llm::formats::Format;
use llm::json::JsonError;
use llm::request::{AskingBody, InvalidRequest, LlmRequest, RequestReader};
use serde_json::{Value, json};

/// Reads a request in pieces of every size, which must not matter.
fn read(format: Format, body: &str) -> Result<LlmRequest, InvalidRequest> {
    let in_pieces = |size: usize| {
        let mut reader = RequestReader::new(format, 1 << 20);
        body.as_bytes().chunks(size).for_each(|piece| reader.push(piece));
        reader.finish()
    };
    let whole = in_pieces(body.len().max(1));
    (1..body.len().min(64)).for_each(|size| assert_eq!(in_pieces(size), whole, "pieces of {size}"));
    whole
}

fn request(format: Format, body: Value) -> LlmRequest {
    read(format, &body.to_string()).unwrap()
}

/// A request without a maximum, a stream or media.
fn plain(model: Option<&str>, text_bytes: u64) -> LlmRequest {
    LlmRequest {
        model: model.map(str::to_owned),
        max_output: None,
        answers: 1,
        is_stream: false,
        tells_usage: true,
        text_bytes,
        media: 0,
        has_content_elsewhere: false,
        is_background: false,
        usage_question: None,
    }
}

#[test]
fn each_format_names_its_model_and_its_maximum() {
    let chat = json!({"model": "m", "max_tokens": 5, "max_completion_tokens": 7, "n": 3});
    let chat = request(Format::OpenAiChat, chat);
    assert_eq!((chat.model.as_deref(), chat.max_output, chat.answers), (Some("m"), Some(7), 3));
    assert_eq!((chat.most_output(100), plain(None, 0).most_output(100)), (21, 100));
    let responses = request(Format::OpenAiResponses, json!({"model": "m", "max_output_tokens": 9, "n": 5}));
    assert_eq!((responses.max_output, responses.most_output(1)), (Some(9), 9));
    let messages = request(Format::AnthropicMessages, json!({"model": "c", "max_tokens": 11, "stream": true}));
    assert_eq!((messages.max_output, messages.is_stream, messages.usage_question), (Some(11), true, None));
    for config in [
        json!({"generationConfig": {"maxOutputTokens": 12, "candidateCount": 2}}),
        json!({"generation_config": {"max_output_tokens": 12, "candidate_count": 2}}),
        json!({"generation_config": {"maxOutputTokens": 12, "candidateCount": 2}}),
    ] {
        let gemini = request(Format::Gemini, config);
        assert_eq!((gemini.model.clone(), gemini.most_output(1)), (None, 24));
    }
    // Embeddings have no output.
    let embeddings = request(Format::OpenAiEmbeddings, json!({"model": "e", "input": "abc"}));
    assert_eq!(embeddings, LlmRequest { max_output: Some(0), ..plain(Some("e"), 14) });
}

#[test]
fn a_response_in_the_background_tells_its_usage_only_as_a_stream() {
    let read = |stream, background| {
        let body = json!({"stream": stream, "background": background});
        let read = request(Format::OpenAiResponses, body);
        (read.is_background, read.tells_usage)
    };
    assert_eq!([read(false, true), read(true, true)], [(true, false), (true, true)]);
    assert_eq!([read(false, false), read(true, false)], [(false, true); 2]);
    assert!(!request(Format::OpenAiChat, json!({"background": true})).is_background);
}

#[test]
fn numbers_that_are_none_are_as_if_they_were_missing() {
    for wrong in [json!(null), json!("five"), json!(-5), json!([5]), json!({"a": 5}), json!(true)] {
        let read =
            request(Format::OpenAiChat, json!({"max_tokens": wrong, "n": wrong, "model": wrong, "stream": wrong}));
        let model = wrong.as_str().map(str::to_owned);
        assert_eq!((read.max_output, read.answers, read.model), (None, 1, model), "{wrong}");
    }
    let rounded = read(Format::OpenAiChat, r#"{"max_tokens":1.5,"n":0}"#).unwrap();
    assert_eq!((rounded.max_output, rounded.answers), (Some(2), 1));
    let huge = read(Format::OpenAiChat, r#"{"max_tokens":1e99,"n":1e99}"#).unwrap();
    assert_eq!(huge.most_output(1), u64::MAX);
}

#[test]
fn what_lenient_servers_read_as_a_number_counts_as_it() {
    for text in ["100000", " 100000\n", "+100000", "0100000", "100_000", "1e5", "100000.", "99999.5"] {
        let read = request(Format::OpenAiChat, json!({"max_tokens": 5, "max_completion_tokens": text, "n": text}));
        assert_eq!((read.max_output, read.answers), (Some(100_000), 100_000), "{text:?}");
    }
    for text in ["-5", "5 tokens", "0x10", "", "_", ".", "1e", "inf", "--5", "+-5", "5,000"] {
        let read = request(Format::OpenAiChat, json!({"max_tokens": text, "n": text}));
        assert_eq!((read.max_output, read.answers), (None, 1), "{text:?}");
    }
    // The digits after the point are too many to be kept.
    let long = read(Format::OpenAiChat, &format!(r#"{{"max_tokens":1.{}1e5}}"#, "0".repeat(2000))).unwrap();
    assert_eq!(long.most_output(1), u64::MAX);
    for (stream, is_stream) in [
        (json!("True"), true),
        (json!(1), true),
        (json!("on"), true),
        (json!("please"), true),
        (json!({}), true),
        (json!(0), false),
        (json!("False"), false),
        (json!(""), false),
        (json!(null), false),
    ] {
        let read = request(Format::OpenAiChat, json!({"stream": stream}));
        assert_eq!((read.is_stream, read.tells_usage(false)), (is_stream, !is_stream), "{stream}");
    }
}

#[test]
fn media_count_once_and_content_elsewhere_is_seen() {
    let picture = "x".repeat(4000);
    let data_url = format!("data:image/png;base64,{picture}");
    let function = json!({"parts": [{"inline_data": {"data": picture}}]});
    let here: [(Format, Value); 9] = [
        (Format::OpenAiChat, json!({"messages": [{"content": [{"image_url": data_url}]}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": [{"file": {"file_data": data_url}}]}]})),
        (Format::OpenAiResponses, json!({"input": [{"output": [{"image_url": data_url}]}]})),
        (Format::Gemini, json!({"contents": [{"parts": [{"functionResponse": function}]}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": [{"image_url": {"url": data_url}}]}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": [{"input_audio": {"data": picture}}]}]})),
        (Format::OpenAiResponses, json!({"input": [{"content": [{"image_url": data_url}]}]})),
        (Format::AnthropicMessages, json!({"messages": [{"content": [{"source": {"data": picture}}]}]})),
        (Format::Gemini, json!({"contents": [{"parts": [{"inlineData": {"data": picture}}]}]})),
    ];
    for (format, body) in here {
        let read = request(format, body.clone());
        assert_eq!((read.media, read.has_content_elsewhere), (1, false), "{body}");
        assert!(read.text_bytes < 60, "{}", read.text_bytes);
        let four = NonZeroU64::new(4).unwrap();
        assert_eq!(read.input_estimate(four, 1500, 4096), read.text_bytes.div_ceil(4) + 1500);
    }
    let address = "https://a/b";
    let elsewhere: [(Format, Value); 28] = [
        (Format::OpenAiChat, json!({"messages": [{"content": [{"image_url": {"url": address}}]}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": [{"audio_url": {"url": address}}]}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": [{"image_url": address}]}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": [{"document_url": address}]}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": {"image_url": address}}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": [{"file": {"file_data": address}}]}]})),
        (Format::OpenAiResponses, json!({"input": [{"output": [{"type": "input_image", "image_url": address}]}]})),
        (Format::OpenAiResponses, json!({"input": [{"output": [{"file_id": "f"}]}]})),
        (Format::OpenAiResponses, json!({"input": [{"output": {"type": "computer_screenshot", "file_id": "f"}}]})),
        (Format::OpenAiResponses, json!({"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]})),
        (Format::OpenAiResponses, json!({"tools": [{"type": "mcp", "server_url": address}]})),
        (Format::OpenAiResponses, json!({"tools": [{"container": "cntr_1"}]})),
        (Format::OpenAiResponses, json!({"tools": [{"container": {"type": "auto", "file_ids": ["f"]}}]})),
        (Format::AnthropicMessages, json!({"mcp_servers": [{"type": "url", "url": address}]})),
        (
            Format::AnthropicMessages,
            json!({"messages": [{"content": [{"source": {"content": [{"source": {"url": address}}]}}]}]}),
        ),
        (Format::Gemini, json!({"contents": [{"parts": [{"fileData": {"file_uri": "gs://a"}}]}]})),
        (Format::Gemini, json!({"contents": {"parts": {"file_data": {"fileUri": "gs://a"}}}})),
        (Format::Gemini, json!({"systemInstruction": {"parts": [{"fileData": {"fileUri": "gs://a"}}]}})),
        (Format::Gemini, json!({"system_instruction": {"parts": {"file_data": {"file_uri": "gs://a"}}}})),
        (
            Format::Gemini,
            json!({"contents": [{"parts": [{"functionResponse": {"parts": [{"fileData": {"fileUri": "gs://a"}}]}}]}]}),
        ),
        (Format::Gemini, json!({"tools": [{"file_search": {"fileSearchStoreNames": ["fileSearchStores/a"]}}]})),
        (Format::Gemini, json!({"tools": [{"retrieval": {"vertexAiSearch": {"datastore": "projects/a"}}}]})),
        (Format::OpenAiResponses, json!({"previous_response_id": "resp_1"})),
        (Format::OpenAiResponses, json!({"conversation": {"id": "conv_1"}})),
        (Format::OpenAiResponses, json!({"input": [{"content": [{"file_id": "f"}, {"file_id": "g"}]}]})),
        (Format::AnthropicMessages, json!({"messages": [{"content": [{"source": {"url": "https://a/b"}}]}]})),
        (Format::Gemini, json!({"cachedContent": "cachedContents/1"})),
        (Format::Gemini, json!({"contents": [{"parts": [{"file_data": {"file_uri": "gs://a"}}]}]})),
    ];
    for (format, body) in elsewhere {
        let read = request(format, body.clone());
        assert!(read.has_content_elsewhere, "{body}");
        assert_eq!(read.input_estimate(NonZeroU64::MIN, 0, 4096), read.text_bytes + 4096);
    }
    // Text is no medium, although it begins as a data URL or stands in the place of a medium.
    let prose = "a b, ".repeat(1000);
    let source = json!({"type": "text", "media_type": "text/plain", "data": prose});
    let text: [(Format, Value); 8] = [
        // What a model reads as text, too.
        (Format::OpenAiChat, json!({"messages": [{"content": data_url.repeat(2)}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": format!("data:;base64,{}", "x".repeat(5000))}]})),
        (Format::OpenAiResponses, json!({"input": format!("data:;base64,{}", "x".repeat(5000))})),
        (Format::OpenAiChat, json!({"messages": [{"content": format!("data: {prose}")}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": format!("data:text/plain;base64,{prose}")}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": format!("data:text/plain,{prose}")}]})),
        (Format::OpenAiChat, json!({"messages": [{"content": format!("data{prose}")}]})),
        (Format::AnthropicMessages, json!({"messages": [{"content": [{"source": source}]}]})),
    ];
    for (format, body) in text {
        let read = request(format, body);
        assert!(read.media == 0 && read.text_bytes >= 5000, "{} media, {} bytes", read.media, read.text_bytes);
    }
    let many = vec![json!({"image_url": {"url": "data:;base64,AAAA"}}); 5000];
    let many = json!({"messages": [{"content": many}]});
    let (one, many) = (NonZeroU64::MIN, request(Format::OpenAiChat, many));
    assert_eq!(many.input_estimate(one, 1500, 0), many.text_bytes + 4096 * 1500);
    for none in [
        json!({"previous_response_id": null}),
        json!({"input": "text"}),
        json!({"input": [{"output": "text"}, {"output": [{"type": "input_text", "text": "t"}]}]}),
        json!({"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": []}}]}),
    ] {
        assert!(!request(Format::OpenAiResponses, none.clone()).has_content_elsewhere, "{none}");
    }
    // One image is in the request and the other is elsewhere, in any order.
    let both = json!([{"image_url": {"url": "https://a/b"}}, {"image_url": {"url": data_url}}]);
    let read = request(Format::OpenAiChat, json!({"messages": [{"content": both}]}));
    assert_eq!((read.media, read.has_content_elsewhere), (1, true));
}

#[test]
fn a_stream_is_asked_for_its_usage_by_the_smallest_change() {
    for (body, asked) in [
        (r#"{"stream":true}"#, r#"{"stream_options":{"include_usage":true},"stream":true}"#),
        (r#" { "stream" : true }"#, r#" {"stream_options":{"include_usage":true}, "stream" : true }"#),
        (r#"{"stream":true,"stream_options":null}"#, r#"{"stream":true,"stream_options":{"include_usage":true}}"#),
        (r#"{"stream":true,"stream_options":{ }}"#, r#"{"stream":true,"stream_options":{"include_usage":true }}"#),
        (
            r#"{"stream":true,"stream_options":{"a":1}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true,"a":1}}"#,
        ),
        (
            r#"{"stream":true,"stream_options":{"include_usage":false}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"stream_options":{"include_usage" : null},"stream":true}"#,
            r#"{"stream_options":{"include_usage" : true},"stream":true}"#,
        ),
    ] {
        let before = read(Format::OpenAiChat, body).unwrap();
        assert!(!before.tells_usage(false) && before.tells_usage(true));
        let AskingBody { before, question, comma, after } =
            before.usage_question.unwrap().ask(body.as_bytes()).unwrap();
        let changed = [before, question.as_bytes(), comma.as_bytes(), after].concat();
        let changed = String::from_utf8(changed).unwrap();
        assert_eq!(changed, asked);
        let after = read(Format::OpenAiChat, &changed).unwrap();
        assert_eq!((after.tells_usage(false), after.usage_question), (true, None));
    }
    for body in [r#"{"stream":false}"#, r#"{}"#, r#"{"stream":true,"stream_options":{"include_usage":true}}"#] {
        assert_eq!(read(Format::OpenAiChat, body).unwrap().usage_question, None, "{body}");
    }
    let other = read(Format::OpenAiResponses, r#"{"stream":true}"#).unwrap();
    assert_eq!(other.usage_question, None);
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    let error = |body: &str| read(Format::OpenAiChat, body).unwrap_err();
    assert_eq!(error(r#"{"model":"a","model":"b"}"#), InvalidRequest::Twice("the model"));
    assert_eq!(error(r#"{"max_tokens":1,"max_tokens":1}"#), InvalidRequest::Twice("the maximum of output tokens"));
    assert_eq!(error(r#"{"stream_options":{},"stream_options":{}}"#), InvalidRequest::Twice("stream_options"));
    assert_eq!(error(r#"[{"model":"a"}]"#), InvalidRequest::NotAnObject);
    assert_eq!(error(r#""model""#), InvalidRequest::NotAnObject);
    assert_eq!(error(""), InvalidRequest::Json(JsonError::Incomplete));
    assert_eq!(error(r#"{"model":"a"} {}"#), InvalidRequest::Json(JsonError::Syntax { offset: 14 }));
    let mut long = RequestReader::new(Format::OpenAiChat, 10);
    long.push(br#"{"model":"a"}"#);
    assert_eq!(long.finish().unwrap_err(), InvalidRequest::Json(JsonError::TooLong));
    // Both are spellings of one name in JSON of protocol buffers.
    let twice = read(Format::Gemini, r#"{"generationConfig":{"maxOutputTokens":1,"max_output_tokens":9}}"#);
    assert_eq!(twice, Err(InvalidRequest::Twice("the maximum of output tokens")));
    // A name from which no setting is read may occur twice.
    assert!(read(Format::OpenAiChat, r#"{"user":"a","user":"b"}"#).is_ok());
}

/// Servers may read such a value as `false`, and then a stream tells no usage.
#[test]
fn a_question_for_the_usage_that_is_no_boolean_is_refused() {
    for value in ["\"false\"", "\"true\"", "0", "1", "[]", "{}"] {
        let body = format!(r#"{{"stream":true,"stream_options":{{"include_usage":{value}}}}}"#);
        assert_eq!(read(Format::OpenAiChat, &body), Err(InvalidRequest::OtherType("stream_options")), "{body}");
    }
    for value in ["\"{}\"", "true", "0", "[]"] {
        let body = format!(r#"{{"stream":true,"stream_options":{value}}}"#);
        assert_eq!(read(Format::OpenAiChat, &body), Err(InvalidRequest::OtherType("stream_options")), "{body}");
    }
}

#[test]
fn a_name_in_another_case_is_refused() {
    for (body, what) in [
        (r#"{"MODEL":"a"}"#, "the model"),
        (r#"{"model":"a","Model":"b"}"#, "the model"),
        (r#"{"max_tokens":1,"Max_Tokens":100000}"#, "the maximum of output tokens"),
        (r#"{"max_to\u212Aens":100000}"#, "the maximum of output tokens"),
        (r#"{"ſtream":true}"#, "stream"),
        (r#"{"N":9}"#, "the number of answers"),
        (r#"{"Stream_options":{"include_usage":true}}"#, "stream_options"),
        (r#"{"stream_options":{"Include_Usage":true}}"#, "stream_options"),
        (r#"{"messages":[{"content":[{"image_URL":{"url":"https://a/b"}}]}]}"#, "the place of content"),
    ] {
        assert_eq!(read(Format::OpenAiChat, body), Err(InvalidRequest::OtherCase(what)), "{body}");
    }
    let gemini = read(Format::Gemini, r#"{"generationConfig":{"MaxOutputTokens":9}}"#);
    assert_eq!(gemini, Err(InvalidRequest::OtherCase("the maximum of output tokens")));
    // Names of other objects, and names that no setting is read from, may be in any case.
    assert!(read(Format::OpenAiChat, r#"{"USER":"a","metadata":{"Model":"b"},"messages":[{"Model":"c"}]}"#).is_ok());
}

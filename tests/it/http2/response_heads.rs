//! Responses of HTTP/2 upstreams: their heads are checked as strictly as those of HTTP/1.1, and they end where their heads
//! say.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{before_http2, before_http2_with};
use crate::support::Gateway;
use crate::support::http2::Http2Client;
use crate::support::http2_frames::{DATA, END_HEADERS, END_STREAM, HEADERS, fields_block, frame, response, upstream};

/// Makes the bytes that an upstream sends for a stream.
type Answer = Box<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

/// Starts a gateway and an upstream that sends one of these answers. Also returns the index that chooses the answer.
fn answering(answers: Vec<Answer>) -> (Gateway, Arc<AtomicUsize>) {
    let index = Arc::new(AtomicUsize::new(0));
    let chosen = Arc::clone(&index);
    let address = upstream(&[], move |_, connection| {
        while let Some(frame) = connection.next_of_stream() {
            let answer = &answers[chosen.load(Ordering::Relaxed)];
            if frame.kind == HEADERS && connection.try_write(&answer(frame.stream)).is_err() {
                return;
            }
        }
    });
    let gateway = before_http2_with(address, ", retries: {max: 0}, ejection: false");
    (gateway.with("limits: {header_bytes: 4KiB}").start(), index)
}

/// Returns a response with these fields and the body `ok`.
fn with(fields: &'static [(&'static str, &'static str)]) -> Answer {
    Box::new(move |stream| [response(stream, 200, fields, 0), frame(DATA, END_STREAM, stream, b"ok")].concat())
}

/// Returns a head with only these fields.
fn only(fields: Vec<(&'static str, &'static str)>) -> Answer {
    Box::new(move |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields_block(&fields)))
}

#[test]
fn a_head_with_more_than_one_reading_is_a_502_of_which_nothing_reaches_the_client() {
    let long: &str = "x".repeat(5000).leak();
    let invalid = vec![
        ("the same length twice", with(&[("content-length", "2"), ("content-length", "2"), ("x-evil", "1")])),
        ("two lengths", with(&[("content-length", "2"), ("content-length", "9"), ("x-evil", "1")])),
        ("a list of lengths", with(&[("content-length", "2, 2"), ("x-evil", "1")])),
        ("an invalid length", with(&[("content-length", "+2"), ("x-evil", "1")])),
        ("a length in another spelling", with(&[("content_length", "9"), ("x-evil", "1")])),
        ("a field of the connection", with(&[("connection", "close"), ("x-evil", "1")])),
        ("chunks", with(&[("transfer-encoding", "chunked"), ("x-evil", "1")])),
        ("a name in capitals", with(&[("X-Evil", "1")])),
        ("a line end in a value", with(&[("x-other", "a\r\nx-evil: 1")])),
        ("a status behind a field", only(vec![("x-evil", "1"), (":status", "200")])),
        ("two statuses", only(vec![(":status", "200"), (":status", "204"), ("x-evil", "1")])),
        ("no status", only(vec![("x-evil", "1")])),
        ("a status of letters", only(vec![(":status", "abc"), ("x-evil", "1")])),
        ("a status of two digits", only(vec![(":status", "99"), ("x-evil", "1")])),
        ("an upgrade", only(vec![(":status", "101"), ("x-evil", "1")])),
        ("a head beyond limits.header_bytes", only(vec![(":status", "200"), ("x-evil", long)])),
    ];
    let (names, mut answers): (Vec<_>, Vec<_>) = invalid.into_iter().unzip();
    answers.push(with(&[]));
    let (gateway, index) = answering(answers);
    for (number, name) in names.iter().enumerate() {
        index.store(number, Ordering::Relaxed);
        let response = Http2Client::connect(gateway.http).get("/", &[]);
        assert_eq!((response.status, response.head.get("x-evil")), (502, None), "{name}");
        let response = gateway.client().get("/", &[]);
        assert_eq!((response.status, response.field("x-evil")), (502, None), "{name}");
        index.store(names.len(), Ordering::Relaxed);
        assert_eq!(gateway.client().get("/", &[]).body, "ok", "after {name}");
    }
}

#[test]
fn a_body_that_differs_from_its_length_is_no_whole_response() {
    let (gateway, index) = answering(vec![with(&[("content-length", "9")]), with(&[("content-length", "1")])]);
    for number in [0, 1] {
        index.store(number, Ordering::Relaxed);
        let error =
            Http2Client::connect(gateway.http).begin("GET", "/", &[], true).response().map(|whole| whole.status);
        assert!(matches!(&error, Err(error) if error.is_reset()) || matches!(error, Ok(502)), "{error:?}");
        let mut client = gateway.client();
        client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        match client.response("GET") {
            Ok(response) => assert_eq!(response.status, 502),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{error}")
            }
        }
    }
}

#[test]
fn trailers_behind_an_empty_body_pass() {
    let answer: fn(u32) -> Vec<u8> = |stream| {
        let trailers = fields_block(&[("grpc-status", "7"), ("grpc-message", "no")]);
        let trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers);
        [response(stream, 200, &[("content-type", "application/grpc"), ("content-length", "0")], 0), trailers].concat()
    };
    let address = upstream(&[], move |_, connection| {
        while let Some(frame) = connection.next_of_stream() {
            if frame.kind == HEADERS {
                connection.write(&answer(frame.stream));
            }
        }
    });
    let gateway = before_http2(address).start();
    let call = [("te", "trailers"), ("content-type", "application/grpc")];
    let response = Http2Client::connect(gateway.http).send("POST", "/a/b", &call, &[]);
    assert_eq!(response.status, 200);
    let trailers = response.trailers.expect("no trailers");
    assert_eq!((&trailers["grpc-status"], &trailers["grpc-message"]), (&"7".parse().unwrap(), &"no".parse().unwrap()));
}

//! Trailers with pseudo-header fields: the stream is reset, and its message never looks whole (RFC 9113, section 8.1).

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{before, before_http2_with};
use crate::support::Upstream;
use crate::support::http2_frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, FrameClient, HEADERS, PADDED, RST_STREAM, fields_block, frame,
    get, response, upstream,
};

const PROTOCOL_ERROR: u32 = 1;
/// The flags of a block in one frame that ends its stream.
const WHOLE: u8 = END_HEADERS | END_STREAM;

/// Returns blocks of trailers with the pseudo-header field `pseudo`. `table` is the same field as one that the sender adds to
/// its table of fields, or as one that it has added last.
fn malformed(pseudo: (&str, &str), table: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let indexed = match pseudo.0 {
        ":path" => 0x84,
        _ => 0x88,
    };
    let sum: &[u8] = &fields_block(&[("x-sum", "1")]);
    vec![
        ("a literal", fields_block(&[pseudo, ("x-sum", "1")])),
        ("behind a field", fields_block(&[("x-sum", "1"), pseudo])),
        ("of HPACK's table", [&[indexed], sum].concat()),
        ("alone", vec![indexed]),
        ("of the sender's table", [table, sum].concat()),
    ]
}

#[test]
fn of_a_request_they_reset_the_stream_and_nothing_whole_reaches_the_upstream() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).start();
    let mut client = FrameClient::connect(gateway.http);
    // `:path: /post`, added to the client's table.
    let added = [&[0x83, 0x86, 0x41, 6][..], b"a.test", &[0x44, 5], b"/post"].concat();
    let mut stream = 1;
    let mut send = |client: &mut FrameClient, trailers: &dyn Fn(u32) -> Vec<u8>| {
        stream += 2;
        let head = frame(HEADERS, END_HEADERS, stream, &added);
        client.write(&[head, frame(DATA, 0, stream, b"body"), trailers(stream)].concat());
        stream
    };
    for (what, trailers) in malformed((":path", "/evil"), &[0xbe]) {
        let (first, rest) = trailers.split_at(trailers.len() / 2);
        let padded = [&[2], &*trailers, &[0, 0]].concat();
        let in_one_frame = |stream| frame(HEADERS, WHOLE, stream, &trailers);
        let in_two_frames = |stream| {
            [frame(HEADERS, END_STREAM, stream, first), frame(CONTINUATION, END_HEADERS, stream, rest)].concat()
        };
        let with_padding = |stream| frame(HEADERS, WHOLE | PADDED, stream, &padded);
        let forms: [&dyn Fn(u32) -> Vec<u8>; 3] = [&in_one_frame, &in_two_frames, &with_padding];
        for (index, form) in forms.into_iter().enumerate() {
            let stream = send(&mut client, form);
            let reset = client.until(|frame| frame.stream == stream);
            assert_eq!(reset.kind, RST_STREAM, "{what}, form {index}: {reset:?}");
            assert_eq!(reset.error_code(), PROTOCOL_ERROR, "{what}, form {index}");
        }
    }
    assert_eq!(upstream.count(), 0);
    // The connection goes on, and trailers without such fields pass.
    let sums = fields_block(&[("x-sum", "1"), ("x-sum", "2")]);
    let stream = send(&mut client, &|stream| frame(HEADERS, WHOLE, stream, &sums));
    assert_eq!(client.outcome(stream), Ok(200));
    assert_eq!(upstream.last().body, b"body");
    client.write(&get(stream + 2, "/"));
    assert_eq!(client.outcome(stream + 2), Ok(200));
    assert_eq!(upstream.count(), 2);
}

#[test]
fn of_a_response_they_end_it_early_and_no_other_one_of_the_connection() {
    // `:status: 201`, added to the upstream's table.
    let blocks = malformed((":status", "200"), &[0x48, 3, b'2', b'0', b'1']);
    let count = blocks.len();
    let names: Vec<_> = blocks.iter().map(|(what, _)| *what).collect();
    let address = upstream(&[], move |_, connection| {
        while let Some(received) = connection.next_of_stream() {
            if received.kind != HEADERS {
                continue;
            }
            let stream = received.stream;
            // The requests come one after another, with a valid response after all others.
            let index = usize::try_from(stream / 2).unwrap() / 2;
            let trailers = blocks.get(index).map(|(_, block)| block.clone());
            let valid = fields_block(&[("x-sum", "1"), ("x-sum", "2")]);
            let end = frame(HEADERS, WHOLE, stream, trailers.as_deref().unwrap_or(&valid));
            let answer = [response(stream, 200, &[], 0), frame(DATA, 0, stream, b"body"), end];
            if connection.try_write(&answer.concat()).is_err() {
                return;
            }
        }
    });
    let gateway = before_http2_with(address, ", retries: {max: 0}, ejection: false").start();
    let mut http2 = FrameClient::connect(gateway.http);
    for (index, what) in names.iter().enumerate() {
        let stream = u32::try_from(2 * index + 1).unwrap();
        http2.write(&get(stream, "/"));
        // The reset may overtake what came before.
        let ends = |frame: &Frame| frame.kind == RST_STREAM || frame.flags & END_STREAM != 0;
        let end = http2.until(|frame| frame.stream == stream && ends(frame));
        assert_eq!(end.kind, RST_STREAM, "{what}: {end:?}");
        let mut http1 = TcpStream::connect(gateway.http).unwrap();
        http1.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n").unwrap();
        let mut read = Vec::new();
        let _ = http1.read_to_end(&mut read);
        let read = String::from_utf8(read).unwrap();
        assert!(!read.contains("\r\n0\r\n") && !read.contains("x-sum"), "{what}: {read}");
    }
    let failed = f64::from(u32::try_from(2 * count).unwrap());
    gateway.expect("tollgate_upstream_errors_total", &["kind=\"invalid_answer\""], failed);
    let stream = u32::try_from(2 * count + 1).unwrap();
    http2.write(&get(stream, "/"));
    assert_eq!(http2.outcome(stream), Ok(200));
    let trailers = http2.until(|frame| frame.stream == stream && frame.kind == HEADERS);
    assert!(trailers.flags & END_STREAM != 0);
}

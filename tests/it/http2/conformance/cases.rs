//! The test cases by section of the RFCs: the bytes to send, and the required reaction of the server.

use crate::support::http2_frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, PRIORITY, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, WITH_PRIORITY, block, fields_block, frame, get, request,
};

pub const PROTOCOL: u32 = 1;
const FLOW_CONTROL: u32 = 3;
pub const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE: u32 = 6;
pub const COMPRESSION: u32 = 9;

pub const WHOLE: u8 = END_HEADERS | END_STREAM;

/// The reaction of a server that a section requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// The connection continues.
    Lives,
    /// Stream 1 gets a response with 200, and the connection continues.
    Serves,
    /// Stream 1 is reset with this code, and the connection continues.
    Resets(u32),
    /// The connection is closed with this code, or with PROTOCOL_ERROR, which the h2 crate uses for most errors.
    Closes(u32),
    /// The stream is reset or the connection closed: an endpoint may treat a stream error as a connection error (section
    /// 5.4.2).
    Fails(u32),
}
use Reaction::{Closes, Fails, Lives, Resets, Serves};

/// A section, the bytes that are sent for it, and the required reaction.
type Case = (&'static str, Vec<u8>, Reaction);

/// Returns a header block for `/slow`, which is answered after a while.
fn slow() -> Vec<u8> {
    block("GET", "/slow", &[])
}

/// Returns the head with these pseudo-header fields and other fields.
fn pseudo(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, WHOLE, 1, &fields_block(fields))
}

pub fn setting(name: u8, value: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&[0, name][..], &value.to_be_bytes()].concat())
}

/// Returns the head of a GET, followed by these bytes.
fn head_and(more: &[u8]) -> Vec<u8> {
    frame(HEADERS, WHOLE, 1, &[&block("GET", "/", &[])[..], more].concat())
}

/// Returns the head of a GET from the static table, preceded by these bytes.
fn after(before: &[u8]) -> Vec<u8> {
    frame(HEADERS, WHOLE, 1, &[before, &[0x82, 0x86, 0x84, 0x01, 6], b"a.test"].concat())
}

pub fn frames() -> Vec<Case> {
    let (whole, open) = (block("GET", "/", &[]), frame(HEADERS, END_HEADERS, 1, &block("POST", "/", &[])));
    let begun = frame(HEADERS, END_STREAM, 1, &whole[..5]);
    let ping = frame(PING, 0, 0, b"12345678");
    let half_closed = frame(HEADERS, WHOLE, 1, &slow());
    let with = |more: &[u8]| [&half_closed[..], more].concat();
    let begun_and = |more: Vec<u8>| [begun.clone(), more].concat();
    let sized = |kind, flags, size: usize| frame(kind, flags, 1, &vec![b'x'; size]);
    vec![
        ("4.1 an unknown frame is ignored", frame(0x77, 0xff, 0, &[0; 8]), Lives),
        ("4.1 an undefined flag is ignored", frame(PING, 0x16 & !ACK, 0, b"12345678"), Lives),
        ("4.1 the reserved bit is ignored", [&get(1, "/")[..5], &[0x80], &get(1, "/")[6..]].concat(), Serves),
        ("4.2 a frame of the largest size", [&open[..], &sized(DATA, END_STREAM, 1 << 14)].concat(), Serves),
        ("4.2 DATA beyond it", [&open[..], &sized(DATA, END_STREAM, (1 << 14) + 1)].concat(), Fails(FRAME_SIZE)),
        ("4.2 HEADERS beyond it", sized(HEADERS, WHOLE, (1 << 14) + 1), Closes(FRAME_SIZE)),
        ("4.3 a PRIORITY in a header block", begun_and(frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])), Closes(PROTOCOL)),
        ("4.3 another stream in a header block", begun_and(get(3, "/")), Closes(PROTOCOL)),
        ("5.1 idle: DATA", frame(DATA, END_STREAM, 1, b"x"), Fails(PROTOCOL)),
        ("5.1 idle: RST_STREAM", frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]), Closes(PROTOCOL)),
        ("5.1 idle: WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 8]), Closes(PROTOCOL)),
        ("5.1 idle: CONTINUATION", frame(CONTINUATION, END_HEADERS, 1, &whole), Closes(PROTOCOL)),
        ("5.1 idle: PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]), Lives),
        ("5.1 half-closed: DATA", with(&frame(DATA, END_STREAM, 1, b"x")), Fails(STREAM_CLOSED)),
        ("5.1 half-closed: HEADERS", with(&frame(HEADERS, WHOLE, 1, &whole)), Fails(STREAM_CLOSED)),
        ("5.1 half-closed: CONTINUATION", with(&frame(CONTINUATION, END_HEADERS, 1, &whole)), Fails(PROTOCOL)),
        ("5.1 half-closed: WINDOW_UPDATE", with(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 8])), Serves),
        ("5.1 half-closed: PRIORITY", with(&frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])), Serves),
        ("5.1 half-closed: RST_STREAM", with(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])), Lives),
        ("5.1.1 an even stream", get(2, "/"), Closes(PROTOCOL)),
        ("5.1.1 a lower stream", [get(5, "/"), get(3, "/")].concat(), Closes(PROTOCOL)),
        ("5.4.1 an error of the connection", frame(PING, 0, 1, b"12345678"), Closes(PROTOCOL)),
        ("5.5 an unknown frame in a header block", begun_and(frame(0x77, 0, 1, &[0; 8])), Closes(PROTOCOL)),
        ("6.1 DATA", [&open[..], &frame(DATA, END_STREAM, 1, b"x")].concat(), Serves),
        ("6.1 DATA with padding", [&open[..], &frame(DATA, END_STREAM | PADDED, 1, b"\x02x\0\0")].concat(), Serves),
        ("6.1 DATA of stream 0", frame(DATA, END_STREAM, 0, b"x"), Closes(PROTOCOL)),
        (
            "6.1 more padding than payload",
            [&open[..], &frame(DATA, END_STREAM | PADDED, 1, b"\x02x")].concat(),
            Closes(PROTOCOL),
        ),
        ("6.2 HEADERS of stream 0", get(0, "/"), Closes(PROTOCOL)),
        ("6.2 HEADERS with padding", frame(HEADERS, WHOLE | PADDED, 1, &[&[1][..], &whole, &[0]].concat()), Serves),
        (
            "6.2 HEADERS with more padding than payload",
            frame(HEADERS, WHOLE | PADDED, 1, &[&[200][..], &whole].concat()),
            Closes(PROTOCOL),
        ),
        (
            "6.2 HEADERS with priority",
            frame(HEADERS, WHOLE | WITH_PRIORITY, 1, &[&[0, 0, 0, 0, 255][..], &whole].concat()),
            Serves,
        ),
        ("6.3 PRIORITY of stream 0", frame(PRIORITY, 0, 0, &[0, 0, 0, 0, 1]), Closes(PROTOCOL)),
        (
            "6.3 PRIORITY of another size",
            [&open[..], &frame(PRIORITY, 0, 1, &[0, 0, 0, 0])].concat(),
            Fails(FRAME_SIZE),
        ),
        (
            "6.3 PRIORITY before its stream",
            [frame(PRIORITY, 0, 7, &[0x80, 0, 0, 5, 200]), get(1, "/")].concat(),
            Serves,
        ),
        ("6.4 RST_STREAM of stream 0", frame(RST_STREAM, 0, 0, &[0, 0, 0, 8]), Closes(PROTOCOL)),
        (
            "6.4 RST_STREAM of another size",
            [&open[..], &frame(RST_STREAM, 0, 1, &[0, 0, 8])].concat(),
            Closes(FRAME_SIZE),
        ),
        ("6.5 SETTINGS", setting(3, 100), Lives),
        ("6.5 an acknowledgement with payload", frame(SETTINGS, ACK, 0, &[0, 3, 0, 0, 0, 1]), Closes(FRAME_SIZE)),
        ("6.5 SETTINGS of a stream", frame(SETTINGS, 0, 1, &[0, 3, 0, 0, 0, 1]), Closes(PROTOCOL)),
        ("6.5 SETTINGS of another size", frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0]), Closes(FRAME_SIZE)),
        ("6.5.2 ENABLE_PUSH of 2", setting(2, 2), Closes(PROTOCOL)),
        ("6.5.2 INITIAL_WINDOW_SIZE beyond its bound", setting(4, 1 << 31), Closes(FLOW_CONTROL)),
        ("6.5.2 MAX_FRAME_SIZE below its bound", setting(5, (1 << 14) - 1), Closes(PROTOCOL)),
        ("6.5.2 MAX_FRAME_SIZE beyond its bound", setting(5, 1 << 24), Closes(PROTOCOL)),
        ("6.5.2 an unknown setting", setting(0xff, 1), Lives),
        (
            "6.6 PUSH_PROMISE",
            [&open[..], &frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2][..], &whole].concat())].concat(),
            Closes(PROTOCOL),
        ),
        ("6.7 a PING that nobody asked for", frame(PING, ACK, 0, b"unasked!"), Lives),
        ("6.7 PING of a stream", frame(PING, 0, 3, b"12345678"), Closes(PROTOCOL)),
        ("6.7 PING of another size", frame(PING, 0, 0, b"123456"), Closes(FRAME_SIZE)),
        ("6.8 GOAWAY of a stream", frame(GOAWAY, 0, 1, &[0; 8]), Closes(PROTOCOL)),
        ("6.9 WINDOW_UPDATE of the connection", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]), Lives),
        ("6.9 WINDOW_UPDATE of nothing", frame(WINDOW_UPDATE, 0, 0, &[0; 4]), Closes(PROTOCOL)),
        (
            "6.9 WINDOW_UPDATE of nothing for a stream",
            [&open[..], &frame(WINDOW_UPDATE, 0, 1, &[0; 4])].concat(),
            Fails(PROTOCOL),
        ),
        ("6.9 WINDOW_UPDATE of another size", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1]), Closes(FRAME_SIZE)),
        (
            "6.9.1 a window beyond its bound",
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]).repeat(2),
            Closes(FLOW_CONTROL),
        ),
        (
            "6.9.1 a stream's window beyond its bound",
            with(&frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]).repeat(2)),
            Fails(FLOW_CONTROL),
        ),
        (
            "6.10 CONTINUATION",
            [begun.clone(), frame(CONTINUATION, 0, 1, &whole[5..9]), frame(CONTINUATION, END_HEADERS, 1, &whole[9..])]
                .concat(),
            Serves,
        ),
        ("6.10 another frame before CONTINUATION", begun_and(ping), Closes(PROTOCOL)),
        (
            "6.10 CONTINUATION of stream 0",
            begun_and(frame(CONTINUATION, END_HEADERS, 0, &whole[5..])),
            Closes(PROTOCOL),
        ),
        (
            "6.10 CONTINUATION after the end",
            [get(1, "/slow"), frame(CONTINUATION, END_HEADERS, 1, &whole)].concat(),
            Closes(PROTOCOL),
        ),
        (
            "6.10 CONTINUATION after DATA",
            [&open[..], &frame(DATA, 0, 1, b"x"), &frame(CONTINUATION, END_HEADERS, 1, &whole)].concat(),
            Closes(PROTOCOL),
        ),
        ("7 an unknown code of RST_STREAM", with(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 0xff])), Lives),
    ]
}

pub fn messages() -> Vec<Case> {
    let get = [(":method", "GET"), (":scheme", "http"), (":authority", "a.test"), (":path", "/")];
    let without = |name: &str| {
        let fields: Vec<_> = get.into_iter().filter(|(other, _)| *other != name).collect();
        pseudo(&fields)
    };
    let and = |more: &[(&'static str, &'static str)]| pseudo(&[&get[..], more].concat());
    let post =
        |fields: &[(&str, &str)], parts: &[Vec<u8>]| [&[request(1, "POST", "/", fields, 0)], parts].concat().concat();
    let data = |flags| frame(DATA, flags, 1, b"test");
    vec![
        ("8.1 GET", and(&[]), Serves),
        ("8.1 HEAD", request(1, "HEAD", "/", &[], END_STREAM), Serves),
        ("8.1 POST", post(&[("content-length", "4")], &[data(END_STREAM)]), Serves),
        (
            "8.1 POST with trailers",
            post(&[], &[data(0), frame(HEADERS, WHOLE, 1, &fields_block(&[("x-test", "ok")]))]),
            Serves,
        ),
        (
            "8.1 trailers that do not end the stream",
            post(&[], &[data(0), frame(HEADERS, END_HEADERS, 1, &fields_block(&[("x-test", "ok")]))]),
            Fails(PROTOCOL),
        ),
        (
            "8.1 trailers with a pseudo-header field",
            post(&[], &[data(0), frame(HEADERS, WHOLE, 1, &fields_block(&[(":method", "GET")]))]),
            Resets(PROTOCOL),
        ),
        (
            "8.1.1 a length that is not the body's",
            post(&[("content-length", "1")], &[data(END_STREAM)]),
            Resets(PROTOCOL),
        ),
        (
            "8.1.1 a length that is not that of all parts",
            post(&[("content-length", "1")], &[data(0), data(END_STREAM)]),
            Resets(PROTOCOL),
        ),
        ("8.2 a name in upper case", and(&[("X-TEST", "ok")]), Fails(PROTOCOL)),
        ("8.2.2 a field of the connection", and(&[("connection", "keep-alive")]), Resets(PROTOCOL)),
        ("8.2.2 another TE than trailers", and(&[("te", "trailers, deflate")]), Resets(PROTOCOL)),
        ("8.2.2 TE: trailers", and(&[("te", "trailers")]), Serves),
        ("8.3 an unknown pseudo-header field", and(&[(":test", "ok")]), Fails(PROTOCOL)),
        ("8.3 a pseudo-header field of responses", and(&[(":status", "200")]), Resets(PROTOCOL)),
        (
            "8.3 a pseudo-header field after others",
            [pseudo(&[
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "/"),
                ("x-test", "ok"),
                (":authority", "a.test"),
            ])]
            .concat(),
            Resets(PROTOCOL),
        ),
        ("8.3.1 no :method", without(":method"), Resets(PROTOCOL)),
        ("8.3.1 no :scheme", without(":scheme"), Resets(PROTOCOL)),
        ("8.3.1 no :path", without(":path"), Resets(PROTOCOL)),
        ("8.3.1 an empty :path", request(1, "GET", "", &[], END_STREAM), Resets(PROTOCOL)),
        ("8.3.1 :method twice", and(&[(":method", "GET")]), Resets(PROTOCOL)),
        ("8.3.1 :scheme twice", and(&[(":scheme", "http")]), Resets(PROTOCOL)),
        ("8.3.1 :path twice", and(&[(":path", "/")]), Resets(PROTOCOL)),
    ]
}

/// Returns the cases for RFC 7541. In the code of its appendix B, "test" is 49 50 9f.
pub fn compression() -> Vec<Case> {
    let coded = [0x49, 0x50, 0x9f];
    let literal = |first: u8, value: &[u8]| head_and(&[&[first][..], value].concat());
    let named = |first: u8, name: &[u8], value: &[u8]| head_and(&[&[first][..], name, value].concat());
    let (plain, compressed) = ([&[4][..], b"test"].concat(), [&[0x83][..], &coded].concat());
    let mut cases = vec![
        ("2.3.3 an index beyond the tables", head_and(&[0xc6]), Closes(COMPRESSION)),
        ("2.3.3 the index of a name beyond the tables", head_and(&[0x7f, 0x01, 1, b'x']), Closes(COMPRESSION)),
        ("4.2 a change of the table's size at the end", head_and(&[0x21]), Closes(COMPRESSION)),
        (
            "5.2 a padding of eight bits",
            literal(0x0f, &[&[0x2b, 0x84][..], &coded, &[0xff]].concat()),
            Closes(COMPRESSION),
        ),
        (
            "5.2 a padding of zeros",
            literal(0x0f, &[&[0x2b, 0x83][..], &[0x49, 0x50, 0x90]].concat()),
            Closes(COMPRESSION),
        ),
        ("5.2 the end-of-string symbol", literal(0x0f, &[0x2b, 0x84, 0xff, 0xff, 0xff, 0xff]), Closes(COMPRESSION)),
        ("6.1 an indexed field", after(&[]), Serves),
        ("6.1 index 0", head_and(&[0x80]), Closes(COMPRESSION)),
        ("6.3 a change of the table's size", after(&[0x3f, 0xe1, 0x1f]), Serves),
        ("6.3 two changes", after(&[0x20, 0x3f, 0xe1, 0x1f]), Serves),
        ("6.3 a size beyond the setting", after(&[0x3f, 0xe2, 0x1f]), Closes(COMPRESSION)),
    ];
    // A literal whose name is `user-agent` of the table, or new.
    for value in [&plain, &compressed] {
        cases.extend([
            ("6.2.1 a literal that is indexed", literal(0x7a, value), Serves),
            ("6.2.1 a literal with a new name that is indexed", named(0x40, value, value), Serves),
            ("6.2.2 a literal that is not indexed", literal(0x0f, &[&[0x2b][..], value].concat()), Serves),
            ("6.2.2 a literal with a new name that is not indexed", named(0x00, value, value), Serves),
            ("6.2.3 a literal that is never indexed", literal(0x1f, &[&[0x2b][..], value].concat()), Serves),
            ("6.2.3 a literal with a new name that is never indexed", named(0x10, value, value), Serves),
        ]);
    }
    cases
}

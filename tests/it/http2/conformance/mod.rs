//! RFC 9113 and RFC 7541, section by section: valid frames are served, and each invalid frame ends its stream or the
//! connection with the code of its section.

mod cases;

use std::io::Write;
use std::time::Duration;

use super::before;
use crate::support::authority::Authority;
use crate::support::http2_frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, FrameClient, GOAWAY, HEADERS, PING, PREFACE, PRIORITY,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, get, request, status,
};
use crate::support::tls_client::TlsSettings;
use crate::support::{Gateway, Upstream};
use crate::tls::BOTH;
use cases::Reaction::{self, Closes, Fails, Lives, Resets, Serves};
use cases::{COMPRESSION, PROTOCOL, STREAM_CLOSED, WHOLE, compression, frames, messages, setting};

/// Returns the frames that follow: up to the acknowledgement of a last PING and the expected frame, or to the end.
fn follow(client: &mut FrameClient, bytes: &[u8], expected: Reaction) -> Vec<Frame> {
    // The server may have closed the connection before.
    let _ = client.try_write(&[bytes, &frame(PING, 0, 0, b"the end.")].concat());
    let (mut frames, mut acknowledged, mut has_come) = (Vec::new(), false, expected == Lives);
    while !(acknowledged && has_come) {
        let Some(frame) = client.next() else { break };
        acknowledged |= frame.kind == PING && frame.payload == b"the end.";
        has_come |= frame.kind == RST_STREAM || expected == Serves && frame.kind == HEADERS && frame.stream == 1;
        frames.push(frame);
    }
    frames
}

/// Whether the reaction `found` is allowed where `expected` is required.
fn is_admitted(expected: Reaction, found: Reaction) -> bool {
    match expected {
        Fails(code) => [Resets(code), Closes(code), Closes(PROTOCOL)].contains(&found),
        Closes(code) => [Closes(code), Closes(PROTOCOL)].contains(&found),
        // A slow response may come before the PING or after it.
        Lives => [Lives, Serves].contains(&found),
        Resets(_) | Serves => found == expected,
    }
}

/// Returns the reaction of a server, according to the frames that it sent.
fn judge(frames: &[Frame]) -> Reaction {
    let of = |kind: u8| frames.iter().find(|frame| frame.kind == kind);
    match (of(GOAWAY), of(RST_STREAM), of(HEADERS)) {
        (Some(goaway), ..) => Closes(goaway.error_code()),
        (None, Some(reset), _) => Resets(reset.error_code()),
        (None, None, Some(head)) if head.stream == 1 && status(&head.payload) == 200 => Serves,
        _ if of(PING).is_some() => Lives,
        // Closed without a word, or with another response.
        _ => Closes(u32::MAX),
    }
}

fn check(connect: impl Fn() -> FrameClient) {
    let mut wrong = Vec::new();
    for (name, bytes, expected) in [frames(), messages(), compression()].concat() {
        let mut client = connect();
        let sent = follow(&mut client, &bytes, expected);
        let found = judge(&sent);
        let ends = sent.last().is_some_and(|frame| frame.kind == GOAWAY);
        if !is_admitted(expected, found) || matches!(found, Closes(_)) && !ends {
            wrong.push(format!("{name}: {expected:?}, found {found:?} of {sent:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn upstream() -> Upstream {
    Upstream::answering(|request, stream| {
        if request.line.contains("/slow") {
            std::thread::sleep(Duration::from_millis(200));
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    })
}

#[test]
fn every_section_is_followed_without_tls() {
    let upstream = upstream();
    let gateway = before(&upstream).start();
    check(|| FrameClient::connect(gateway.http));
    assert!(gateway.metric("tollgate_http2_errors_total", &["kind=\"connection\""]) > 40.0);
    assert!(!gateway.errors().contains("panicked"));
}

#[test]
fn every_section_is_followed_over_tls() {
    let (upstream, authority) = (upstream(), Authority::new("ca"));
    let issued = authority.issue(&["a.test"]);
    let tls = "tls: {certificates: [{cert_file: a.pem, key_file: a.key}]}";
    let gateway = Gateway::before(&upstream)
        .with(&format!("listeners: [{{address: 127.0.0.1:0, {tls}}}]"))
        .files(&[("a.pem", &issued.certificate), ("a.key", &issued.key)])
        .start();
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    check(|| FrameClient::connect_tls(&settings, gateway.http, "a.test"));
}

#[test]
fn a_preface_is_answered_with_settings_and_anything_else_ends_the_connection() {
    let upstream = upstream();
    let gateway = Gateway::before(&upstream).with("listeners: [{address: 127.0.0.1:0, protocols: [h2c]}]").start();
    // Section 3.4: the first frame of a server is SETTINGS.
    let mut client = FrameClient::silent(gateway.http);
    client.write(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat());
    assert_eq!(client.next().map(|frame| (frame.kind, frame.flags & ACK)), Some((SETTINGS, 0)));
    client.until(|frame| frame.kind == SETTINGS && frame.flags & ACK != 0);
    let mut client = FrameClient::silent(gateway.http);
    client.write(b"INVALID CONNECTION PREFACE\r\n\r\n");
    let frames = client.rest();
    assert!(frames.iter().all(|frame| matches!(frame.kind, SETTINGS | GOAWAY)), "{frames:?}");
}

/// Sections 6.9.1 and 6.9.2: the client's windows limit how much of a response is sent, also after a change of the windows.
#[test]
fn a_response_is_sent_as_far_as_the_windows_of_its_client_admit() {
    let upstream = upstream();
    let gateway = before(&upstream).start();
    let data = |client: &mut FrameClient| client.until(|frame| frame.kind == DATA).payload;
    let mut client = FrameClient::connect(gateway.http);
    client.write(&[setting(4, 1), get(1, "/")].concat());
    assert_eq!(data(&mut client), b"h");
    // A larger one holds for streams that are open.
    client.write(&setting(4, 3));
    assert_eq!(data(&mut client), b"el");
    client.write(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]));
    assert_eq!(data(&mut client), b"lo");
    // A smaller one makes the window of an open stream negative: three have been sent of two.
    client.write(&get(3, "/"));
    assert_eq!(data(&mut client), b"hel");
    client.write(&setting(4, 2));
    client.until(|frame| frame.kind == SETTINGS && frame.flags & ACK != 0);
    client.write(&frame(WINDOW_UPDATE, 0, 3, &[0, 0, 0, 2]));
    assert_eq!(data(&mut client), b"l");
    client.write(&frame(WINDOW_UPDATE, 0, 3, &[0, 0, 0, 1]));
    assert_eq!(data(&mut client), b"o");
}

/// RFC 7541, sections 2.3.2 and 4.4: later requests of the connection can name an indexed field by its index.
#[test]
fn indexed_fields_are_known_to_later_requests() {
    let upstream = upstream();
    let gateway = before(&upstream).start();
    let mut client = FrameClient::connect(gateway.http);
    let first = [&block("GET", "/", &[])[..], &[0x40, 5], b"x-own", &[0x83, 0x49, 0x50, 0x9f]].concat();
    client.write(&frame(HEADERS, WHOLE, 1, &first));
    assert_eq!(client.outcome(1), Ok(200));
    client.write(&frame(HEADERS, WHOLE, 3, &[&block("GET", "/", &[])[..], &[0xbe]].concat()));
    assert_eq!(client.outcome(3), Ok(200));
    assert_eq!(upstream.last().field("x-own"), Some("test"));
    // A table without a place has forgotten it.
    client.write(&frame(HEADERS, WHOLE, 5, &[&[0x20][..], &block("GET", "/", &[]), &[0xbe]].concat()));
    let code = client.until(|frame| frame.kind == GOAWAY).error_code();
    assert!(is_admitted(Closes(COMPRESSION), Closes(code)), "{code}");
}

/// Section 5.1: frames of a stream that has ended, and of a stream that its client has reset.
#[test]
fn frames_of_closed_streams_are_errors_or_ignored() {
    let upstream = upstream();
    let gateway = before(&upstream).start();
    let body = frame(DATA, END_STREAM, 1, b"x");
    let (head, continuation) = (get(1, "/"), frame(CONTINUATION, END_HEADERS, 1, &block("GET", "/", &[])));
    for (frames, expected) in
        [(&body, Fails(STREAM_CLOSED)), (&head, Fails(STREAM_CLOSED)), (&continuation, Closes(PROTOCOL))]
    {
        let mut client = FrameClient::connect(gateway.http);
        client.write(&get(1, "/"));
        client.until(|frame| frame.stream == 1 && frame.flags & END_STREAM != 0);
        let found = judge(&follow(&mut client, frames, expected));
        assert!(is_admitted(expected, found), "{frames:?}: {found:?}");
        // What was on its way when the client has reset its stream is no error.
        let mut client = FrameClient::connect(gateway.http);
        client.write(&[request(1, "POST", "/slow", &[], 0), frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])].concat());
        let found = judge(&follow(&mut client, frames, Lives));
        assert!(found == Lives || is_admitted(expected, found), "{frames:?}: {found:?}");
    }
    // A PRIORITY is allowed in any state.
    let mut client = FrameClient::connect(gateway.http);
    client.write(&get(1, "/"));
    client.until(|frame| frame.stream == 1 && frame.flags & END_STREAM != 0);
    assert_eq!(judge(&follow(&mut client, &frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]), Lives)), Lives);
}

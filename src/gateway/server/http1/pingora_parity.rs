//! Differential tests: Pingora accepts every request that our parsers accept, and reads it in the same way.

use std::io::Cursor;

use pingora::protocols::http::ServerSession;
use proptest::prelude::*;

use super::request_body::{Advance, BodyFraming};
use super::request_head::{Body, Head, HeadParser, Size};

const SIZE: Size = Size { bytes: 64 << 10, fields: 100, target: 8 << 10 };

fn is_extra(method: &[u8]) -> bool {
    method == b"M-SEARCH"
}

/// Heads that are valid, or nearly.
fn head() -> impl Strategy<Value = Vec<u8>> {
    const METHODS: &[&str] = &["GET", "POST", "OPTIONS", "get", "PROPFIND", "M-SEARCH", "Trace", "", "G T"];
    const TARGETS: &[&str] =
        &["/", "*", "/a?b=c", "http://a/", "HTTP://a:80", "http://b?x", "https://a/", "a", "//a", "/?#"];
    const VERSIONS: &[&str] = &[" HTTP/1.1", " HTTP/1.1", " HTTP/1.1", " HTTP/1.0", " HTTP/2.0", "", "  HTTP/1.1"];
    const FIELDS: &[&str] = &[
        "Host: a",
        "Host: a",
        "Host: a",
        "host:a:80",
        "Host: b",
        "Host:",
        "Content-Length: 5",
        "Content-Length: 0",
        "Content-Length: x",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: CHUNKED",
        "Transfer-Encoding: gzip, chunked",
        "Connection: close",
        "Connection: keep-alive, x",
        "Connection: host",
        "Connection: a,b,c,d,e,f,g,h,i",
        "Connection: a,b,c,d,e,f,g,h,i,j",
        "Upgrade: websocket",
        "Expect: 100-continue",
        "X:",
        "X: \t y \t",
        " folded",
        "X : y",
        ": y",
        "X",
    ];
    let fields = prop::collection::vec(prop::sample::select(FIELDS), 0..6);
    let request_line = (
        prop::sample::select(METHODS),
        prop::sample::select(TARGETS),
        any::<[u8; 2]>(),
        prop::sample::select(VERSIONS),
    );
    let change = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2);
    (request_line, fields, change).prop_map(|((method, target, odd, version), fields, changes)| {
        let odd = if odd[0] < 64 { &odd[1..] } else { &[] };
        let mut bytes = [method.as_bytes(), b" ", target.as_bytes(), odd, version.as_bytes(), b"\r\n"].concat();
        for field in fields {
            bytes.extend_from_slice(field.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        bytes
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_result_depends_on_the_bytes_and_not_on_how_they_were_split(head in head(), sizes in prop::collection::vec(1usize..40, 1..8)) {
        let size = Size { bytes: 120, fields: 4, target: 12 };
        let whole = HeadParser::default().parse(&head, &size, is_extra);
        let (mut parser, mut arrived) = (HeadParser::default(), 0);
        for step in sizes.iter().cycle() {
            arrived = (arrived + step).min(head.len());
            let parsed = parser.parse(&head[..arrived], &size, is_extra);
            if parsed != Ok(None) || arrived == head.len() {
                prop_assert_eq!(parsed, whole);
                break;
            }
        }
    }

    #[test]
    fn pingora_reads_every_accepted_head_and_finds_the_same_body(head in head(), rest in prop::collection::vec(any::<u8>(), 0..9)) {
        let Ok(Some(Head { length, body })) = HeadParser::default().parse(&[&head[..], &rest].concat(), &SIZE, is_extra) else { return Ok(()) };
        let lines = head[..length].split(|byte| *byte == b'\n').count() - 3;
        runtime().block_on(async {
            let mut session = ServerSession::new_http1(Box::new(Cursor::new(head[..length].to_vec())));
            prop_assert!(matches!(session.read_request().await, Ok(true)));
            let request = session.req_header();
            prop_assert_eq!(request.headers.len(), lines);
            // A target that Pingora has rewritten would not be found in the head.
            let target = request.raw_path().to_vec();
            prop_assert!(head.windows(target.len()).any(|window| window == target));
            let lengths = ["content-length", "transfer-encoding"].map(|name| request.headers.get(name).cloned());
            match body {
                Body::Nothing | Body::Tunnel => prop_assert!(session.is_body_empty()),
                Body::Length(length) => prop_assert_eq!(lengths, [Some(length.into()), None]),
                Body::Chunked => prop_assert!(lengths[0].is_none() && lengths[1].is_some()),
            }
            Ok(())
        })?;
    }

    #[test]
    fn pingora_decodes_every_accepted_body_in_chunks_and_finds_the_same_end(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..30), 0..5),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
        trailer in prop::sample::select(vec!["", "X: y\r\n", "X: y\r\nZ:\r\n"]),
        digits in 1..40usize,
    ) {
        let mut bytes = Vec::new();
        for chunk in &chunks {
            bytes.extend_from_slice(format!("{:0digits$x};e\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(format!("{:0digits$}\r\n{trailer}\r\n", 0).as_bytes());
        for (index, byte) in &changes {
            let index = index.index(bytes.len());
            bytes[index] = *byte;
        }
        let mut framing = BodyFraming::of(Body::Chunked, u64::MAX);
        let mut request = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let mut rest = &bytes[..];
        while let Ok(Advance { forwarded, dropped }) = framing.advance(rest) {
            request.extend_from_slice(&rest[..forwarded]);
            rest = &rest[forwarded + dropped..];
            if dropped == 0 {
                break;
            }
        }
        if framing != BodyFraming::Nothing {
            return Ok(());
        }
        runtime().block_on(async {
            let mut session = ServerSession::new_http1(Box::new(Cursor::new(request)));
            prop_assert!(matches!(session.read_request().await, Ok(true)));
            let mut body = Vec::new();
            loop {
                match session.read_request_body().await {
                    Ok(Some(part)) => body.extend_from_slice(&part),
                    Ok(None) => break,
                    Err(error) => prop_assert!(false, "{error}"),
                }
            }
            if changes.is_empty() {
                prop_assert_eq!(body, chunks.concat());
            }
            prop_assert!(session.is_body_done());
            Ok(())
        })?;
    }
}

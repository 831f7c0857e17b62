//! Differential tests: another parser accepts every head that our parser accepts, and reads the head in the same way.

use bytes::Bytes;
use proptest::prelude::*;

use super::head_parts;
use super::request_body::{BodyFraming, Part, PartKind};
use super::request_head::{Body, Head, HeadParser, Size};

const SIZE: Size = Size { bytes: 64 << 10, fields: 100, target: 8 << 10 };

fn is_extra(method: &[u8]) -> bool {
    method == b"M-SEARCH"
}

/// Heads that are valid or nearly valid.
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
    fn another_parser_reads_every_accepted_head_in_the_same_way(head in head(), rest in prop::collection::vec(any::<u8>(), 0..9)) {
        let Ok(Some(Head { length, body })) = HeadParser::default().parse(&[&head[..], &rest].concat(), &SIZE, is_extra) else { return Ok(()) };
        let mut fields = [httparse::EMPTY_HEADER; 16];
        let mut request = httparse::Request::new(&mut fields);
        prop_assert_eq!(request.parse(&head[..length]), Ok(httparse::Status::Complete(length)));
        let has = |name: &str| request.headers.iter().any(|field| field.name.eq_ignore_ascii_case(name));
        prop_assert_eq!(has("content-length"), matches!(body, Body::Length(_)) || has("content-length") && body == Body::Nothing);
        prop_assert_eq!(has("transfer-encoding"), body == Body::Chunked);
        let Ok(parts) = head_parts::parse(&Bytes::copy_from_slice(&head[..length])) else { return Ok(()) };
        prop_assert_eq!(Some(parts.method.as_str()), request.method);
        prop_assert_eq!(parts.headers.len(), request.headers.len());
        for field in request.headers.iter() {
            let mut values = parts.headers.get_all(field.name).iter();
            prop_assert!(values.any(|value| value.as_bytes() == field.value.trim_ascii()));
        }
    }

    #[test]
    fn every_accepted_body_in_chunks_is_decoded_to_its_data(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..30), 0..5),
        trailer in prop::sample::select(vec!["", "X: y\r\n", "X: y\r\nZ:\r\n"]),
        digits in 1..40usize,
        sizes in prop::collection::vec(1usize..40, 1..8),
    ) {
        let mut bytes = Vec::new();
        for chunk in &chunks {
            bytes.extend_from_slice(format!("{:0digits$x};e\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(format!("{:0digits$}\r\n{trailer}\r\n", 0).as_bytes());
        let (mut framing, mut data, mut at) = (BodyFraming::of(Body::Chunked, u64::MAX), Vec::new(), 0);
        for step in sizes.iter().cycle() {
            let part = &bytes[at..bytes.len().min(at + step)];
            let Part { kind, length } = framing.next_part(part).unwrap();
            if kind == PartKind::Data {
                data.extend_from_slice(&part[..length]);
            }
            at += length;
            if framing == BodyFraming::Nothing {
                break;
            }
        }
        prop_assert_eq!((data, at), (chunks.concat(), bytes.len()));
    }
}

//! Tests properties of reading a response: where it ends, and which parts reach a client, however its bytes arrive.

use super::mutation::{fuzz, is_bug_planted};
use super::protocols::cuts;
use tollgate::gateway::chunked::Coding;
use tollgate::gateway::download::{Download, ResponseFraming};
use tollgate::gateway::http1_response_head::{ResponseBody, ResponseHead};
use tollgate::gateway::request_body::Chunks;
use tollgate::gateway::request_head::Size;

const SIZE: Size = Size { bytes: 2048, fields: 12, target: 0 };

/// The largest content of one buffer in bytes: a part of a body, the size line of its chunk, and trailers.
const MOST_HELD: usize = (64 << 10) + 32 + (8 << 10);

/// The parts that were read of a response to a `GET` of HTTP/1.1.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    interim: usize,
    /// The final head, and the number of bytes before it.
    head: Option<(ResponseHead, usize)>,
    data: Vec<u8>,
    trailers: Vec<u8>,
    /// The number of bytes after the end of the response. `None` if the response is not complete.
    end: Option<usize>,
}

/// Reads a response whose bytes arrive in parts of these sizes. `None` if it is invalid.
fn read(bytes: &[u8], sizes: &mut dyn Iterator<Item = usize>) -> Option<Read> {
    let (mut download, mut found) = (Download::default(), Read::default());
    let (mut out, mut shown, mut rest) = (Vec::new(), Vec::new(), bytes);
    while !rest.is_empty() && found.end.is_none() {
        let (part, behind) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
        rest = behind;
        download.input.extend_from_slice(part);
        while found.head.is_none() {
            let Some(mut head) = download.parser.parse(&download.input, &SIZE).ok()? else { break };
            let before = bytes.len() - rest.len() - download.input.len();
            let text = download.input.split_to(head.length);
            if (100..200).contains(&head.status) && head.status != 101 {
                found.interim += 1;
                download.expect_head();
                continue;
            }
            // The planted bug: `Content-Length` in capital letters is ignored.
            if is_bug_planted() && text.windows(14).any(|name| name == b"CONTENT-LENGTH") {
                head.body = ResponseBody::UntilClose;
            }
            found.head = Some((head, before));
            match head.body {
                ResponseBody::Length(length) => download.expect_body(ResponseFraming::length(length), Coding::Plain),
                ResponseBody::Chunked => {
                    download.expect_body(ResponseFraming::Chunked(Chunks::of_response()), Coding::Chunked);
                }
                ResponseBody::UntilClose => download.expect_body(ResponseFraming::UntilClose, Coding::Plain),
            }
        }
        if found.head.is_none() {
            continue;
        }
        loop {
            download.decode(|data| shown.extend_from_slice(data)).ok()?;
            assert!(download.out.len() <= MOST_HELD, "{} bytes are held", download.out.len());
            out.append(&mut download.out);
            if download.body == ResponseFraming::Nothing {
                found.end = Some(download.input.len() + rest.len());
                break;
            }
            if download.input.is_empty() {
                break;
            }
        }
    }
    match found.head {
        Some((ResponseHead { body: ResponseBody::Chunked, .. }, _)) => {
            (found.data, found.trailers) = dechunked(&out, found.end.is_some());
        }
        _ => found.data = out,
    }
    assert_eq!(found.data, shown, "an observer is shown other data than the client");
    Some(found)
}

/// Returns the data and trailers that a client reads from chunks which the gateway has written.
fn dechunked(mut rest: &[u8], is_whole: bool) -> (Vec<u8>, Vec<u8>) {
    let mut data = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
            assert!(rest.is_empty() && !is_whole, "no size of a chunk: {}", rest.escape_ascii());
            return (data, Vec::new());
        };
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        rest = &rest[end + 2..];
        if size == 0 {
            assert!(is_whole && rest.ends_with(b"\r\n"));
            return (data, rest.to_vec());
        }
        data.extend_from_slice(&rest[..size]);
        rest = rest[size..].strip_prefix(b"\r\n").expect("an end of a chunk");
    }
}

/// Returns the values of a field in a head, read in the simplest way.
fn values<'h>(head: &'h [u8], name: &str) -> Vec<&'h [u8]> {
    let fields = head.split(|byte| *byte == b'\n').skip(1).filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        line[..colon].eq_ignore_ascii_case(name.as_bytes()).then(|| line[colon + 1..].trim_ascii())
    });
    fields.collect()
}

#[test]
pub fn response() {
    let words: &[&[u8]] = &[
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b"\0",
        b": ",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n",
        b"CONTENT-LENGTH: 5\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Trailer: X\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"0\r\nX: y\r\n\r\n",
        b";a=b",
        b"Set-Cookie: a\r\n",
        b"0000000000000000000",
        b"fffffff",
    ];
    fuzz("response", words, |bytes| {
        let whole = read(bytes, &mut std::iter::repeat(usize::MAX));
        let parts = read(bytes, &mut cuts(bytes));
        assert_eq!(parts, whole, "the result depends on how the bytes were split");
        if let Some(Read { head: Some((head, before)), data, trailers, end, .. }) = &whole {
            let text = &bytes[*before..before + head.length];
            let (lengths, encodings) = (values(text, "content-length"), values(text, "transfer-encoding"));
            assert!(lengths.len() <= 1 && encodings.len() <= 1 && !text.contains(&0), "two ways to read it");
            let body = &bytes[before + head.length..];
            match (&*encodings, &*lengths) {
                ([_], _) => assert!(trailers.len() <= 8 << 10),
                ([], [length]) => {
                    let length: usize = std::str::from_utf8(length).unwrap().parse().unwrap_or(usize::MAX);
                    assert_eq!(**data, body[..length.min(body.len())], "another length");
                    assert_eq!(*end, body.len().checked_sub(length));
                }
                _ => assert_eq!(**data, *body, "all that comes"),
            }
            let names = trailers.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':').next());
            for name in names.flatten() {
                let name = String::from_utf8_lossy(name).to_ascii_lowercase();
                assert!(!matches!(&*name, "content-length" | "transfer-encoding" | "set-cookie" | "trailer"), "{name}");
            }
        }
        whole.map(|read| {
            (
                read.interim.min(3),
                read.head.map(|(head, _)| std::mem::discriminant(&head.body)),
                read.end.is_some(),
                read.trailers.len().min(9),
            )
        })
    });
}

//! Tests properties of the protocol parsers, on any input: heads, chunks, addresses, paths.

use super::mutation::{fuzz, is_bug_planted};
use http::{HeaderMap, HeaderValue};
use identity::client_ip;
use identity::proxy_protocol;
use identity::proxy_protocol::Progress;
use request::path::normalise;
use std::net::{IpAddr, SocketAddr};
use tollgate::gateway::request_body::{BodyError, BodyFraming};
use tollgate::gateway::request_head::{Body, Head, HeadParser, Size};

/// Where to cut, drawn from the bytes themselves.
pub fn cuts(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let seed = bytes.iter().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(move || if random.bool() { random.usize(1..4) } else { random.usize(1..200) })
}

#[test]
pub fn head() {
    const SIZE: Size = Size { bytes: 2048, fields: 12, target: 256 };
    let words: &[&[u8]] = &[
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"Host: a\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: ",
        b"Upgrade: websocket\r\n",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"http://a",
        b"GET ",
        b"OPTIONS * ",
        b"TRACE ",
        b"CONNECT ",
        b"[::1]",
        b",",
        b"chunked",
        b"%00",
        b"\xff",
    ];
    // The planted bug: the name of a field is compared with regard to case.
    let parse = |parser: &mut HeadParser, bytes: &[u8]| {
        let misspelt = is_bug_planted() && !bytes.windows(17).any(|part| part == b"Transfer-Encoding");
        let blind = |head: Head| if misspelt { Head { body: Body::Length(0), ..head } } else { head };
        parser.parse(bytes, &SIZE, |_| true).map(|head| head.map(blind))
    };
    fuzz("head", words, |bytes| {
        let whole = parse(&mut HeadParser::default(), bytes);
        let (mut parser, mut come) = (HeadParser::default(), 0);
        for step in cuts(bytes) {
            come = (come + step).min(bytes.len());
            let parsed = parse(&mut parser, &bytes[..come]);
            if parsed != Ok(None) || come == bytes.len() {
                assert_eq!(parsed, whole, "the result depends on how the bytes were split");
                break;
            }
        }
        if let Ok(Some(head)) = whole {
            let text = &bytes[..head.length];
            assert!(head.length <= SIZE.bytes && text.ends_with(b"\r\n\r\n"));
            assert_eq!(parse(&mut HeadParser::default(), text), whole);
            assert_eq!(HeadParser::default().parse(&text[..head.length - 1], &SIZE, |_| true), Ok(None));
            let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
            assert!(lines[..lines.len() - 1].iter().all(|line| line.ends_with(b"\r")), "a bare line feed");
            assert!(!text.contains(&0) && text.iter().filter(|byte| **byte == b'\r').count() == lines.len() - 1);
            // Parses the head again in another way: counts the fields with a name.
            let named = |name: &str| {
                let is =
                    |line: &&&[u8]| line.len() > name.len() && line[..name.len()].eq_ignore_ascii_case(name.as_bytes());
                lines.iter().filter(is).count()
            };
            let (lengths, encodings) = (named("content-length:"), named("transfer-encoding:"));
            assert!(lengths + encodings <= 1 && named("host:") <= 1, "two ways to read it");
            assert_eq!(matches!(head.body, Body::Chunked), encodings == 1);
        }
        (whole
            .map(|head| head.map(|head| std::mem::discriminant(&head.body)))
            .map_err(|flaw| (flaw.status(), flaw.detail())),)
    });
}

/// Reads a chunked body in the simplest way. Returns the length of its data.
fn dechunk(mut rest: &[u8]) -> Option<u64> {
    let mut data = 0;
    let line = |rest: &mut &[u8]| {
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let (line, behind) = rest.split_at(end);
        *rest = &behind[2..];
        Some(line.to_vec())
    };
    loop {
        let size = line(&mut rest)?;
        let digits = size.split(|byte| *byte == b';').next()?;
        let size = usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        if size == 0 {
            break;
        }
        data += size as u64;
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
    while !line(&mut rest)?.is_empty() {}
    rest.is_empty().then_some(data)
}

#[test]
pub fn chunks() {
    const MOST: u64 = 5000;
    let words: &[&[u8]] = &[
        b"\r\n",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b";a=b",
        b"0\r\n",
        b"X: y\r\n",
        b"\n",
        b"fffffff",
        b"+",
        b"0x",
        b"0000000000000000000",
    ];
    fuzz("chunks", words, |bytes| {
        let follow = |sizes: &mut dyn Iterator<Item = usize>| {
            let (mut remainder, mut rest, mut taken) = (BodyFraming::of(Body::Chunked, MOST), bytes, 0);
            while !rest.is_empty() && remainder != BodyFraming::Nothing {
                let (part, behind) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
                // The planted bug: a line feed that arrives alone is ignored.
                taken += if is_bug_planted() && part == b"\n" { 1 } else { remainder.advance_to_end(part)? };
                rest = behind;
            }
            Ok::<_, BodyError>((taken, remainder == BodyFraming::Nothing))
        };
        let whole = follow(&mut std::iter::repeat(usize::MAX));
        assert_eq!(follow(&mut cuts(bytes)), whole, "the result depends on how the bytes were split");
        if let Ok((taken, true)) = whole {
            let data = dechunk(&bytes[..taken]).expect("a body that cannot be read");
            assert!(data <= MOST);
        }
        (whole.map(|(_, done)| done).map_err(BodyError::status), bytes.len().min(40))
    });
}

#[test]
pub fn forwarded() {
    let words: &[&[u8]] = &[
        b", ",
        b",",
        b"10.0.0.2",
        b"198.51.100.1",
        b"[2001:db8::1]:80",
        b"::ffff:10.0.0.3",
        b":80",
        b"%eth0",
        b"unknown",
        b"_x",
        b"\xff",
        b" ",
        b"\t",
        b"fd00::1",
        b"0x7f.1",
        b"127.1",
        b"010.0.0.1",
    ];
    let trusted_proxies = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
    let settings = client_ip::Settings { trusted_proxies, ipv6_prefix: 64 };
    let peer = IpAddr::from([10, 0, 0, 1]);
    let ask = |lines: &[&[u8]]| {
        let mut headers = HeaderMap::new();
        for line in lines {
            // The planted bug: hops are read from the left.
            let mut hops: Vec<&[u8]> = line.split(|byte| *byte == b',').collect();
            if is_bug_planted() {
                hops.reverse();
            }
            headers.append("x-forwarded-for", HeaderValue::from_bytes(&hops.join(&b',')).ok()?);
        }
        Some(settings.client(peer, &headers).address())
    };
    fuzz("forwarded", words, |bytes| {
        let Some(found) = ask(&[bytes]) else { return (0, 0) };
        let stranger = IpAddr::from([203, 0, 113, 9]);
        assert_eq!(ask(&[bytes, b"203.0.113.9"]), Some(stranger), "what a trusted peer adds is the last word");
        let lengthened = ask(&[&[b"203.0.113.9,", bytes].concat()]);
        if !settings.trusts(found) {
            assert_eq!(lengthened, Some(found), "what a client writes to the left counts");
        } else {
            assert!(lengthened == Some(found) || lengthened == Some(stranger));
        }
        // The result is the address of the peer, or an address in the field.
        let text = String::from_utf8_lossy(bytes);
        let written = |hop: &str| {
            let hop = hop.trim();
            let plain = hop.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
            plain.ok().or_else(|| Some(hop.parse::<SocketAddr>().ok()?.ip())).map(|address| address.to_canonical())
        };
        assert!(found == peer || text.split(',').any(|hop| written(hop) == Some(found)), "{found} out of nothing");
        // If the peer is not trusted, the peer itself is the client.
        let mut headers = HeaderMap::new();
        headers.append("x-forwarded-for", HeaderValue::from_bytes(bytes).unwrap());
        assert_eq!(settings.client(stranger, &headers).address(), stranger);
        (
            1 + u8::from(settings.trusts(found)) + u8::from(found.is_ipv6()) * 2,
            bytes.iter().filter(|byte| **byte == b',').count(),
        )
    });
}

#[test]
pub fn proxy_header() {
    let words: &[&[u8]] = &[
        b"PROXY ",
        b"TCP4 ",
        b"TCP6 ",
        b"UNKNOWN",
        b"\r\n",
        b"1.2.3.4 ",
        b"::1 ",
        b"65535",
        b"\r\n\r\n\0\r\nQUIT\n",
        b"\x21\x11\0\x0c",
        b"\x20\0\0\0",
        b"\x21\x21\0\x24",
        b"\xff\xff",
    ];
    // The planted bug: the parser asks for one byte too many.
    let parse = |bytes: &[u8]| match proxy_protocol::parse(bytes) {
        Ok(Progress::More(missing)) if is_bug_planted() => Ok(Progress::More(missing + 1)),
        parsed => parsed,
    };
    fuzz("proxy-header", words, |bytes| {
        let whole = parse(bytes);
        // The bytes arrive as on a connection: never more than were asked for.
        let (mut come, mut stepped) = (0, parse(b""));
        while let Ok(Progress::More(missing)) = stepped {
            assert!(missing > 0);
            if come + missing > bytes.len() {
                break;
            }
            come += missing;
            stepped = parse(&bytes[..come]);
        }
        match (whole, stepped) {
            (Ok(Progress::Whole { length, .. }), _) => {
                assert_eq!((stepped, come), (whole, length), "a byte of what follows was taken");
                assert!(length <= 16 + 4096);
            }
            (Ok(Progress::More(_)), stepped) => assert!(matches!(stepped, Ok(Progress::More(_)))),
            (Err(_), stepped) => assert!(!matches!(stepped, Ok(Progress::Whole { .. }))),
        }
        match whole {
            Ok(Progress::Whole { source, .. }) => format!("{:?}", std::mem::discriminant(&source)),
            Ok(Progress::More(missing)) => missing.min(40).to_string(),
            Err(malformed) => malformed.0.to_owned(),
        }
    });
}

#[test]
pub fn path() {
    let words: &[&[u8]] = &[
        b"/",
        b"//",
        b"/./",
        b"/../",
        b"%2e",
        b"%2E",
        b"%2f",
        b"%5c",
        b"\\",
        b"%00",
        b"%",
        b"%25",
        b"%41",
        b";a",
        b"\xc0\xaf",
        b"@",
        b"%3a",
        b"[",
    ];
    // The planted bug: a path with an escape in capital letters is not normalised.
    let normalise = |bytes: &[u8]| {
        let capital = bytes.windows(3).any(|part| part == b"%2E");
        if is_bug_planted() && capital {
            Ok(bytes.to_vec())
        } else {
            normalise(bytes).map(std::borrow::Cow::into_owned)
        }
    };
    fuzz("path", words, |bytes| {
        let Ok(once) = normalise(bytes) else { return (0, 0) };
        assert_eq!(normalise(&once).as_ref(), Ok(&once), "twice is not once");
        if bytes != b"*" {
            assert_eq!(once.first(), Some(&b'/'));
            let segments: Vec<&[u8]> = once[1..].split(|byte| *byte == b'/').collect();
            let inner = &segments[..segments.len() - 1];
            assert!(inner.iter().all(|segment| !segment.is_empty()), "an empty segment");
            assert!(segments.iter().all(|segment| !matches!(*segment, b"." | b"..")), "a dot segment");
            assert!(!once.contains(&b'\\'));
        }
        // Checks that a byte that needs no escape may be escaped anyway.
        let plain = |byte: &u8| byte.is_ascii_alphabetic() || b"-._~!$&'()*+,=:@".contains(byte);
        if bytes != b"*"
            && let Some(at) = bytes.iter().position(plain)
            && !bytes[..at].ends_with(b"%")
            && !(at >= 2 && bytes[at - 2] == b'%')
        {
            let escaped = [&bytes[..at], format!("%{:02x}", bytes[at]).as_bytes(), &bytes[at + 1..]].concat();
            assert_eq!(normalise(&escaped), Ok(once.clone()));
        }
        (once.len().min(40), once.iter().filter(|byte| **byte == b'%').count())
    });
}

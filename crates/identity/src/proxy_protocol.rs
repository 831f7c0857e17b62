//! Parses the PROXY protocol header, version 1 or 2, in which a load balancer names the client's address.
//!
//! The format is defined in <https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>. The result is a header, an
//! error, or the smallest number of missing bytes. So a caller never reads past the header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The header is incomplete: at least this many bytes are missing, never 0.
    More(usize),
    /// The header is complete: the first `length` bytes are the header.
    Whole { length: usize, source: Source },
}

/// The source address that a header states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The address of the client. An IPv4-mapped address is converted to IPv4.
    Client(SocketAddr),
    /// The header states no client address, such as for a health check. The TCP peer counts as the client.
    Peer,
}

/// The error for bytes that are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderError(pub &'static str);

const V1: &[u8] = b"PROXY ";
/// The length of `PROXY UNKNOWN` and the end of the line.
const V1_SHORTEST: usize = 15;
/// The largest length of a header of version 1, including the end of the line (section 2.1).
const V1_LONGEST: usize = 107;

const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The length of the signature, the version, the family, and the field with the length of the rest.
const V2_FIXED: usize = 16;
/// The longest accepted rest of a header: addresses, and extensions of a load balancer. Usual headers have some hundred
/// bytes.
const V2_LONGEST_REST: usize = 4096;

/// Parses the PROXY protocol header at the start of `bytes`. Bytes after the header are ignored.
///
/// # Errors
///
/// If the bytes are not the beginning of a valid header.
pub fn parse(bytes: &[u8]) -> Result<Progress, HeaderError> {
    if is_beginning(bytes, V1) {
        parse_v1(bytes)
    } else if is_beginning(bytes, V2) {
        parse_v2(bytes)
    } else {
        Err(HeaderError("no PROXY protocol header"))
    }
}

/// Whether the shorter text is a prefix of the longer text.
fn is_beginning(bytes: &[u8], whole: &[u8]) -> bool {
    bytes.iter().zip(whole).all(|(byte, expected)| byte == expected)
}

fn parse_v1(bytes: &[u8]) -> Result<Progress, HeaderError> {
    let Some(end) = bytes.iter().take(V1_LONGEST).position(|byte| *byte == b'\n') else {
        let line_end = if bytes.last() == Some(&b'\r') { 1 } else { 2 };
        let missing = line_end.max(V1_SHORTEST.saturating_sub(bytes.len()));
        return match bytes.len() + missing {
            ..=V1_LONGEST => Ok(Progress::More(missing)),
            _ => Err(HeaderError("version 1: the line is too long")),
        };
    };
    let line = bytes
        .get(..end)
        .and_then(|line| line.strip_suffix(b"\r"))
        .ok_or(HeaderError("version 1: the line must end in CR LF"))?;
    let source = source_v1(line).ok_or(HeaderError(
        "version 1: the line must be PROXY TCP4 or TCP6 with two addresses and two ports, or PROXY UNKNOWN",
    ))?;
    Ok(Progress::Whole { length: end + 1, source })
}

fn source_v1(line: &[u8]) -> Option<Source> {
    let line = line.strip_prefix(V1)?;
    // The rest of a line with `UNKNOWN` must be ignored, even if it is not text.
    if line == b"UNKNOWN" || line.starts_with(b"UNKNOWN ") {
        return Some(Source::Peer);
    }
    let words: Vec<&str> = std::str::from_utf8(line).ok()?.split(' ').collect();
    let &[family, source, destination, source_port, destination_port] = &*words else { return None };
    let addresses = match family {
        "TCP4" => pair::<Ipv4Addr>(source, destination)?,
        "TCP6" => pair::<Ipv6Addr>(source, destination)?,
        _ => return None,
    };
    port(destination_port)?;
    Some(client(addresses, port(source_port)?))
}

/// Returns the source address, if both texts are addresses.
fn pair<A: FromStr + Into<IpAddr>>(source: &str, destination: &str) -> Option<IpAddr> {
    destination.parse::<A>().ok()?;
    source.parse::<A>().ok().map(Into::into)
}

/// Parses a port: digits without a leading zero (section 2.1).
fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

fn client(address: IpAddr, port: u16) -> Source {
    Source::Client(SocketAddr::new(address.to_canonical(), port))
}

fn parse_v2(bytes: &[u8]) -> Result<Progress, HeaderError> {
    let Some(&[.., command, family, high, low]) = bytes.first_chunk::<V2_FIXED>() else {
        return Ok(Progress::More(V2_FIXED - bytes.len()));
    };
    let local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Err(HeaderError("version 2: no such version or command")),
    };
    let rest = usize::from(u16::from_be_bytes([high, low]));
    if rest > V2_LONGEST_REST {
        return Err(HeaderError("version 2: the header is too long"));
    }
    let length = V2_FIXED + rest;
    match bytes.get(V2_FIXED..length) {
        None => Ok(Progress::More(length - bytes.len())),
        // If the load balancer connects for itself, the rest is ignored (section 2.2).
        Some(_) if local => Ok(Progress::Whole { length, source: Source::Peer }),
        Some(rest) => {
            let source =
                source_v2(family, rest).ok_or(HeaderError("version 2: no such family, or too short for it"))?;
            Ok(Progress::Whole { length, source })
        }
    }
}

/// Parses the source address of version 2. Ignores everything after the addresses.
fn source_v2(family: u8, rest: &[u8]) -> Option<Source> {
    let (family, transport) = (family >> 4, family & 15);
    // Transport 0 is unspecified, 1 is a stream, and 2 is datagrams. An HTTP client uses a stream.
    let stream = match transport {
        1 => true,
        0 | 2 => false,
        _ => return None,
    };
    let (source, length) = match family {
        0 => return Some(Source::Peer),
        1 => {
            let &[a, b, c, d, _, _, _, _, high, low, _, _] = rest.first_chunk::<12>()?;
            (client(Ipv4Addr::new(a, b, c, d).into(), u16::from_be_bytes([high, low])), 12)
        }
        2 => {
            let address = Ipv6Addr::from(*rest.first_chunk::<16>()?);
            let port = *rest.get(32..36)?.first_chunk::<2>()?;
            (client(address.into(), u16::from_be_bytes(port)), 36)
        }
        // The addresses are two paths of Unix domain sockets, of 108 bytes each.
        3 => (Source::Peer, 216),
        _ => return None,
    };
    (rest.len() >= length).then_some(if stream { source } else { Source::Peer })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Makes a header of version 2.
    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [V2, &[command, family], &length, rest].concat()
    }

    fn v4_rest() -> Vec<u8> {
        vec![203, 0, 113, 7, 192, 0, 2, 1, 0xdc, 0x04, 0x01, 0xbb]
    }

    fn v6_rest(source: &str) -> Vec<u8> {
        let [source, destination] = [source, "2001:db8::1"].map(|text| text.parse::<Ipv6Addr>().unwrap().octets());
        [&source[..], &destination, &[0xdc, 0x04, 0x01, 0xbb]].concat()
    }

    fn address(text: &str) -> Source {
        Source::Client(text.parse().unwrap())
    }

    /// Checks that a header is read as `source`, also with a request after it, and that each prefix of it is
    /// incomplete.
    #[track_caller]
    fn check(header: &[u8], source: Source) {
        let whole = Ok(Progress::Whole { length: header.len(), source });
        assert_eq!(parse(header), whole, "{}", header.escape_ascii());
        assert_eq!(parse(&[header, b"GET / HTTP/1.1\r\n\r\n"].concat()), whole);
        for length in 0..header.len() {
            match parse(&header[..length]) {
                Ok(Progress::More(missing)) => assert!((1..=header.len() - length).contains(&missing), "{length}"),
                other => panic!("{other:?} of {}", header[..length].escape_ascii()),
            }
        }
    }

    /// Checks that the bytes are not a valid header, whatever follows.
    #[track_caller]
    fn refuse(bytes: &[u8]) {
        assert!(parse(bytes).is_err(), "{:?} of {}", parse(bytes), bytes.escape_ascii());
    }

    #[test]
    fn a_line_of_version_1_names_the_client() {
        check(b"PROXY TCP4 203.0.113.7 192.0.2.1 56324 443\r\n", address("203.0.113.7:56324"));
        check(b"PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n", address("0.0.0.0:0"));
        check(b"PROXY TCP6 2001:db8::7 2001:db8::1 56324 443\r\n", address("[2001:db8::7]:56324"));
        check(b"PROXY TCP6 ::ffff:203.0.113.7 ::1 1 2\r\n", address("203.0.113.7:1"));
        check(b"PROXY TCP6 ::ffff:cb00:7107 ::1 1 2\r\n", address("203.0.113.7:1"));
        let full = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        check(format!("PROXY TCP6 {full} {full} 65535 65535\r\n").as_bytes(), address(&format!("[{full}]:65535")));
        check(b"PROXY UNKNOWN\r\n", Source::Peer);
        check(format!("PROXY UNKNOWN {full} {full} 65535 65535\r\n").as_bytes(), Source::Peer);
        check(b"PROXY UNKNOWN \xff\x00 anything at all\r\n", Source::Peer);
    }

    #[test]
    fn an_invalid_line_of_version_1_is_rejected() {
        for line in [
            "PROXY TCP4 203.0.113.7 192.0.2.1 56324 443\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 56324\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 56324 443 \r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 56324 443 1\r\n",
            "PROXY TCP4  203.0.113.7 192.0.2.1 56324 443\r\n",
            "PROXY  TCP4 203.0.113.7 192.0.2.1 56324 443\r\n",
            "PROXY TCP4\t203.0.113.7 192.0.2.1 56324 443\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 56324 443\r\r\n",
            "PROXY TCP4 203.0.113.007 192.0.2.1 56324 443\r\n",
            "PROXY TCP4 203.0.113 192.0.2.1 56324 443\r\n",
            "PROXY TCP4 203.0.113.256 192.0.2.1 56324 443\r\n",
            "PROXY TCP4 203.0.113.7 somewhere 56324 443\r\n",
            "PROXY TCP4 203.0.113.7:1 192.0.2.1 56324 443\r\n",
            "PROXY TCP4 2001:db8::7 2001:db8::1 56324 443\r\n",
            "PROXY TCP6 203.0.113.7 192.0.2.1 56324 443\r\n",
            "PROXY TCP6 [2001:db8::7] 2001:db8::1 56324 443\r\n",
            "PROXY TCP6 fe80::7%1 2001:db8::1 56324 443\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 65536 443\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 56324 65536\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 +1 443\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 01 443\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1  443\r\n",
            "PROXY UDP4 203.0.113.7 192.0.2.1 56324 443\r\n",
            "PROXY tcp4 203.0.113.7 192.0.2.1 56324 443\r\n",
            "PROXY UNKNOWNX\r\n",
            "PROXY UNKNOWN\n",
            "PROXY \r\n",
            "proxy UNKNOWN\r\n",
            "PROXYUNKNOWN\r\n",
            " PROXY UNKNOWN\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\x16\x03\x01",
        ] {
            refuse(line.as_bytes());
        }
        // A line of 107 bytes is valid, but a line of 108 bytes is not. The fault is detected before the whole line has
        // arrived.
        check(format!("PROXY UNKNOWN {}\r\n", "x".repeat(91)).as_bytes(), Source::Peer);
        refuse(format!("PROXY UNKNOWN {}\r\n", "x".repeat(92)).as_bytes());
        refuse(format!("PROXY UNKNOWN {}", "x".repeat(92)).as_bytes());
    }

    #[test]
    fn a_header_of_version_2_names_the_client() {
        let more = [0x04, 0x00, 0x03, 1, 2, 3];
        check(&v2(0x21, 0x11, &v4_rest()), address("203.0.113.7:56324"));
        check(&v2(0x21, 0x11, &[&v4_rest()[..], &more].concat()), address("203.0.113.7:56324"));
        check(&v2(0x21, 0x21, &v6_rest("2001:db8::7")), address("[2001:db8::7]:56324"));
        check(&v2(0x21, 0x21, &[&v6_rest("2001:db8::7")[..], &more].concat()), address("[2001:db8::7]:56324"));
        check(&v2(0x21, 0x21, &v6_rest("::ffff:203.0.113.7")), address("203.0.113.7:56324"));
        // The longest rest that is accepted.
        let mut rest = v4_rest();
        rest.resize(V2_LONGEST_REST, 0);
        check(&v2(0x21, 0x11, &rest), address("203.0.113.7:56324"));
    }

    #[test]
    fn without_a_client_in_version_2_the_peer_is_the_client() {
        // The load balancer connects for itself, whatever else the header says.
        for (family, rest) in [(0, vec![]), (0x11, v4_rest()), (0x11, vec![1]), (0xff, vec![1, 2, 3])] {
            check(&v2(0x20, family, &rest), Source::Peer);
        }
        check(&v2(0x21, 0x00, &[]), Source::Peer);
        check(&v2(0x21, 0x00, &[1, 2, 3]), Source::Peer);
        check(&v2(0x21, 0x31, &[0; 216]), Source::Peer);
        check(&v2(0x21, 0x32, &[0; 220]), Source::Peer);
        // These transports are not streams.
        check(&v2(0x21, 0x12, &v4_rest()), Source::Peer);
        check(&v2(0x21, 0x20, &v6_rest("2001:db8::7")), Source::Peer);
    }

    #[test]
    fn an_invalid_header_of_version_2_is_rejected() {
        for command in [0x00, 0x01, 0x11, 0x22, 0x2f, 0x31] {
            refuse(&v2(command, 0x11, &v4_rest()));
        }
        for family in [0x13, 0x1f, 0x03, 0x41, 0xf1] {
            refuse(&v2(0x21, family, &[0; 300]));
        }
        for (family, shortest) in [(0x11, 12), (0x12, 12), (0x21, 36), (0x31, 216)] {
            for length in [0, 1, shortest - 1] {
                refuse(&v2(0x21, family, &vec![0; length]));
            }
        }
        // The rest is too long. This is reported before the rest has arrived.
        refuse(&v2(0x21, 0x11, &[0; V2_LONGEST_REST + 1])[..V2_FIXED]);
        refuse(&v2(0x20, 0x00, &[0; V2_LONGEST_REST + 1])[..V2_FIXED]);
        for index in 0..V2.len() {
            let mut header = v2(0x21, 0x11, &v4_rest());
            header[index] ^= 1;
            refuse(&header);
        }
    }

    /// Generates bytes that resemble a header.
    fn almost() -> impl Strategy<Value = Vec<u8>> {
        const WORDS: &[&str] =
            &["PROXY ", "TCP4 ", "TCP6 ", "UNKNOWN", "1.2.3.4 ", "::1 ", "80 ", "443", "\r", "\n", "\r\n"];
        let line = prop::collection::vec(prop::sample::select(WORDS), 0..16)
            .prop_map(|words| [&["PROXY "][..], &words].concat().concat().into_bytes());
        let binary = prop::collection::vec(any::<u8>(), 0..300).prop_map(|rest| [V2, &rest].concat());
        let sound = (0x1f..0x23u8, any::<u8>(), prop::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(command, family, rest)| v2(command, family, &rest));
        prop_oneof![prop::collection::vec(any::<u8>(), 0..300), line, binary, sound]
    }

    proptest! {
        /// A reader that reads only the missing bytes never takes a byte that follows the header. It gets the same
        /// result as a reader of all bytes at once.
        #[test]
        fn parsing_stops_at_the_end_of_the_header(bytes in almost()) {
            let mut read = 0;
            let end = loop {
                match parse(&bytes[..read]) {
                    Ok(Progress::More(missing)) => {
                        prop_assert!(missing > 0 && read + missing <= V2_FIXED + V2_LONGEST_REST);
                        read += missing;
                        if read > bytes.len() {
                            break None;
                        }
                    }
                    other => break Some(other),
                }
            };
            match end {
                Some(Ok(Progress::Whole { length, .. })) => {
                    prop_assert_eq!(length, read);
                    prop_assert_eq!(Some(parse(&bytes)), end);
                }
                Some(_) => prop_assert!(parse(&bytes).is_err()),
                None => {
                    let whole = matches!(parse(&bytes), Ok(Progress::Whole { .. }));
                    prop_assert!(!whole);
                }
            }
        }
    }
}

//! Reads and writes the field `traceparent` (W3C Trace Context, section 3.2).
//!
//! The SDK's propagator is not used, because it allocates memory for every request with this field, traced or not.

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use std::ops::Range;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The span of the program that sent a request, as read from `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub trace: u128,
    pub span: u64,
    pub sampling: SampledFlag,
}

/// Whether the program that sent a request records its own part of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampledFlag {
    Yes,
    No,
}

impl Parent {
    /// Reads the caller's span from the field `traceparent`. Returns `None` if the field is missing, repeated or invalid.
    pub(super) fn of(headers: &HeaderMap) -> Option<Parent> {
        let mut lines = headers.get_all(&TRACEPARENT).iter();
        let line = lines.next()?;
        // With two fields, it is not clear which caller is meant.
        if lines.next().is_some() { None } else { parse(line.as_bytes()) }
    }
}

fn parse(text: &[u8]) -> Option<Parent> {
    let (known, rest) = text.split_at_checked(55)?;
    let part = |range: Range<usize>| known.get(range).and_then(hexadecimal);
    let dashes = [2, 35, 52].into_iter().all(|index| known.get(index) == Some(&b'-'));
    let version = part(0..2)?;
    // A later version may add parts after another dash. Version 255 is invalid.
    let whole = match version {
        0 => rest.is_empty(),
        255 => false,
        _ => matches!(rest.first(), None | Some(b'-')),
    };
    if !dashes || !whole {
        return None;
    }
    let trace = part(3..35).filter(|trace| *trace != 0)?;
    let span = part(36..52).and_then(|span| u64::try_from(span).ok()).filter(|span| *span != 0)?;
    let sampling = if part(53..55)? & 1 == 1 { SampledFlag::Yes } else { SampledFlag::No };
    Some(Parent { trace, span, sampling })
}

/// Parses at most 32 hexadecimal digits, in lower case only.
fn hexadecimal(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some((number << 4) | u128::from(digit))
    })
}

/// Writes the trace and this gateway's span into the header fields, as the parent of the upstream's span. `known` is
/// the caller's span. If it is `None`, the field `tracestate` is removed.
pub(super) fn write(headers: &mut HeaderMap, trace: u128, span: u64, known: Option<u64>) {
    let Ok(value) = HeaderValue::try_from(format!("00-{trace:032x}-{span:016x}-01")) else { return };
    headers.insert(TRACEPARENT, value);
    if known.is_none() {
        headers.remove(TRACESTATE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn sent(lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (TRACEPARENT, HeaderValue::from_str(line).unwrap())).collect()
    }

    #[test]
    fn a_valid_traceparent_is_read_and_an_invalid_one_ignored() {
        let parent = Parent::of(&sent(&[GOOD])).unwrap();
        assert_eq!((parent.trace, parent.span), (0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 0xb7ad_6b71_6920_3331));
        assert_eq!(parent.sampling, SampledFlag::Yes);
        for (flags, sampling) in
            [("00", SampledFlag::No), ("02", SampledFlag::No), ("03", SampledFlag::Yes), ("ff", SampledFlag::Yes)]
        {
            let line = format!("{}{flags}", GOOD.get(..53).unwrap());
            assert_eq!(Parent::of(&sent(&[&line])).unwrap().sampling, sampling, "{line}");
        }
        // Of a later version, only the known part is read.
        for later in [GOOD.replacen("00", "01", 1), GOOD.replacen("00", "cc", 1) + "-more"] {
            assert_eq!(Parent::of(&sent(&[&later])), Some(parent), "{later}");
        }
        for bad in [
            "",
            "00",
            GOOD.get(..54).unwrap(),
            &format!("{GOOD}-"),
            &format!("{GOOD}0"),
            &format!(" {GOOD}"),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replacen("00", "cc", 1).replace("-01", "-01x"),
            &format!("{}x", GOOD.replacen("00", "cc", 1)),
            &GOOD.to_uppercase(),
            &GOOD.replace('-', "_"),
            &GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
            &GOOD.replace("b7ad", "+7ad"),
            &GOOD.replace("-01", "-0g"),
        ] {
            assert_eq!(Parent::of(&sent(&[bad])), None, "{bad:?}");
        }
        assert_eq!(Parent::of(&sent(&[])), None);
        assert_eq!(Parent::of(&sent(&[GOOD, GOOD])), None);
    }

    #[test]
    fn a_written_field_is_read_and_tracestate_stays_with_its_trace() {
        let state = HeaderValue::from_static("vendor=1");
        for known in [Some(7), None] {
            let mut headers = sent(&[GOOD, GOOD]);
            headers.insert(TRACESTATE, state.clone());
            write(&mut headers, 0xab, 0xcd, known);
            assert_eq!(Parent::of(&headers), Some(Parent { trace: 0xab, span: 0xcd, sampling: SampledFlag::Yes }));
            assert_eq!(headers.get(TRACESTATE), known.map(|_| &state));
        }
    }
}

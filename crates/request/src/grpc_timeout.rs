//! Reads `grpc-timeout`, the field in which a gRPC client says how long it waits for the response.

use http::HeaderValue;
use http::header::CONTENT_TYPE;
use http::request::Parts;

use base::time::Micros;

/// The longest delay is rounded down to a multiple of this time. Requests at about the same moment then have equal
/// delays.
const STEP: Micros = Micros(100_000);

/// Whether a request is a gRPC call, according to its content type.
pub fn is_grpc(head: &Parts) -> bool {
    head.headers.get(CONTENT_TYPE).is_some_and(is_grpc_type)
}

/// Whether a content type means gRPC: `application/grpc`, alone or with a format or parameters.
pub fn is_grpc_type(kind: &HeaderValue) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let Some((kind, rest)) = kind.as_bytes().split_at_checked(GRPC.len()) else { return false };
    kind.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';'))
}

/// Returns how long a gRPC call may be delayed, so that at least a tenth of the client's remaining time is left for the
/// upstream. `passed` is the time since the head arrived. `None` if the request is not a gRPC call, or has no deadline.
pub fn longest_delay(head: &Parts, passed: Micros) -> Option<Micros> {
    let timeout = head.headers.get("grpc-timeout")?;
    if !is_grpc(head) {
        return None;
    }
    let left = parse(timeout.as_bytes())?.0.saturating_sub(passed.0);
    Some(Micros(left / 10 * 9 / STEP.0 * STEP.0))
}

/// Parses a timeout: at most eight digits and a unit, as gRPC over HTTP/2 defines it.
fn parse(text: &[u8]) -> Option<Micros> {
    let (unit, digits) = text.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(Micros(match unit {
        b'H' => number * 3_600_000_000,
        b'M' => number * 60_000_000,
        b'S' => number * 1_000_000,
        b'm' => number * 1_000,
        b'u' => number,
        b'n' => number / 1_000,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(kind: &str, timeout: &str) -> Parts {
        let request = http::Request::builder().header("content-type", kind).header("grpc-timeout", timeout);
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_call_is_delayed_for_nine_tenths_of_what_is_left() {
        for (timeout, passed, most) in [
            ("1S", 0, Some(900_000)),
            ("1S", 200_000, Some(700_000)),
            ("1S", 2_000_000, Some(0)),
            ("1050m", 0, Some(900_000)),
            ("100000u", 0, Some(0)),
            ("99999999n", 0, Some(0)),
            ("2M", 0, Some(108_000_000)),
            ("99999999H", 0, Some(323_999_996_760_000_000)),
            ("0S", 0, Some(0)),
            ("", 0, None),
            ("S", 0, None),
            ("1", 0, None),
            ("1s", 0, None),
            ("-1S", 0, None),
            ("1.5S", 0, None),
            ("123456789S", 0, None),
        ] {
            let head = head("application/grpc+proto", timeout);
            assert_eq!(longest_delay(&head, Micros(passed)), most.map(Micros), "{timeout} after {passed}");
        }
    }

    #[test]
    fn the_field_counts_for_grpc_alone() {
        for (kind, is_one) in [
            ("application/grpc", true),
            ("Application/GRPC;x", true),
            ("application/grpc-web", false),
            ("application/json", false),
            ("", false),
        ] {
            let head = head(kind, "1S");
            assert_eq!((is_grpc(&head), longest_delay(&head, Micros(0)).is_some()), (is_one, is_one), "{kind}");
        }
    }
}

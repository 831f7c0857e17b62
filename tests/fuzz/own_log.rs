//! Tests properties of the parser of this gateway's access log, on modified logs.

use super::mutation::fuzz;
use decision::access_log_line::{Kind, Line};

#[test]
fn access_line() {
    let words: &[&[u8]] = &[
        b"\"limits\":[",
        b"\"attributes\":{",
        b"\"remaining\":",
        b"\"cost\":",
        b"null",
        b"1e300",
        b"-0.0",
        b"0.0005",
        b"18446744073709551615",
        b"\\u0000",
        b"\\ud800",
        b"\x1b[2J",
        b"\r\n",
        b"\xff",
        b"9999-12-31T23:59:60Z",
        b"+23:59",
        b"{\"time\":",
        b"}",
        b"]",
        b",",
    ];
    fuzz("access-line", words, |bytes| {
        let line = match Line::read(bytes) {
            Ok(line) => line,
            // The answer contains roughly how far the parser came.
            Err(error) => return Err((error.is_eof(), error.is_data(), error.column() / 16)),
        };
        let mut written = Vec::new();
        line.write(&mut written);
        let (end, inner) = written.split_last().expect("what was read can be written");
        assert!(*end == b'\n' && inner.iter().all(|byte| *byte >= b' '), "{}", written.escape_ascii());
        // A number with more than three decimals, or outside of all bounds, is rounded once and does not change again.
        let again = Line::read(&written).expect("what was written can be read");
        let mut same = Vec::new();
        again.write(&mut same);
        assert_eq!(same.escape_ascii().to_string(), written.escape_ascii().to_string());
        assert_eq!((&again.request_id, again.time, again.kind), (&line.request_id, line.time, line.kind));
        let amounts = (
            line.cost.map(|cost| cost.thousandths().checked_ilog2()),
            line.remaining.map(|left| left.thousandths().checked_ilog2()),
        );
        Ok((line.kind == Kind::Refused, line.limits.len().min(4), line.attributes.len().min(4), amounts))
    });
}

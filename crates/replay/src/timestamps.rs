//! Parses the timestamps of logs: RFC 3339, nginx's and Apache's format, and numbers since the epoch.

use base::rfc3339::{self, decimal};
use base::time::Timestamp;

/// A time in a log, and the precision with which the log writes times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogTimestamp {
    pub at: Timestamp,
    pub grain: Grain,
}

/// The resolution of a log's timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// The log writes fractions of a second.
    Fine,
    /// The log writes whole seconds.
    Second,
}

const SECOND: u64 = 1_000_000;
const MONTHS: [&[u8]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

impl LogTimestamp {
    /// Parses a time as logs write it: a number since the epoch, nginx's format, or RFC 3339. `None` for any other
    /// text.
    pub(crate) fn parse(text: &str) -> Option<LogTimestamp> {
        let text = text.trim();
        number(text).or_else(|| nginx(text.as_bytes())).or_else(|| date_and_time(text))
    }
}

/// Parses `2026-11-21T14:51:52.123Z`, also with a space between date and time.
fn date_and_time(text: &str) -> Option<LogTimestamp> {
    let at = Timestamp(u64::try_from(rfc3339::parse(text)?).ok()?);
    let grain = if text.contains('.') { Grain::Fine } else { Grain::Second };
    Some(LogTimestamp { at, grain })
}

/// Parses the time format of nginx and Apache, as in `21/Nov/2026:14:51:52 +0100`, without brackets. `None` for any
/// other text.
pub(crate) fn nginx(text: &[u8]) -> Option<LogTimestamp> {
    let [
        d0,
        d1,
        b'/',
        month @ ..,
        b'/',
        y0,
        y1,
        y2,
        y3,
        b':',
        h0,
        h1,
        b':',
        m0,
        m1,
        b':',
        s0,
        s1,
        b' ',
        sign,
        z0,
        z1,
        z2,
        z3,
    ] = text
    else {
        return None;
    };
    let month = (1u32..).zip(MONTHS).find(|(_, name)| *name == month)?.0;
    let [day, hour, minute, second] =
        [decimal(&[*d0, *d1])?, decimal(&[*h0, *h1])?, decimal(&[*m0, *m1])?, decimal(&[*s0, *s1])?];
    let local = rfc3339::seconds_since_epoch([decimal(&[*y0, *y1, *y2, *y3])?, month, day, hour, minute, second])?;
    let east = i64::from(decimal(&[*z0, *z1])?) * 3600 + i64::from(decimal(&[*z2, *z3])?) * 60;
    let seconds = match sign {
        b'+' => local - east,
        b'-' => local + east,
        _ => return None,
    };
    Some(LogTimestamp { at: Timestamp(u64::try_from(seconds).ok()?.checked_mul(SECOND)?), grain: Grain::Second })
}

/// Parses seconds, milliseconds, microseconds or nanoseconds since the epoch. The unit is recognised by the number of
/// digits: a time in this century has 10, 13, 16 or 19 digits. All units may have decimals.
fn number(text: &str) -> Option<LogTimestamp> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 19 || !digits(whole) || !digits(decimals) || text.ends_with('.') {
        return None;
    }
    let whole_part: u64 = whole.parse().ok()?;
    // The factor to convert to microseconds. Nanoseconds are truncated.
    let (scale, cut) = match whole.len() {
        ..=11 => (1_000_000, 1),
        12..=14 => (1_000, 1),
        15..=17 => (1, 1),
        _ => (1, 1_000),
    };
    let fraction = decimals.bytes().take(6).fold((0, scale), |(sum, unit), digit| {
        let unit = unit / 10;
        (sum + u64::from(digit - b'0') * unit, unit)
    });
    let at = Timestamp((whole_part / cut).checked_mul(scale)?.checked_add(fraction.0)?);
    let grain = if scale == SECOND && decimals.is_empty() { Grain::Second } else { Grain::Fine };
    Some(LogTimestamp { at, grain })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: impl Into<Option<(u64, Grain)>>) {
        let expected = expected.into().map(|(at, grain)| LogTimestamp { at: Timestamp(at), grain });
        assert_eq!(LogTimestamp::parse(text), expected, "{text}");
    }

    #[test]
    fn the_same_moment_is_read_however_it_is_written() {
        let moment = 1_795_272_712_000_000;
        for text in [
            "2026-11-21T14:51:52Z",
            "2026-11-21T15:51:52+01:00",
            "2026-11-21 14:51:52Z",
            "21/Nov/2026:14:51:52 +0000",
            "21/Nov/2026:09:21:52 -0530",
            "1795272712",
        ] {
            check(text, (moment, Grain::Second));
        }
        for text in [
            "2026-11-21T14:51:52.123456Z",
            "2026-11-21T14:51:52.123456789Z",
            "1795272712.123456",
            "1795272712123.456",
            "1795272712123456",
            "1795272712123456789",
        ] {
            check(text, (moment + 123_456, Grain::Fine));
        }
        check("1795272712123", (moment + 123_000, Grain::Fine));
        check("1795272712.5", (moment + 500_000, Grain::Fine));
    }

    #[test]
    fn an_invalid_moment_is_rejected() {
        for text in [
            "",
            "-",
            "now",
            "-1",
            "1e9",
            "1795272712.",
            ".5",
            "99999999999999999999",
            "32/Nov/2026:14:51:52 +0000",
            "21/Now/2026:14:51:52 +0000",
            "21/Nov/2026:24:51:52 +0000",
            "21/Nov/2026:14:51:52",
            "2026-11-21",
            "2026-11-21T14:51:52",
            "1960-01-01T00:00:00Z",
            "01/Jan/1960:00:00:00 +0000",
        ] {
            check(text, None);
        }
    }
}

//! Parses and formats dates and times in the format of RFC 3339, with years of four digits. Formats them in UTC.

use jiff::SignedDuration;
use jiff::civil::DateTime;

use crate::time::Timestamp;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Parses a date and time with an offset from UTC. The date and the time are separated by `T` or a space. Returns microseconds
/// since the Unix epoch, negative before 1970. `None` if the text is invalid.
pub fn parse(text: &str) -> Option<i64> {
    let (moment, rest) = text.as_bytes().split_at_checked(19)?;
    let [date @ .., b'T' | b't' | b' ', h0, h1, b':', m0, m1, b':', s0, s1] = moment else { return None };
    let [y0, y1, y2, y3, b'-', o0, o1, b'-', d0, d1] = date else { return None };
    let year = decimal(&[*y0, *y1, *y2, *y3])?;
    let [month, day] = [decimal(&[*o0, *o1])?, decimal(&[*d0, *d1])?];
    let [hour, minute, second] = [decimal(&[*h0, *h1])?, decimal(&[*m0, *m1])?, decimal(&[*s0, *s1])?];
    // A leap second counts as the first second of the next minute.
    let leap = i64::from(second == 60);
    let second = if second == 60 { 59 } else { second };
    let (micros, offset) = match rest.split_first() {
        Some((b'.', rest)) => fraction(rest)?,
        _ => (0, rest),
    };
    let seconds = seconds_since_epoch([year, month, day, hour, minute, second])? + leap - east(offset)?;
    Some(seconds * 1_000_000 + micros)
}

/// Converts a year, month, day, hour, minute and second in UTC to seconds since the Unix epoch. `None` for a date or a time
/// that does not exist.
pub fn seconds_since_epoch([year, month, day, hour, minute, second]: [u32; 6]) -> Option<i64> {
    let [month, day, hour, minute, second] =
        [month, day, hour, minute, second].map(|number| i8::try_from(number).unwrap_or(i8::MAX));
    let moment = DateTime::new(i16::try_from(year).ok()?, month, day, hour, minute, second, 0).ok()?;
    Some(moment.duration_since(EPOCH).as_secs())
}

/// Parses a number that consists of decimal digits. `None` if another byte occurs, or if the number is too large.
pub fn decimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0u32, |sum, digit| {
        let digit = digit.is_ascii_digit().then(|| u32::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Converts a moment to a date and time in UTC. A moment after the year 9999 becomes the last moment of that year.
pub fn date_time(at: Timestamp) -> DateTime {
    let moment = i64::try_from(at.0).ok().and_then(|at| EPOCH.checked_add(SignedDuration::from_micros(at)).ok());
    moment.unwrap_or(DateTime::MAX)
}

/// Formats a moment with whole seconds: `2026-11-24T15:04:05Z`.
pub fn format_seconds(at: Timestamp) -> String {
    format!("{:.0}Z", date_time(at))
}

/// Formats a moment with microseconds: `2026-11-24T15:04:05.123456Z`.
pub fn format_micros(at: Timestamp) -> String {
    format!("{:.6}Z", date_time(at))
}

/// Returns the microseconds of a fraction, and the text after the fraction. Digits after the sixth are dropped.
fn fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at_checked(length).filter(|_| length > 0)?;
    let digits = digits.iter().chain(std::iter::repeat(&b'0')).take(6);
    Some((digits.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')), rest))
}

/// Parses an offset from UTC. Returns the offset in seconds, negative for an offset west of UTC.
fn east(offset: &[u8]) -> Option<i64> {
    let (sign, h0, h1, m0, m1) = match offset {
        [b'Z' | b'z'] => return Some(0),
        [b'+', h0, h1, b':', m0, m1] => (1, h0, h1, m0, m1),
        [b'-', h0, h1, b':', m0, m1] => (-1, h0, h1, m0, m1),
        _ => return None,
    };
    let (hours, minutes) = (decimal(&[*h0, *h1])?, decimal(&[*m0, *m1])?);
    (hours < 24 && minutes < 60).then(|| sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_moment_needs_a_date_a_time_and_an_offset() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1969-12-31T23:59:59.5Z", Some(-500_000)),
            ("2000-02-29T12:34:56Z", Some(951_827_696_000_000)),
            ("2000-02-29t13:34:56.1234567899+01:00", Some(951_827_696_123_456)),
            ("2000-02-29 11:04:56.10z", Some(951_822_296_100_000)),
            ("2000-02-29T11:04:56-01:30", Some(951_827_696_000_000)),
            ("2016-12-31T23:59:60Z", Some(1_483_228_800_000_000)),
            ("9999-12-31T23:59:59.999999Z", Some(253_402_300_799_999_999)),
            ("1900-02-29T00:00:00Z", None),
            ("2000-02-29T12:34:56", None),
            ("2000-02-29T12:34Z", None),
            ("2000-02-29T12:34:56.Z", None),
            ("2000-02-29T12:34:56,5Z", None),
            ("2000-02-29T24:00:00Z", None),
            ("2000-02-29T12:34:61Z", None),
            ("2000-02-29T12:34:56+24:00", None),
            ("2000-02-29T12:34:56+01:60", None),
            ("2000-02-29T12:34:56+01", None),
            ("2000-02-29T12:34:56Z[UTC]", None),
            ("+2000-02-29T12:34:56Z", None),
            (" 2000-02-29T12:34:56Z", None),
            ("2000-13-01T00:00:00Z", None),
            ("2000-99-99T99:99:99Z", None),
            ("", None),
        ] {
            assert_eq!(parse(text), micros, "{text}");
        }
    }

    #[test]
    fn a_moment_after_9999_is_the_end_of_9999() {
        for at in [Timestamp(253_402_300_800_000_000), Timestamp(u64::MAX)] {
            assert_eq!(format_micros(at), "9999-12-31T23:59:59.999999Z");
        }
    }

    /// Generates texts that are dates and times, or similar. A fraction has at most nine digits, because jiff accepts
    /// no more.
    fn texts() -> impl Strategy<Value = String> {
        let moment = (0u32..=9999, 0u32..14, 0u32..33, 0u32..25, 0u32..61, 0u32..62);
        let forms = ("[Tt _]", "(\\.[0-9]{0,9})?", "[Zz]|[+-][0-2][0-9]:[0-6][0-9]|[+-][0-9]{2,4}|");
        (moment, forms).prop_map(|((year, month, day, hour, minute, second), (separator, fraction, offset))| {
            format!("{year:04}-{month:02}-{day:02}{separator}{hour:02}:{minute:02}:{second:02}{fraction}{offset}")
        })
    }

    proptest! {
        // Leap seconds are left out, because jiff reads a leap second as the second before it.
        #[test]
        fn a_moment_is_the_one_that_jiff_parses(text in texts().prop_filter("a leap second", |text| !text.contains(":60"))) {
            if let Some(micros) = parse(&text) {
                let nanoseconds = text.parse::<jiff::Timestamp>().unwrap().as_nanosecond();
                prop_assert_eq!(i128::from(micros), nanoseconds.div_euclid(1000));
            }
        }

        #[test]
        fn a_text_of_jiff_is_parsed(seconds in -62_167_219_200i64..=253_402_207_200, nanos in 0i32..1_000_000_000) {
            let moment = jiff::Timestamp::new(seconds, 0).unwrap() + SignedDuration::new(0, nanos);
            prop_assert_eq!(parse(&moment.to_string()).map(i128::from), Some(moment.as_nanosecond().div_euclid(1000)));
        }

        #[test]
        fn a_formatted_moment_is_parsed_back(micros in 0u64..=253_402_300_799_999_999) {
            let at = Timestamp(micros);
            prop_assert_eq!(parse(&format_micros(at)), i64::try_from(micros).ok());
            prop_assert_eq!(parse(&format_seconds(at)), i64::try_from(micros / 1_000_000 * 1_000_000).ok());
        }
    }
}

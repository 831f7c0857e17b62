//! The value at a pointer: at most [`Value::MAX_BYTES`] of it are kept.

use super::number::{NumberPlace, NumberStep};

/// A value of JSON, without the contents of arrays and objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Bool(bool),
    Number(Number),
    /// A string with its escapes decoded. Half of a surrogate pair is U+FFFD.
    Text(String),
    /// A number or a string longer than [`Value::MAX_BYTES`].
    TooLong,
    Array,
    Object,
}

impl Value {
    /// The largest number of bytes of a number or a decoded string that is kept.
    pub const MAX_BYTES: usize = 1024;

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_number(&self) -> Option<&Number> {
        match self {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }
}

/// A number of JSON, as the text that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Number(String);

impl Number {
    /// `text` must be a number by RFC 8259, section 6.
    pub(crate) fn new(text: String) -> Number {
        Number(text)
    }

    /// Returns the number that a lenient reader finds in a text: white space around it, a plus sign, zeros before it
    /// and underscores between its digits do not matter. `None` if the text is no number.
    ///
    /// ```
    /// use llm::json::Number;
    ///
    /// assert_eq!(Number::in_text(" +0100_000 ").and_then(|number| number.ceil(0)), Some(100_000));
    /// assert_eq!(Number::in_text("many"), None);
    /// ```
    pub fn in_text(text: &str) -> Option<Number> {
        let text = text.trim();
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", text.strip_prefix('+').unwrap_or(text)),
        };
        let digits = digits.replace('_', "");
        let digits = match digits.trim_start_matches('0') {
            after if after.starts_with(|digit: char| digit.is_ascii_digit()) => after.to_owned(),
            after if digits.len() > after.len() || after.starts_with('.') && after.len() > 1 => format!("0{after}"),
            _ => return None,
        };
        let digits = digits.strip_suffix('.').unwrap_or(&digits);
        let mut bytes = digits.bytes();
        let mut place = NumberPlace::first(bytes.next()?)?;
        for byte in bytes {
            let NumberStep::More(next) = place.next(byte) else { return None };
            place = next;
        }
        place.can_end().then(|| Number(format!("{sign}{digits}")))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The number in units of `10^-scale`, rounded up, at most [`u64::MAX`]. `None` if it is negative. `-0` is 0.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use llm::json::{Interest, JsonScanner, Pointer, PointerSet, Lookup};
    ///
    /// let root = PointerSet::new([(Pointer::parse("").unwrap(), Interest::Value)]);
    /// let mut scanner = JsonScanner::new(&root, 100);
    /// scanner.push(b"1.25e1");
    /// scanner.finish().unwrap();
    /// let Lookup::Value(value) = scanner.value(0) else { panic!() };
    /// let number = value.as_number().unwrap();
    /// assert_eq!(number.ceil(0), Some(13));
    /// assert_eq!(number.ceil(3), Some(12_500));
    /// ```
    pub fn ceil(&self, scale: u8) -> Option<u64> {
        let (is_negative, text) = match self.0.strip_prefix('-') {
            Some(text) => (true, text),
            None => (false, self.0.as_str()),
        };
        let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let digits = || integer.bytes().chain(fraction.bytes());
        if digits().all(|digit| digit == b'0') {
            return Some(0);
        }
        if is_negative {
            return None;
        }
        // If the exponent is too large for its type, the digits do not matter.
        let exponent = exponent.parse::<i64>().unwrap_or(if exponent.starts_with('-') { i64::MIN } else { i64::MAX });
        let point = i64::try_from(integer.len()).unwrap_or(i64::MAX);
        // The number of digits before the point, in units of `10^-scale`.
        let point = exponent.saturating_add(point).saturating_add(i64::from(scale));
        let mut whole: u64 = 0;
        let mut digits = digits().map(|digit| u64::from(digit - b'0'));
        let mut left = point;
        let mut is_up = false;
        while left > 0 {
            // After the last digit, all digits are 0. The product soon exceeds its type.
            let digit = digits.next();
            let next = whole.checked_mul(10).and_then(|tens| tens.checked_add(digit.unwrap_or(0)));
            let Some(next) = next else { return Some(u64::MAX) };
            whole = next;
            left -= 1;
        }
        is_up |= digits.any(|digit| digit != 0);
        Some(whole.saturating_add(u64::from(is_up)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, scale: u8, expected: Option<u64>) {
        assert_eq!(Number::new(text.to_owned()).ceil(scale), expected, "{text} in 10^-{scale}");
    }

    #[test]
    fn a_number_is_rounded_up_and_bounded() {
        for (text, expected) in [
            ("0", 0),
            ("-0", 0),
            ("-0.000e9", 0),
            ("12", 12),
            ("12.0", 12),
            ("12.000001", 13),
            ("0.1", 1),
            ("1e3", 1000),
            ("1E+3", 1000),
            ("1.25e1", 13),
            ("1250e-2", 13),
            ("1300e-2", 13),
            ("1e-999999999999999999999", 1),
            ("1e999999999999999999999", u64::MAX),
            ("0e999999999999999999999", 0),
            ("18446744073709551615", u64::MAX),
            ("18446744073709551614", u64::MAX - 1),
            ("18446744073709551616", u64::MAX),
        ] {
            check(text, 0, Some(expected));
        }
        check("-1", 0, None);
        check("-1e-99", 0, None);
        check("0.0025", 3, Some(3));
        check("2.5", 3, Some(2500));
    }
}

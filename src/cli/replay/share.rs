//! Parses and formats shares of requests.

use std::fmt;

use ledger::cost::{Cost, ExtraDecimals};

/// A share of requests, in thousandths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share(Cost);

impl Share {
    /// Parses a share such as `1%` or `0.5 %`.
    ///
    /// # Errors
    /// If the text is not a share. The error says what a share must be.
    pub(super) fn parse(text: &str) -> Result<Share, String> {
        let number = text.strip_suffix('%').map(str::trim_end).map(str::as_bytes);
        let share = number.and_then(|number| Cost::parse(number, ExtraDecimals::Refuse)).map(Share);
        let share = share.filter(|share| share.0 <= Cost::from_tokens(100));
        share.ok_or_else(|| "must be a percentage like 1% or 0.5%, with at most 3 decimals".to_owned())
    }

    pub(super) fn millionths(self) -> u64 {
        self.0.thousandths() * 10
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

/// Formats a share as in `1.3 %`. A share above zero is never `0.0 %`, and a share below the whole is never `100.0 %`.
pub(super) fn percent(part: u64, whole: u64) -> String {
    let tenths = (u128::from(part) * 2000 + u128::from(whole)).checked_div(2 * u128::from(whole)).unwrap_or(0);
    match tenths {
        0 if part > 0 => "<0.1 %".to_owned(),
        1000 if part < whole => ">99.9 %".to_owned(),
        _ => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

/// Formats a number in groups of three digits, as in `1 204 343`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a number with its noun, as in `1 line` and `1 204 lines`.
pub(super) fn counted(number: u64, word: &str) -> String {
    format!("{} {word}{}", grouped(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage() {
        for (text, millionths) in [("1%", 10_000), ("0.5 %", 5_000), ("0%", 0), ("100%", 1_000_000), ("0.001%", 10)] {
            assert_eq!(Share::parse(text).map(Share::millionths), Ok(millionths), "{text}");
        }
        for text in ["", "1", "%", "-1%", "101%", "1.0001%", "1e1%"] {
            assert!(Share::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_percentage_is_0_or_100_only_if_that_is_exact() {
        for (part, whole, text) in [
            (0, 0, "0.0 %"),
            (0, 7, "0.0 %"),
            (1, 100_000, "<0.1 %"),
            (99_999, 100_000, ">99.9 %"),
            (1, 3, "33.3 %"),
            (2, 3, "66.7 %"),
            (7, 7, "100.0 %"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
    }

    #[test]
    fn numbers_are_grouped_by_three() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1 000"), (1_204_343, "1 204 343")] {
            assert_eq!(grouped(number), text);
        }
    }
}

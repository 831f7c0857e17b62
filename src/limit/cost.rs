//! Counts tokens, exactly: the one unit in which prices, bursts and rates are written.

use std::fmt;

/// An amount of tokens, in thousandths of one. Never a float: three decimals are all that can be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

/// What a decimal does beyond its third place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// It is an error: an operator meant what was written.
    Refuse,
    /// It counts as one more thousandth: a client never pays less than it asked for.
    RoundUp,
}

impl Cost {
    pub const ONE: Cost = Cost(1000);

    pub const fn from_thousandths(thousandths: u64) -> Cost {
        Cost(thousandths)
    }

    /// Whole tokens; saturates far beyond anything that a limit can hold.
    pub const fn from_tokens(tokens: u64) -> Cost {
        Cost(tokens.saturating_mul(1000))
    }

    pub const fn thousandths(self) -> u64 {
        self.0
    }

    /// Whole tokens, rounded down: the unit that clients are told.
    pub const fn whole(self) -> u64 {
        self.0 / 1000
    }

    /// Reads `[0-9]+(\.[0-9]+)?`: no sign, exponent, hexadecimal or `nan`. A number beyond all bounds saturates.
    pub fn parse(text: &[u8], beyond: Beyond) -> Option<Cost> {
        let point = text.iter().position(|byte| *byte == b'.');
        let (whole, decimals) = match point {
            Some(point) => (&text[..point], &text[point + 1..]),
            None => (text, &b"0"[..]),
        };
        let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
        if !digits(whole) || !digits(decimals) {
            return None;
        }
        let (kept, rest) = decimals.split_at(decimals.len().min(3));
        let excess = rest.iter().any(|digit| *digit != b'0');
        if excess && beyond == Beyond::Refuse {
            return None;
        }
        let number = |part: &[u8]| {
            part.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
        };
        let scale = [1000, 100, 10, 1][kept.len()];
        let thousandths = number(whole).saturating_mul(1000).saturating_add(number(kept) * scale);
        Some(Cost(thousandths.saturating_add(u64::from(excess))))
    }
}

/// As an operator would write it: `20`, `0.5`.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 1000 {
            0 => write!(f, "{}", self.0 / 1000),
            part => write!(f, "{}.{}", self.0 / 1000, format!("{part:03}").trim_end_matches('0')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, thousandths: impl Into<Option<u64>>) {
        let expected = thousandths.into().map(Cost);
        assert_eq!(Cost::parse(text.as_bytes(), Beyond::RoundUp), expected, "{text}");
    }

    #[test]
    fn a_cost_is_a_plain_decimal() {
        check("1", 1000);
        check("007", 7000);
        check("0.5", 500);
        check("2.125", 2125);
        check("2.1250", 2125);
        check("2.1251", 2126);
        check("0.0001", 1);
        check("99999999999999999999999999999999999999999", u64::MAX);
        for text in ["", ".", "1.", ".5", "-1", "+1", "1e3", "0x10", "nan", "inf", "1_000", "1,5", " 5", "5 ", "١"] {
            check(text, None);
        }
    }

    #[test]
    fn an_operator_cannot_write_a_fourth_decimal() {
        assert_eq!(Cost::parse(b"0.0001", Beyond::Refuse), None);
        assert_eq!(Cost::parse(b"0.1230", Beyond::Refuse), Some(Cost(123)));
    }

    #[test]
    fn a_cost_prints_as_it_is_written() {
        assert_eq!(Cost(1500).to_string(), "1.5");
        assert_eq!(Cost(20_000).to_string(), "20");
        assert_eq!(Cost(1).to_string(), "0.001");
    }
}

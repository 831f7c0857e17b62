//! Defines exact amounts of tokens, for prices, bursts and rates.

use std::fmt;

use base::split::split_once;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An amount of tokens, in thousandths of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

/// How a number with more than three decimals is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraDecimals {
    /// The number is rejected if a decimal after the third is not zero. Used for the settings of limits.
    Refuse,
    /// The number is rounded up to the next thousandth. Used for a cost that a client names.
    RoundUp,
}

impl Cost {
    pub const ONE: Cost = Cost(1000);

    pub const fn from_thousandths(thousandths: u64) -> Cost {
        Cost(thousandths)
    }

    /// Makes a cost of whole tokens. The result saturates.
    pub const fn from_tokens(tokens: u64) -> Cost {
        Cost(tokens.saturating_mul(1000))
    }

    pub const fn thousandths(self) -> u64 {
        self.0
    }

    /// Returns the number of whole tokens, rounded down, as clients see it.
    pub const fn whole(self) -> u64 {
        self.0 / 1000
    }

    /// Returns the cost rounded up to whole tokens.
    #[must_use]
    pub const fn ceil(self) -> Cost {
        Cost::from_tokens(self.0.div_ceil(1000))
    }

    /// Returns the sum of both costs. The sum saturates.
    #[must_use]
    pub const fn plus(self, other: Cost) -> Cost {
        Cost(self.0.saturating_add(other.0))
    }

    /// Returns this cost minus `other`, or zero if `other` is larger.
    #[must_use]
    pub const fn less(self, other: Cost) -> Cost {
        Cost(self.0.saturating_sub(other.0))
    }

    /// Returns this cost times `count`. The result saturates.
    #[must_use]
    pub const fn times(self, count: u64) -> Cost {
        Cost(self.0.saturating_mul(count))
    }

    /// Returns the cost, raised to `min` or lowered to `max`. If `min` exceeds `max`, returns `max`. `None` is no
    /// upper bound.
    pub fn bounded(self, min: Cost, max: Option<Cost>) -> Cost {
        let cost = self.max(min);
        max.map_or(cost, |max| cost.min(max))
    }

    /// Parses `[0-9]+(\.[0-9]+)?`. `None` for any other text. A number that is too large saturates. `beyond` says how
    /// to treat decimals after the third.
    pub fn parse(text: &[u8], beyond: ExtraDecimals) -> Option<Cost> {
        let (whole, decimals) = split_once(text, b'.').unwrap_or((text, b"0"));
        let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
        if !digits(whole) || !digits(decimals) {
            return None;
        }
        let (kept, rest) = decimals.split_at(decimals.len().min(3));
        let excess = rest.iter().any(|digit| *digit != b'0');
        if excess && beyond == ExtraDecimals::Refuse {
            return None;
        }
        let number = |part: &[u8]| {
            part.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
        };
        let scale = match kept.len() {
            0 | 1 => 100,
            2 => 10,
            _ => 1,
        };
        let thousandths = number(whole).saturating_mul(1000).saturating_add(number(kept) * scale);
        Some(Cost(thousandths.saturating_add(u64::from(excess))))
    }
}

/// Returns the cost of a request that may name its own cost in `text`, limited to the range from `min` to `max`.
/// Returns `default` if the text is missing or is not a positive decimal.
pub fn requested_cost(text: Option<&[u8]>, default: Cost, min: Cost, max: Option<Cost>) -> Cost {
    let cost = text.and_then(|text| Cost::parse(text, ExtraDecimals::RoundUp)).filter(|cost| *cost > Cost::default());
    cost.map_or(default, |cost| cost.bounded(min, max))
}

/// Displays the cost as an operator would write it: `20`, `0.5`.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 1000 {
            0 => write!(f, "{}", self.0 / 1000),
            part => write!(f, "{}.{}", self.0 / 1000, format!("{part:03}").trim_end_matches('0')),
        }
    }
}

/// The cost from which on a double cannot represent every thousandth of a token.
const COARSE: Cost = Cost::from_tokens(1 << 40);

/// Serializes the cost as a JSON number. Costs above 2^40 tokens are rounded down to whole tokens.
impl Serialize for Cost {
    #[expect(clippy::cast_precision_loss, reason = "no precision is lost below 2^50 thousandths")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.is_multiple_of(1000) || *self >= COARSE {
            true => serializer.serialize_u64(self.whole()),
            false => serializer.serialize_f64(self.0 as f64 / 1000.0),
        }
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cost, D::Error> {
        deserializer.deserialize_any(Number)
    }
}

struct Number;

impl de::Visitor<'_> for Number {
    type Value = Cost;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of tokens")
    }

    fn visit_u64<E: de::Error>(self, tokens: u64) -> Result<Cost, E> {
        Ok(Cost::from_tokens(tokens))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is a number from 0 on, or saturates"
    )]
    fn visit_f64<E: de::Error>(self, tokens: f64) -> Result<Cost, E> {
        match tokens >= 0.0 {
            true => Ok(Cost((tokens * 1000.0).round() as u64)),
            false => Err(E::invalid_value(de::Unexpected::Float(tokens), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, thousandths: impl Into<Option<u64>>) {
        let expected = thousandths.into().map(Cost);
        assert_eq!(Cost::parse(text.as_bytes(), ExtraDecimals::RoundUp), expected, "{text}");
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
        assert_eq!(Cost::parse(b"0.0001", ExtraDecimals::Refuse), None);
        assert_eq!(Cost::parse(b"0.1230", ExtraDecimals::Refuse), Some(Cost(123)));
    }

    #[test]
    fn a_cost_is_a_number_with_three_decimals_in_json() {
        for (thousandths, json) in [
            (0, "0"),
            (1000, "1"),
            (1, "0.001"),
            (2_125, "2.125"),
            (17_300, "17.3"),
            ((1000 << 40) - 1, "1099511627775.999"),
        ] {
            assert_eq!(serde_json::to_string(&Cost(thousandths)).unwrap(), json);
            assert_eq!(serde_json::from_str::<Cost>(json).unwrap(), Cost(thousandths));
        }
        assert_eq!(serde_json::to_string(&Cost(u64::MAX)).unwrap(), "18446744073709551");
        assert_eq!(serde_json::from_str::<Cost>("1e400").ok(), None);
        assert_eq!(serde_json::from_str::<Cost>("-1").ok(), None);
        assert_eq!(serde_json::from_str::<Cost>("-0.5").ok(), None);
        assert_eq!(serde_json::from_str::<Cost>("\"1\"").ok(), None);
    }

    proptest::proptest! {
        #[test]
        fn a_cost_is_read_back_from_json(thousandths in 0..1000u64 << 40) {
            let json = serde_json::to_string(&Cost(thousandths)).unwrap();
            assert_eq!(serde_json::from_str::<Cost>(&json).unwrap(), Cost(thousandths), "{}", json);
        }
    }

    #[test]
    fn a_cost_prints_as_it_is_written() {
        assert_eq!(Cost(1500).to_string(), "1.5");
        assert_eq!(Cost(20_000).to_string(), "20");
        assert_eq!(Cost(1).to_string(), "0.001");
    }
}

//! A price as a whole number, read from decimal text without rounding.

/// The price of a million tokens, in whole 10⁻⁹ USD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(u64);

impl Price {
    /// The number of tokens that a price is for.
    pub(super) const TOKENS: u128 = 1_000_000;
    /// The highest price in USD for a million tokens: a dollar for each token.
    pub const MAX_DOLLARS: u64 = 1_000_000;
    /// The largest number of digits after the point.
    pub const MAX_DIGITS: usize = 9;

    /// Parses USD for a million tokens: digits, or digits with a point between them. `None` for any other text, more
    /// than [`Price::MAX_DIGITS`] digits after the point, or more than [`Price::MAX_DOLLARS`].
    pub fn parse(text: &str) -> Option<Price> {
        let (dollars, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(dollars) || !is_digits(fraction) || fraction.len() > Self::MAX_DIGITS {
            return None;
        }
        let dollars: u64 = dollars.parse().ok()?;
        let fraction: u64 = format!("{fraction:0<width$}", width = Self::MAX_DIGITS).parse().ok()?;
        let price = dollars.checked_mul(1_000_000_000)?.checked_add(fraction)?;
        (price <= Self::MAX_DOLLARS * 1_000_000_000).then_some(Price(price))
    }

    pub(super) fn nano_dollars(self) -> u128 {
        u128::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_read_without_rounding() {
        let price = |text| Price::parse(text).map(|price| price.0);
        assert_eq!(price("0"), Some(0));
        assert_eq!(price("2.50"), Some(2_500_000_000));
        assert_eq!(price("0.000000001"), Some(1));
        assert_eq!(price("0012.5"), Some(12_500_000_000));
        assert_eq!(price("1000000.000000000"), Some(1_000_000_000_000_000));
        for wrong in [
            "",
            ".",
            ".5",
            "5.",
            "-1",
            "+1",
            "1e3",
            "1,5",
            "1.0000000000",
            "1000000.000000001",
            "1 ",
            "0x1",
            "1.2.3",
            "99999999999999999999",
            "٣",
            "$1",
            "NaN",
        ] {
            assert_eq!(price(wrong), None, "{wrong}");
        }
    }
}

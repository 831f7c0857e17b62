//! Parses durations: `250ms`, `20s`, `5m`, `1h`, `1d`.

use crate::base::time::Micros;

/// `None` for a number without a unit, a fraction, or more microseconds than 64 bits hold.
pub fn parse(text: &str) -> Option<Micros> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let scale: u64 = match unit {
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale).map(Micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_with_a_unit() {
        assert_eq!(parse("250ms"), Some(Micros(250_000)));
        assert_eq!(parse("1d"), Some(Micros(86_400_000_000)));
        for text in ["", "5", "s", "1.5s", "-1s", "5 s", "5S", "5us", "99999999999999999999s"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

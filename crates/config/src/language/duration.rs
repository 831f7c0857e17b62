//! Parses durations (`250ms`, `20s`, `5m`, `1h`, `1d`) and units of time.

use base::time::Micros;

/// Parses a duration, such as `250ms`. `None` without a unit, for a fraction, or if the length does not fit into 64
/// bits.
pub(crate) fn parse(text: &str) -> Option<Micros> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, name) = text.split_at(unit_at);
    number.parse::<u64>().ok()?.checked_mul(unit(name)?.0).map(Micros)
}

/// Returns the length of the unit with this name. `None` for an unknown name. The name `m` is a minute, not a month.
pub(crate) fn unit(name: &str) -> Option<Micros> {
    Some(Micros(match name {
        "ms" => 1_000,
        "s" | "sec" | "second" => 1_000_000,
        "m" | "min" | "minute" => 60_000_000,
        "h" | "hour" => 3_600_000_000,
        "d" | "day" => 86_400_000_000,
        _ => return None,
    }))
}

/// Formats a duration as gateway.yaml writes it, in the largest unit in which it is whole: `50m`, `1500ms`.
pub(crate) fn print(duration: Micros) -> String {
    let mut units = ["d", "h", "m", "s"].into_iter().filter_map(|name| Some((name, unit(name)?.0)));
    let whole = units.find(|(_, length)| duration.0 > 0 && duration.0.is_multiple_of(*length));
    whole.map_or_else(|| format!("{}ms", duration.0 / 1000), |(name, length)| format!("{}{name}", duration.0 / length))
}

/// Returns the hint for a rate per week, month or year, such as `100/month`. Such a period is a window of a calendar. `None` for any
/// other text.
pub(crate) fn calendar_hint(text: &str) -> Option<String> {
    let (amount, period) = text.split_once('/')?;
    let is_number = !amount.is_empty() && amount.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let period = ["week", "month", "year"].into_iter().find(|name| period.trim_end_matches('s') == *name)?;
    is_number
        .then(|| format!("a {period} is a window: `algorithm: fixed_window` with `limit: {amount}, window: {period}`"))
}

/// The names of all units except `ms`, as a part of a regular expression.
macro_rules! units {
    () => {
        "s|sec|second|m|min|minute|h|hour|d|day"
    };
}
pub(crate) use units;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_with_a_unit() {
        assert_eq!(parse("250ms"), Some(Micros(250_000)));
        for (units, micros) in [
            (&["s", "sec", "second"][..], 1_000_000),
            (&["m", "min", "minute"], 60_000_000),
            (&["h", "hour"], 3_600_000_000),
            (&["d", "day"], 86_400_000_000),
        ] {
            for unit in units {
                assert_eq!(parse(&format!("2{unit}")), Some(Micros(2 * micros)), "{unit}");
                assert!(units!().split('|').any(|known| known == *unit), "{unit}");
            }
        }
        for text in ["50m", "1500ms", "26h", "2d", "90s", "0ms"] {
            assert_eq!(parse(text).map(print).as_deref(), Some(text));
        }
        for text in ["", "5", "s", "1.5s", "-1s", "5 s", "5S", "5us", "5month", "5seconds", "99999999999999999999s"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

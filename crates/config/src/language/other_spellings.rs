//! Reads numbers, rates, durations and shares in the spelling of other programs, for hints: `1k`, `10r/s`, `5 minutes`, `0.2`.

use crate::language::duration;
use ledger::cost::{Cost, ExtraDecimals};

/// Words behind a number, and what each multiplies it by.
const WORDS: [(&[&str], u64); 3] = [
    (&["", "r", "rq", "req", "reqs", "request", "requests", "hit", "hits", "call", "calls", "tokens"], 1),
    (&["k", "K"], 1_000),
    (&["M"], 1_000_000),
];

/// Rates without a slash, by the word at their end.
const RATES: [(&str, &str); 6] =
    [("rps", "s"), ("r/s", "s"), ("qps", "s"), ("rpm", "min"), ("r/m", "min"), ("rph", "hour")];

/// Units of time in other programs, and their names here.
const UNITS: [(&str, &str); 8] = [
    ("seconds", "s"),
    ("secs", "s"),
    ("minutes", "m"),
    ("mins", "m"),
    ("hours", "h"),
    ("hrs", "h"),
    ("days", "d"),
    ("milliseconds", "ms"),
];

/// Returns the number in another spelling: with separators, an exponent, or a word such as `k`. `None` for any other text.
pub(crate) fn number(text: &str) -> Option<Cost> {
    let text = text.trim();
    if text.contains(['e', 'E']) && !text.contains(char::is_whitespace) {
        let number: f64 = text.parse().ok()?;
        let is_exact = number > 0.0 && number < 1e15 && (number * 1e3).fract() == 0.0;
        return is_exact.then(|| Cost::parse(number.to_string().as_bytes(), ExtraDecimals::Refuse)).flatten();
    }
    let end = text.find(|char: char| !char.is_ascii_digit() && !matches!(char, '.' | ',' | '_')).unwrap_or(text.len());
    let (digits, word) = text.split_at_checked(end)?;
    let (_, times) = WORDS.iter().find(|(words, _)| words.contains(&word.trim()))?;
    let groups: Vec<&str> = digits.split([',', '_']).collect();
    // A comma may also be a decimal point: between thousands there are three digits.
    if groups.iter().skip(1).any(|group| group.split('.').next().is_none_or(|whole| whole.len() != 3)) {
        return None;
    }
    let number = Cost::parse(groups.concat().as_bytes(), ExtraDecimals::Refuse)?;
    number.thousandths().checked_mul(*times).filter(|number| *number > 0).map(Cost::from_thousandths)
}

/// Returns the rate in the spelling of gateway.yaml, such as `10/s` for `10 requests per second`. `None` for any other text.
pub(crate) fn rate(text: &str) -> Option<String> {
    let text = text.trim();
    let by_word = || RATES.iter().find_map(|(word, unit)| Some((text.strip_suffix(word)?, *unit)));
    let (amount, period) = by_word().or_else(|| text.split_once('/')).or_else(|| text.split_once("per"))?;
    let amount = number(amount)?;
    let period = unit_of_rate(period)?;
    if amount.thousandths().is_multiple_of(1000) {
        return Some(format!("{}/{period}", amount.whole()));
    }
    // A fraction is whole in a longer unit.
    let length = duration::unit(&period)?.0;
    ["min", "hour", "day"].into_iter().find_map(|unit| {
        let longer = duration::unit(unit)?.0;
        let amount = amount.thousandths().checked_mul(longer / length)?;
        let is_whole = longer > length && amount.is_multiple_of(1000);
        is_whole.then(|| format!("{}/{unit}", amount / 1000))
    })
}

fn unit_of_rate(period: &str) -> Option<String> {
    let period: String = period.chars().filter(|char| !char.is_whitespace()).collect::<String>().to_ascii_lowercase();
    let is_period = |text: &str| text != "ms" && (duration::unit(text).is_some() || duration::parse(text).is_some());
    let singular = period.strip_suffix('s').filter(|_| !period.ends_with("ms"));
    [Some(&*period), singular].into_iter().flatten().find(|text| is_period(text)).map(str::to_owned)
}

/// Returns the duration in the spelling of gateway.yaml, such as `5m` for `5 minutes`, `1h` for `hour`. `None` for any other text.
pub(crate) fn duration(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (number, name) = text.split_at_checked(end)?;
    let name = name.trim();
    let known = UNITS.iter().find(|(plural, _)| *plural == name || plural.strip_suffix('s') == Some(name));
    let unit = known.map_or(name, |(_, unit)| unit);
    let number = if number.is_empty() { "1" } else { number };
    let written = format!("{number}{unit}");
    (!name.is_empty() && written != text && duration::parse(&written).is_some()).then_some(written)
}

/// Returns the share in the spelling of gateway.yaml, such as `20%` for `0.2`. `None` for any other text.
pub(crate) fn percent(text: &str) -> Option<String> {
    let text = text.trim();
    let number = Cost::parse(text.trim_end_matches('%').trim_end().as_bytes(), ExtraDecimals::Refuse)?;
    let is_fraction = text.contains('.') && number <= Cost::from_tokens(1);
    let hundredths = if is_fraction { number.thousandths().checked_mul(100)? } else { number.thousandths() };
    (hundredths.is_multiple_of(1000) && hundredths <= 100_000).then(|| format!("{}%", hundredths / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_other_programs_are_read_without_a_change_of_their_value() {
        for (text, written) in [
            ("10r/s", Some("10/s")),
            ("10r/m", Some("10/min")),
            ("10 per second", Some("10/second")),
            ("1k/s", Some("1000/s")),
            ("10k/min", Some("10000/min")),
            ("2M/day", Some("2000000/day")),
            ("1,000/s", Some("1000/s")),
            ("1_000_000/day", Some("1000000/day")),
            ("100 / 5min", Some("100/5min")),
            ("100/5 minutes", Some("100/5minute")),
            ("10rps", Some("10/s")),
            ("600 rpm", Some("600/min")),
            ("0.5/s", Some("30/min")),
            ("0.25/min", Some("15/hour")),
            ("1.5k/s", Some("1500/s")),
            ("2m/day", None),
            ("1,5/s", None),
            ("10x/s", None),
            ("0.7/ms", None),
            ("0/s", None),
            ("10/ms", None),
            ("10/month", None),
            ("/s", None),
        ] {
            assert_eq!(rate(text).as_deref(), written, "{text}");
        }
    }

    #[test]
    fn numbers_durations_and_shares_of_other_programs_are_read() {
        for (text, written) in [("1e3", Some("1000")), ("10k", Some("10000")), ("1.5e-1", Some("0.15")), ("10s", None)]
        {
            assert_eq!(number(text).map(|number| number.to_string()).as_deref(), written, "{text}");
        }
        for (text, written) in
            [("hour", Some("1h")), ("5 minutes", Some("5m")), ("90 s", Some("90s")), ("5", None), ("5m", None)]
        {
            assert_eq!(duration(text).as_deref(), written, "{text}");
        }
        for (text, written) in [("0.2", Some("20%")), ("20", Some("20%")), ("20 %", Some("20%")), ("120", None)] {
            assert_eq!(percent(text).as_deref(), written, "{text}");
        }
    }
}

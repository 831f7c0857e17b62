//! Reads the numbers of a token bucket: `rps` or `rate`, and `burst`.

use serde_json::json;

use super::{ALGORITHM_OF_LIMIT, LimitNumbers, METER_OF_LIMIT};
use crate::keys::rules::ban::BAN_OF_LIMIT;
use crate::keys::rules::claimed_number::{CLAIMED, Number, NumberReader};
use crate::keys::rules::cost::{FIXED_COST, MAX_COST, MIN_COST};
use crate::keys::rules::reserve::RESERVE;
use crate::keys::rules::scope::{LEASE_OF_LIMIT, SCOPE_OF_LIMIT};
use crate::keys::rules::settled_cost::{COST_SOURCE, COUNT_ON, DEFAULT_COST, RESET_ON};
use crate::keys::rules::weights::WEIGHTS;
use crate::language::duration::{self, units};
use crate::language::key::{Key, Mapping, Type};
use crate::language::other_spellings;
use crate::language::reader::{Field, Section};
use crate::language::shape::{Definition, Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types::{AMOUNT, AMOUNT_OR_MONEY};
use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::{InvalidNumbers, Rate, TokenBucket};
use ledger::cost::Cost;
use ledger::money::{self, Amount, AmountFormat};
use rules::claimed_numbers::{ClaimedNumber, NumberKind};

pub(super) const RATE_PER_SECOND: Type =
    Type::OwnOr { text: "above 0, at most 3 decimals; or from a credential", shape: AMOUNT, mapping: &CLAIMED };
const BURST_NUMBER: Shape = Shape::Defined(&Definition { name: "burst", shape: Shape::whole(1, u64::MAX) });
const BURST_OR_MONEY: Shape = Shape::either(&[BURST_NUMBER, AMOUNT_OR_MONEY]);
const RATE_TEXT: Shape = Shape::Defined(&Definition {
    name: "rate",
    shape: Shape::Text(Text::new(
        Scalars::Spelling,
        &[concat!("^0*[1-9][0-9]*/(", units!(), "|0*[1-9][0-9]*(ms|", units!(), "))$")],
        "be a rate like 20/s, 600/min, 5000/hour, 10000/day or 100/15m",
    )),
});
const RATE_VALUE: ValueKind<ParseText<Rate>> =
    ValueKind::reporting("`N/s`, `N/min`, `N/hour`, `N/day`, `N/DURATION`", RATE_TEXT, parse_rate, no_rate);
const MONEY_RATE_TEXT: Shape = Shape::Defined(&Definition {
    name: "rate_or_money_rate",
    shape: Shape::Text(Text::new(
        Scalars::Spelling,
        &[concat!(r"^[0-9]+(\.[0-9]+)?/(", units!(), "|0*[1-9][0-9]*(ms|", units!(), "))$")],
        "be a rate like 0.50/hour, 12/day or 2.50/15m",
    )),
});
const MONEY_RATE_VALUE: ValueKind<ParseText<Rate>> =
    ValueKind::reporting("`N/s`, `N/min`, `N/hour`, `N/day`, `N/DURATION`", MONEY_RATE_TEXT, parse_money_rate, no_rate);
const PER_SECOND: Type = Type::OwnOr {
    text: "above 0, at most 3 decimals; with `llm_cost` USD; or from a credential",
    shape: AMOUNT_OR_MONEY,
    mapping: &CLAIMED,
};

const RPS: Key = Key::depends("rps", PER_SECOND, "required, unless there is a `rate`", "The rate per second.");
const TOKENS_PER_SECOND: Key =
    Key::optional("tokens_per_second", PER_SECOND, "The same as `rps`, in full. If both are given, this one counts.");
pub(super) const RATE: Key =
    Key::optional("rate", RATE_VALUE.declared(), "Instead of `rps`: `100/15m`. N is whole and above 0.");
const RATE_OR_MONEY_RATE: Key = Key::optional(
    "rate",
    MONEY_RATE_VALUE.declared(),
    "Instead of `rps`: `100/15m`. N is whole and above 0; with `llm_cost` it is USD.",
);
const BURST: Key = Key::depends(
    "burst",
    Type::OwnOr {
        text: "whole, at least 1 and at least the rate per second; with `llm_cost` USD; or from a credential",
        shape: BURST_OR_MONEY,
        mapping: &CLAIMED,
    },
    "required with `rps`; N with `rate: N/…`",
    "What a full bucket holds.",
);

pub(crate) static LIMIT: Mapping = Mapping {
    heading: Some("key of a `token_bucket`"),
    definition: Some("limit"),
    keys: &[
        ALGORITHM_OF_LIMIT,
        METER_OF_LIMIT,
        BAN_OF_LIMIT,
        SCOPE_OF_LIMIT,
        LEASE_OF_LIMIT,
        RPS,
        TOKENS_PER_SECOND,
        RATE_OR_MONEY_RATE,
        BURST,
        COST_SOURCE,
        FIXED_COST,
        DEFAULT_COST,
        MIN_COST,
        MAX_COST,
        RESERVE,
        WEIGHTS,
        COUNT_ON,
        RESET_ON,
        Key::optional("shadow", Type::Mapping(&NUMBERS), "Numbers to try: counted, never refusing or delaying."),
    ],
    constraints: || json!({"allOf": [{"$ref": "#/definitions/rated"}, {"$ref": "#/definitions/budget"}, {"$ref": "#/definitions/money"}]}),
};

pub(crate) static NUMBERS: Mapping = Mapping {
    heading: None,
    definition: Some("numbers"),
    keys: &[RPS, TOKENS_PER_SECOND, RATE_OR_MONEY_RATE, BURST],
    constraints: || json!({"allOf": [{"$ref": "#/definitions/rated"}]}),
};

/// A rate, and the field of the file that gives it.
struct LocatedRate<'t> {
    /// The rate. If each request may have its own rate, this is the largest of these rates.
    rate: Rate,
    field: Field<'t>,
    /// The burst that applies if the file gives no burst.
    implied_burst: Option<Cost>,
    claimed: Option<ClaimedNumber>,
    /// Whether the file writes amounts as numbers or in USD.
    format: AmountFormat,
}

/// Reads the rate and burst of a token bucket. `None` after reporting a problem.
pub(crate) fn token_bucket(section: &Section<'_>, reader: NumberReader<'_>) -> Option<LimitNumbers> {
    let burst = section.optional("burst", |field| reader.number(NumberKind::Burst, u64::MAX, field));
    let rate = rate(section, reader)?;
    let (base, burst) = match (burst?, rate.implied_burst) {
        (Some(burst), _) if rate.claimed.is_some() => (at_any_rate(&rate, &burst)?, burst.claimed),
        (Some(burst), _) => {
            let base = fit(&rate, burst.largest, Some(&burst.largest_field))?;
            reaches(&burst, base.per_second(), rate.format)?;
            (base, burst.claimed)
        }
        (None, Some(burst)) => (fit(&rate, burst, None)?, None),
        (None, None) => {
            section.wrong("burst", "missing; needed with `rps`");
            return None;
        }
    };
    Some(LimitNumbers { base: Algorithm::TokenBucket(base), claimed: rate.claimed.into_iter().chain(burst).collect() })
}

/// Reads a token bucket whose rate and burst are in the file.
pub(crate) fn fixed_bucket(section: &Section<'_>) -> Option<TokenBucket> {
    match token_bucket(section, NumberReader::in_file())?.base {
        Algorithm::TokenBucket(bucket) => Some(bucket),
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::LeakyBucket(_)
        | Algorithm::Concurrency(_)
        | Algorithm::Budget(_)
        | Algorithm::Purse(_)
        | Algorithm::Home(_) => None,
    }
}

fn rate<'t>(section: &Section<'t>, reader: NumberReader<'_>) -> Option<LocatedRate<'t>> {
    let per_second = |field| per_second(field, reader);
    let (in_full, short) = (section.get("tokens_per_second"), section.get("rps"));
    match (in_full, short, section.get("rate")) {
        (None, None, None) => {
            section.wrong("rps", "missing; a rate is `rps`, `tokens_per_second` or `rate`");
            None
        }
        (None, None, Some(field)) => {
            let format = reader.format;
            let rate = match format {
                AmountFormat::Number => parse_rate_field(&field)?,
                AmountFormat::Dollars => MONEY_RATE_VALUE.read(field.clone())?,
            };
            Some(LocatedRate { rate, field, implied_burst: Some(rate.amount), claimed: None, format })
        }
        (_, _, Some(_)) => {
            section.unwanted("rate", "must not stand beside `rps` or `tokens_per_second`");
            None
        }
        // Both keys are checked. If the file gives both, the rate is the value of `tokens_per_second`.
        (Some(field), short, None) => {
            let (rate, short) = (per_second(field), short.map(per_second));
            rate.filter(|_| short.is_none_or(|short| short.is_some()))
        }
        (None, Some(field), None) => per_second(field),
    }
}

fn per_second<'t>(field: Field<'t>, reader: NumberReader<'_>) -> Option<LocatedRate<'t>> {
    let Number { largest, largest_field, claimed, .. } = reader.number(NumberKind::Rps, u64::MAX, field)?;
    let rate = Rate { amount: largest, period: Micros(1_000_000) };
    Some(LocatedRate { rate, field: largest_field, implied_burst: None, claimed, format: reader.format })
}

/// Makes a bucket for requests that may bring their own rate. Reports numbers that are too large to be computed
/// exactly. Also reports a burst from credentials whose largest value is below the largest rate.
fn at_any_rate(rate: &LocatedRate<'_>, burst: &Number<'_>) -> Option<TokenBucket> {
    let (fastest, format) = (rate.rate.amount, rate.format);
    if let Err(InvalidNumbers::TooLarge { largest }) = TokenBucket::of_rates_up_to(fastest, fastest.ceil()) {
        let largest = largest_in(format, largest);
        rate.field.must(format_args!("be at most {largest}, so that a burst of one second can be kept exactly"));
        return None;
    }
    if burst.claimed.is_some() && burst.largest < fastest {
        burst.largest_field.must(format_args!("be at least the largest refill rate ({})", format.of(fastest)));
        return None;
    }
    if let Some(ClaimedNumber { default, .. }) = rate.claimed {
        reaches(burst, default, format)?;
    }
    match TokenBucket::of_rates_up_to(fastest, burst.largest) {
        Ok(bucket) => Some(bucket),
        Err(InvalidNumbers::TooLarge { largest }) => {
            let largest = largest_in(format, largest);
            burst.largest_field.must(format_args!("be at most {largest} to be kept exactly at every rate"));
            None
        }
        Err(InvalidNumbers::Zero) => None,
    }
}

/// Checks that the burst in the file is at least the rate. A burst of 0 is also allowed: it refuses every request.
fn reaches(burst: &Number<'_>, rate: Cost, format: AmountFormat) -> Option<()> {
    if burst.amount > Cost::default() && burst.amount < rate {
        burst.field.must(format_args!("be at least the refill rate ({})", format.of(rate)));
        return None;
    }
    Some(())
}

/// Reads a value of the key `rate`, such as `10000/day`. `None` after reporting an invalid value.
pub(super) fn parse_rate_field(field: &Field<'_>) -> Option<Rate> {
    RATE_VALUE.read(field.clone())
}

/// Makes a bucket with this rate and burst, if it can be computed exactly. `field` is the field of the burst, if any.
fn fit(rate: &LocatedRate<'_>, burst: Cost, field: Option<&Field<'_>>) -> Option<TokenBucket> {
    let LocatedRate { rate, field: rate_field, format, .. } = rate;
    let burst_field = field.unwrap_or(rate_field);
    if u128::from(burst.thousandths()) * u128::from(rate.period.0) < u128::from(rate.amount.thousandths()) * 1_000_000 {
        // The rate in tokens per second, rounded up to thousandths.
        let per_second = (u128::from(rate.amount.thousandths()) * 1_000_000).div_ceil(u128::from(rate.period.0));
        let per_second = Cost::from_thousandths(u64::try_from(per_second).unwrap_or(u64::MAX));
        burst_field.must(format_args!("be at least the refill rate ({})", format.of(per_second)));
        return None;
    }
    match (TokenBucket::of_amount(*rate, burst), field) {
        (Ok(bucket), _) => return Some(bucket),
        (Err(InvalidNumbers::TooLarge { largest }), _) if largest == Cost::default() => {
            rate_field.must("be a rate that can be kept exactly in 53 bits")
        }
        (Err(InvalidNumbers::TooLarge { largest }), None) => rate_field.wrong(
            format_args!(
                "its burst, {}, must be at most {} to be kept exactly; give a `burst`",
                format.of(burst),
                largest_in(*format, largest)
            ),
            None,
        ),
        (Err(InvalidNumbers::TooLarge { largest }), Some(field)) => {
            let largest = largest_in(*format, largest);
            field.must(format_args!("be at most {largest} to be kept exactly at this rate"));
        }
        (Err(InvalidNumbers::Zero), _) => rate_field.must("be above 0"),
    }
    None
}

/// Returns `largest` as the file can write it: rounded down to a whole number, or exactly in USD.
fn largest_in(format: AmountFormat, largest: Cost) -> Amount {
    match format {
        AmountFormat::Number => format.of(Cost::from_tokens(largest.whole())),
        AmountFormat::Dollars => format.of(largest),
    }
}

/// Reports a value that is no rate.
fn no_rate(field: &Field<'_>, must: &str) {
    let other_spelling = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Some(format!("a rate has a period, such as `{text}/s` or `{text}/min`")),
        false => {
            other_spellings::rate(text).filter(|rate| parse_rate(rate).is_some()).map(|rate| format!("write `{rate}`"))
        }
    };
    let hint = |text: &str| duration::calendar_hint(text).or_else(|| other_spelling(text));
    field.must_hinting(must, field.text_if_any().and_then(hint));
}

/// Parses a rate, such as `10000/day`: a whole number of tokens, and a unit of time or a duration. `None` if invalid.
pub(crate) fn parse_rate(text: &str) -> Option<Rate> {
    let (amount, period) = text.split_once('/')?;
    let amount = amount.bytes().all(|byte| byte.is_ascii_digit()).then(|| amount.parse::<u64>().ok()).flatten()?;
    let period = period_of(period)?;
    (amount > 0 && amount <= u64::MAX / 1000).then_some(Rate { amount: Cost::from_tokens(amount), period })
}

/// Parses a rate of money, such as `2.50/day`: an amount of USD, and a unit of time or a duration. `None` if invalid.
fn parse_money_rate(text: &str) -> Option<Rate> {
    let (amount, period) = text.split_once('/')?;
    let amount = money::parse(amount).filter(|amount| *amount > Cost::default())?;
    Some(Rate { amount, period: period_of(period)? })
}

/// Parses the period of a rate, such as `day` or `15m`. `None` if the period is invalid or 0.
fn period_of(period: &str) -> Option<Micros> {
    // `ms` without a number is rejected, because it is probably a typing error.
    let period = duration::unit(period).filter(|_| period != "ms").or_else(|| duration::parse(period))?;
    (period.0 > 0).then_some(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_an_amount_and_a_period() {
        let day = Micros(86_400_000_000);
        assert_eq!(parse_rate("10000/day"), Some(Rate { amount: Cost::from_tokens(10_000), period: day }));
        assert_eq!(parse_rate("7/15m").map(|rate| rate.period), Some(Micros(900_000_000)));
        for (text, seconds) in [("10/minute", 60), ("10/m", 60), ("10/h", 3_600), ("10/second", 1), ("10/2hour", 7_200)]
        {
            let period = Micros(seconds * 1_000_000);
            assert_eq!(parse_rate(text), Some(Rate { amount: Cost::from_tokens(10), period }), "{text}");
        }
        for text in [
            "10/ms",
            "10/month",
            "",
            "10",
            "/day",
            "0/day",
            "10/",
            "10/week",
            "1.5/s",
            "-1/s",
            "10/0s",
            "99999999999999999999/s",
        ] {
            assert_eq!(parse_rate(text), None, "{text}");
        }
    }
}

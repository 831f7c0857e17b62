//! Reads the numbers of a leaky bucket: `rps` or `rate`, how many requests may wait, and for how long.

use super::token_bucket::{RATE, RATE_PER_SECOND, parse_rate_field};
use super::{ALGORITHM_OF_LIMIT, LimitNumbers, METER_OF_LIMIT};
use crate::keys::rules::claimed_number::{Number, NumberReader};
use crate::keys::rules::cost::{COST_SOURCE, DEFAULT_COST, FIXED_COST, MAX_COST, MIN_COST};
use crate::language::duration;
use crate::language::key::{Key, Mapping, Type, unconstrained};
use crate::language::reader::{Field, Section};
use crate::language::shape::{Duration, DurationBound, Shape};
use crate::language::value_kind::{ParseText, ValueKind};
use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::leaky_bucket::{LONGEST_WAIT, LeakyBucket, Settings};
use ledger::algorithm::token_bucket::{InvalidNumbers, Rate};
use ledger::cost::Cost;
use rules::claimed_numbers::{ClaimedNumber, NumberKind};

/// The largest `queue` and `delay_after`.
const MAX_QUEUE: u64 = 1_000_000;

const RPS: Key = Key::depends("rps", RATE_PER_SECOND, "required, unless there is a `rate`", "The rate per second.");
const QUEUE: Key =
    Key::required("queue", Type::Whole { least: 0, most: MAX_QUEUE }, "How many requests may wait. `0`: none does.");
const WAIT: ValueKind<ParseText<Micros>> = ValueKind::new(
    "duration above 0, at most `1h`",
    Shape::Duration(Duration {
        least: DurationBound { at: Micros(1), must: "be longer than 0" },
        ..Duration::at_most(LONGEST_WAIT, "be at most 1h: a client would not wait for so long")
    }),
    duration::parse,
);
const MAX_WAIT: Key = Key::required("max_wait", WAIT.declared(), "The longest wait; beyond: refused.");

pub(super) static LIMIT: Mapping = Mapping {
    heading: Some("key of a `leaky_bucket`"),
    definition: Some("leaky_bucket"),
    keys: &[
        ALGORITHM_OF_LIMIT,
        METER_OF_LIMIT,
        RPS,
        RATE,
        QUEUE,
        MAX_WAIT,
        Key::default(
            "delay_after",
            Type::Whole { least: 0, most: MAX_QUEUE },
            "0",
            "With at most so many places ahead, a request does not wait.",
        ),
        COST_SOURCE,
        FIXED_COST,
        DEFAULT_COST,
        MIN_COST,
        MAX_COST,
        Key::optional("shadow", Type::Mapping(&NUMBERS), "Numbers to try: counted, never refusing or delaying."),
    ],
    constraints: unconstrained,
};

pub(super) static NUMBERS: Mapping = Mapping {
    heading: None,
    definition: Some("leaky_bucket_numbers"),
    keys: &[RPS, RATE, QUEUE, MAX_WAIT],
    constraints: unconstrained,
};

/// Reads the settings of a leaky bucket. The mapping `section` may have other keys as well. `None` after reporting a problem.
pub(super) fn leaky_bucket(section: &Section<'_>, reader: NumberReader<'_>) -> Option<LimitNumbers> {
    let delay_after = section.whole("delay_after");
    numbers(section, delay_after, reader)
}

/// Reads other settings of a leaky bucket, such as an override's. `own` is the rule's own bucket, or `None` if it is
/// invalid. The `delay_after` of `own` is kept.
pub(super) fn other_numbers(
    section: &Section<'_>,
    own: Option<&LeakyBucket>,
    reader: NumberReader<'_>,
) -> Option<LimitNumbers> {
    numbers(section, own.map(|own| own.delay_after().into()), reader)
}

/// Reports costs below 1, because each waiting request takes a whole place of the queue.
pub(super) fn check_costs(section: &Section<'_>) -> Option<()> {
    let mut right = Some(());
    for field in ["fixed_cost", "default_cost", "min_cost"].into_iter().filter_map(|key| section.get(key)) {
        if field.cost()? < Cost::ONE {
            field.must("be at least 1: a request takes a whole place");
            right = None;
        }
    }
    right
}

fn numbers(section: &Section<'_>, delay_after: Option<u64>, reader: NumberReader<'_>) -> Option<LimitNumbers> {
    let rate = rate(section, reader);
    let queue = section.need("queue").and_then(|field| Some((field.whole(0..=MAX_QUEUE)?, field)));
    let max_wait = section.need("max_wait").and_then(|field| WAIT.read(field));
    let (LocatedRate { rate, field: rate_field, claimed }, (queue, queue_field)) = (rate?, queue?);
    let settings = Settings {
        rate,
        queue: u32::try_from(queue).ok()?,
        max_wait: max_wait?,
        delay_after: u32::try_from(delay_after?).ok()?,
    };
    let bucket = match claimed {
        Some(_) => LeakyBucket::with_rates_up_to(rate.amount, settings),
        None => LeakyBucket::new(settings),
    };
    match bucket {
        Ok(bucket) => {
            let claimed = claimed.into_iter().collect();
            return Some(LimitNumbers { base: Algorithm::LeakyBucket(bucket), claimed });
        }
        Err(InvalidNumbers::TooLarge { largest }) if largest.whole() > u64::from(settings.delay_after) => {
            let largest = largest.whole() - 1 - u64::from(settings.delay_after);
            queue_field.must(format_args!("be at most {largest} to be kept exactly at this rate"));
        }
        Err(InvalidNumbers::TooLarge { .. }) => rate_field.must("be a rate that can be kept exactly in 53 bits"),
        Err(InvalidNumbers::Zero) => rate_field.must("be above 0"),
    }
    None
}

/// A rate, and the field of the file that gives it.
struct LocatedRate<'t> {
    /// The rate. If each request may have its own rate, this is the largest of these rates.
    rate: Rate,
    field: Field<'t>,
    claimed: Option<ClaimedNumber>,
}

fn rate<'t>(section: &Section<'t>, reader: NumberReader<'_>) -> Option<LocatedRate<'t>> {
    match (section.get("rps"), section.get("rate")) {
        (None, None) => {
            section.wrong("rps", "missing; a rate is `rps` or `rate`");
            None
        }
        (Some(_), Some(_)) => {
            section.unwanted("rate", "must not stand beside `rps`");
            None
        }
        (Some(field), None) => {
            let Number { largest, largest_field, claimed, .. } = reader.number(NumberKind::Rps, u64::MAX, field)?;
            let rate = Rate { amount: largest, period: Micros(1_000_000) };
            Some(LocatedRate { rate, field: largest_field, claimed })
        }
        (None, Some(field)) => Some(LocatedRate { rate: parse_rate_field(&field)?, field, claimed: None }),
    }
}

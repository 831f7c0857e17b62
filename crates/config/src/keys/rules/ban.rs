//! Reads `ban`: how long a limit refuses every request after a request beyond the limit.

use crate::language::duration;
use crate::language::key::{Key, Mapping, Type, names, unconstrained};
use crate::language::reader::{Field, Section, all};
use crate::language::shape::{Duration, List, Shape};
use crate::language::value_kind::{ReadField, ValueKind};
use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::ban::{Ban, LONGEST, MOST_DURATIONS};
use ledger::algorithm::budget::{Budget, SpentLimit};
use rules::rule::{BanStatus, LimitBan};

const STATUSES: [(&str, BanStatus); 2] = [("429", BanStatus::TooManyRequests), ("403", BanStatus::Forbidden)];

const STATUS: ValueKind<ReadField<BanStatus>> =
    ValueKind::new("`429`, `403`", Shape::Numerals(&names(&STATUSES)), |field| field.choice(&STATUSES));

/// A shorter ban would not outlast a client's pause between two requests.
const SHORTEST: Micros = Micros(1_000_000);

/// The default of `forget_after`.
const FORGET_AFTER: Micros = Micros(7 * 86_400_000_000);

const LENGTH: Shape = Shape::Duration(Duration::within(SHORTEST, LONGEST, "be a duration from 1s to 366d"));

const LENGTHS: ValueKind<ReadField<Vec<Micros>>> = ValueKind::new(
    "list of 1 to 8 durations from `1s` to `366d`, none shorter than the one before",
    Shape::List(List {
        most: MOST_DURATIONS,
        members: "durations",
        ..List::non_empty(&LENGTH, "have at least one duration")
    }),
    lengths,
);

/// The declaration of the key `ban` of a rule.
pub(crate) const BAN: Key = Key::optional(
    "ban",
    Type::Mapping(&BAN_KEYS),
    "With a `token_bucket` or `fixed_window`: how long every request is refused after one that was beyond the limit.",
);

/// The declaration of the key `ban` of one of several limits.
pub(crate) const BAN_OF_LIMIT: Key = Key::optional(
    "ban",
    Type::Mapping(&BAN_KEYS),
    "Of one of several `limits`: how long every request is refused after one that was beyond the limit.",
);

static BAN_KEYS: Mapping = Mapping {
    heading: Some("key in `ban`"),
    definition: Some("ban"),
    keys: &[
        Key::required(
            "for",
            LENGTHS.declared(),
            "How long the first ban lasts, the second, and so on. The last duration is used again and again.",
        ),
        Key::depends(
            "forget_after",
            Type::Own { text: "duration from `1s` to `366d`", shape: LENGTH },
            "7 days",
            "How long after its end a ban is remembered. A ban after that is the first again.",
        ),
        Key::depends(
            "status",
            STATUS.declared(),
            "429",
            "The status of a refusal by the ban; 403 has no `Retry-After`.",
        ),
    ],
    constraints: unconstrained,
};

/// Reads `ban` beside the numbers of a limit. `Some(None)`: no ban. `None` after reporting a problem.
pub(crate) fn ban(section: &Section<'_>) -> Option<Option<LimitBan>> {
    section.optional("ban", |field| {
        let section = field.section(&BAN_KEYS)?;
        let durations = section.need("for").and_then(|field| LENGTHS.read(field));
        let forget_after = section.optional("forget_after", |field| {
            field.check(&LENGTH)?;
            field.duration()
        });
        let status = section.optional("status", |field| STATUS.read(field));
        section.close();
        let ban = Ban::new(&durations?, forget_after?.unwrap_or(FORGET_AFTER))?;
        Some(LimitBan { ban, status: status?.unwrap_or_default() })
    })
}

/// Returns the same limit with bans. Only a token bucket or a fixed window can have bans.
pub(crate) fn banning(algorithm: Algorithm, ban: Ban) -> Algorithm {
    match algorithm {
        Algorithm::TokenBucket(bucket) => Algorithm::Budget(Budget::banning(SpentLimit::TokenBucket(bucket), ban)),
        Algorithm::FixedWindow(window) => Algorithm::Budget(Budget::banning(SpentLimit::FixedWindow(window), ban)),
        Algorithm::Budget(budget) => Algorithm::Budget(budget.with_ban(ban)),
        Algorithm::SlidingLog(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::LeakyBucket(_)
        | Algorithm::Concurrency(_)
        | Algorithm::Purse(_)
        | Algorithm::Home(_) => algorithm,
    }
}

/// Parses how long an operator bans a bucket, such as `24h`, within the bounds of the durations in `ban`.
///
/// # Errors
/// If the text is no such duration.
pub fn ban_length(text: &str) -> Result<Micros, String> {
    let length = duration::parse(text).filter(|length| (SHORTEST..=LONGEST).contains(length));
    length.ok_or_else(|| "must be a duration from 1s to 366d".to_owned())
}

/// Reads the durations of a limit's bans. Reports a ban that is shorter than the one before.
fn lengths(field: Field<'_>) -> Option<Vec<Micros>> {
    let members = field.list()?;
    let durations = all(members.clone(), |member| {
        member.check(&LENGTH)?;
        member.duration()
    })?;
    let shorter = durations.windows(2).position(|pair| matches!(pair, [before, after] if after < before));
    if let Some(before) = shorter {
        members.get(before + 1)?.must("be at least as long as the duration before");
        return None;
    }
    Some(durations)
}

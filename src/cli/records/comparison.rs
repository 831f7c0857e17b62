//! Compares the sums of records with what the buckets of their meters say is spent.

use std::collections::BTreeMap;

use super::sums::{RecordSums, Sum, SumKey};
use crate::cli::bucket_backend::Backend;
use crate::cli::failure::Failure;
use crate::gateway::bucket_lookup;
use base::time::Timestamp;
use config::Config;
use decision::record_line::Moment;
use ledger::algorithm::Algorithm;
use ledger::algorithm::raise::told_in;
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::holds::TimedHoldStatus;
use ledger::money::AmountFormat;
use rules::partial_evaluation::Knowledge;
use rules::rule::Mode;
use rules::rule_set::CompiledLimit;
use rules::settled_price::Unit;

/// The number of buckets that are read in one call.
const BATCH: usize = 50;

/// Why more can be spent than was recorded.
const MORE_SPENT: &str = "more spent than recorded: an interval that has not ended, or that a killed gateway has lost; lines \
                          that were lost, or are not in these files; a call to the store that got no answer; a cost that \
                          was settled as the period began; holds that a gateway has left when it ended (FILE.holds), until the \
                          next one writes the same FILE";
/// Why less can be spent than was recorded.
const LESS_SPENT: &str = "less spent than recorded: `bucket reset` or `bucket grant`, `reset_on`, requests that were decided \
                          without the store, a store that has lost buckets, or costs of responses that a killed gateway had not \
                          reported to the store";

/// Why a threshold can be without a line.
const NOT_TOLD: &str = "a threshold without a line: a killed gateway, a call to the store that got no answer, or lines that are not in \
                        these files";

/// The sums of all records, compared.
#[derive(Debug)]
pub(super) struct Comparison {
    entries: Vec<(SumKey, Sum, Finding)>,
    /// The thresholds that buckets have told, and no line.
    untold: Vec<(SumKey, Cost)>,
}

#[derive(Debug)]
enum Finding {
    Equal,
    /// The bucket says that this is spent.
    Different(Cost),
    NotCompared(String),
}

/// A bucket to read, and the entry that it is compared with.
struct Asked {
    entry: usize,
    key: BucketKey,
    algorithm: Algorithm,
}

/// Compares the sums with the buckets.
///
/// # Errors
/// When the store does not answer.
pub(super) fn compare(
    config: &Config,
    backend: &Backend,
    known: Knowledge<'_>,
    sums: &RecordSums,
) -> Result<Comparison, Failure> {
    let mut entries = Vec::new();
    let (mut asked, mut untold) = (Vec::new(), Vec::new());
    for (key, sum) in of_buckets(config, &sums.sums) {
        let found = match bucket(config, &key, known) {
            Ok((bucket, algorithm)) => {
                asked.push(Asked { entry: entries.len(), key: bucket, algorithm });
                Finding::NotCompared("not read".to_owned())
            }
            Err(why) => Finding::NotCompared(why),
        };
        entries.push((key, sum, found));
    }
    for batch in asked.chunks(BATCH) {
        let keys: Vec<BucketKey> = batch.iter().map(|asked| asked.key).collect();
        let levels = backend.read(&keys)?;
        for Asked { entry, key, algorithm } in batch {
            let Some((of, sum, found)) = entries.get_mut(*entry) else { continue };
            let now = levels.at.of(algorithm);
            let level = levels.bucket(key, algorithm, Cost::ONE);
            // Of a hold that the bucket does not know any more, it is not certain that nobody has settled it.
            sum.left.retain(|(owner, _)| {
                let status = algorithm.timed_hold(levels.state(key).as_deref(), *owner, now);
                matches!(status, TimedHoldStatus::Ended(_) | TimedHoldStatus::Unknown)
            });
            *found = match (of.period(), level.period) {
                (Some(period), _) if period.end <= now => Finding::NotCompared("the period has ended".to_owned()),
                (Some(period), Some(running)) if period != running => {
                    let end = Moment(running.end).text();
                    Finding::NotCompared(format!("the bucket is in another period, which ends at {end}"))
                }
                _ if level.spent == sum.quantity => Finding::Equal,
                _ => Finding::Different(level.spent),
            };
            let told = level.period.zip(levels.state(key)).map(|(period, state)| told_in(&state, period.begin));
            let told = told.filter(|told| *told > sum.told && !matches!(found, Finding::NotCompared(_)));
            untold.extend(told.map(|told| (of.clone(), told)));
        }
    }
    Ok(Comparison { entries, untold })
}

/// Returns the sums by bucket. The sums of all subjects are joined if they share a bucket.
fn of_buckets(config: &Config, sums: &BTreeMap<SumKey, Sum>) -> BTreeMap<SumKey, Sum> {
    let mut joined: BTreeMap<SumKey, Sum> = BTreeMap::new();
    for (key, sum) in sums {
        let is_shared = limit_of(config, &key.meter).is_some_and(|limit| limit.keys.is_empty());
        let subject = key.subject.clone().filter(|_| !is_shared);
        let all = joined.entry(SumKey { subject, ..key.clone() }).or_default();
        all.quantity = all.quantity.plus(sum.quantity);
        all.requests = all.requests.saturating_add(sum.requests);
        all.refused = all.refused.saturating_add(sum.refused);
        all.told = all.told.max(sum.told);
        all.left.extend(&sum.left);
    }
    joined
}

/// Returns the first enforced limit of a meter. All of them share its buckets.
fn limit_of<'c>(config: &'c Config, meter: &str) -> Option<&'c CompiledLimit> {
    let is_of = |limit: &&CompiledLimit| limit.meter.as_deref() == Some(meter) && limit.mode == Mode::Enforce;
    config.rules.limits().iter().find(is_of)
}

/// Returns the bucket that these records must agree with.
///
/// # Errors
/// If they are about no single bucket, or about one that does not keep what was spent. Says why.
fn bucket(config: &Config, of: &SumKey, known: Knowledge<'_>) -> Result<(BucketKey, Algorithm), String> {
    let limit = limit_of(config, &of.meter).ok_or("the configuration has no such meter")?;
    if limit.variants.first().and_then(Algorithm::window).is_none() {
        return Err(format!("a {} has no periods", limit.variants.first().map_or("limit", Algorithm::name)));
    }
    of.period().ok_or("the lines name no period")?;
    let values = match (&limit.keys[..], &of.subject) {
        ([], _) => Vec::new(),
        ([key], Some((attribute, value))) if is_chosen(config, key, attribute) => vec![format!("{attribute}={value}")],
        (keys, subject) => {
            let by = subject.as_ref().map_or("no subject", |(attribute, _)| attribute.as_str());
            return Err(format!("its limits count by {}, and the records by {by}", keys.join(" and ")));
        }
    };
    let found = bucket_lookup::by_values(config, &of.meter, &values, known).map_err(|error| error.what)?;
    let charged = found.into_iter().find_map(|bucket| {
        let limit = bucket.limit.filter(|limit| limit.meter.as_deref() == Some(&of.meter))?;
        (limit.mode == Mode::Enforce).then_some((bucket.key, limit.algorithm))
    });
    charged.ok_or_else(|| "no limit of the meter charges this subject".to_owned())
}

/// Whether all requests that records name by this attribute are charged to its bucket. For that, the alternatives that precede it in
/// the limit key must precede it in `records.subject` too.
fn is_chosen(config: &Config, key: &str, attribute: &str) -> bool {
    let alternatives = key.split('|').map(str::trim);
    let subjects = config.records.iter().flat_map(|records| &records.subject).map(|subject| subject.text.as_str());
    let named: Vec<&str> = subjects.take_while(|one| *one != attribute).collect();
    let mut before = alternatives.clone().take_while(|one| *one != attribute);
    before.all(|one| named.contains(&one)) && alternatives.clone().any(|one| one == attribute)
}

impl Comparison {
    /// Whether no bucket differs from its records, and each threshold that a bucket has told has a line.
    pub(super) fn is_equal(&self) -> bool {
        self.untold.is_empty() && !self.entries.iter().any(|(.., found)| matches!(found, Finding::Different(_)))
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.entries.iter().map(line).collect();
        let differs = |is: fn(Cost, Cost) -> bool| {
            self.entries
                .iter()
                .any(|(_, sum, found)| matches!(found, Finding::Different(spent) if is(*spent, sum.quantity)))
        };
        if differs(|spent, recorded| spent > recorded) {
            lines.push(MORE_SPENT.to_owned());
        }
        if differs(|spent, recorded| spent < recorded) {
            lines.push(LESS_SPENT.to_owned());
        }
        lines.extend(self.untold.iter().map(|(key, told)| {
            let amount = format_of(key).of(*told);
            format!("{} {}: the threshold at {amount} has no line", key.meter, subject_of(key))
        }));
        if !self.untold.is_empty() {
            lines.push(NOT_TOLD.to_owned());
        }
        let count = |is: fn(&Finding) -> bool| self.entries.iter().filter(|(.., found)| is(found)).count();
        let equal = count(|found| matches!(found, Finding::Equal));
        let different = count(|found| matches!(found, Finding::Different(_)));
        let rest = self.entries.len() - equal - different;
        lines.push(format!("{equal} equal, {different} different, {rest} not compared"));
        lines
    }
}

fn subject_of(key: &SumKey) -> String {
    key.subject.as_ref().map_or_else(|| "all".to_owned(), |(attribute, value)| format!("{attribute}={value}"))
}

fn format_of(key: &SumKey) -> AmountFormat {
    if key.unit == Unit::Dollars.name() { AmountFormat::Dollars } else { AmountFormat::Number }
}

fn holds(count: usize) -> String {
    if count == 1 { "a hold".to_owned() } else { format!("{count} holds") }
}

fn line((key, sum, found): &(SumKey, Sum, Finding)) -> String {
    let subject = subject_of(key);
    let period = key.period().map_or_else(String::new, |period| {
        let text = |moment: Timestamp| Moment(moment).text();
        format!(", {} to {}", text(period.begin), text(period.end))
    });
    let format = format_of(key);
    let noun = if format == AmountFormat::Dollars { String::new() } else { format!(" {}", key.unit) };
    let recorded = format!("{}{noun} recorded", format.of(sum.quantity));
    let result = match found {
        Finding::Equal => format!("{} spent: equal", format.of(sum.quantity)),
        Finding::Different(spent) => {
            let (more, which) = match *spent > sum.quantity {
                true => (spent.less(sum.quantity), "more spent"),
                false => (sum.quantity.less(*spent), "less spent"),
            };
            let left = sum.left.iter().fold(Cost::default(), |all, (_, reserved)| all.plus(*reserved)).min(more);
            let left = match *spent > sum.quantity && left > Cost::default() {
                true => format!(", of it {} by {} that a gateway has left", format.of(left), holds(sum.left.len())),
                false => String::new(),
            };
            format!("{} spent: {} {which}{left}", format.of(*spent), format.of(more))
        }
        Finding::NotCompared(why) => format!("not compared: {why}"),
    };
    let counts = format!("{} requests, {} refused", sum.requests, sum.refused);
    format!("{} {subject}{period}: {recorded} ({counts}), {result}", key.meter)
}

//! Compares the sums of records with what the buckets of their meters say is spent.

use std::collections::BTreeMap;

use super::global_bucket::{GlobalBucket, PursesOfRegions};
use super::regions::Regions;
use super::sums::{RecordSums, Sum, SumKey};
use crate::cli::failure::Failure;
use crate::gateway::bucket_levels::Levels;
use crate::gateway::bucket_lookup;
use base::time::{Micros, Timestamp};
use config::Config;
use decision::record_line::Moment;
use ledger::algorithm::fixed_window::Window;
use ledger::algorithm::raise::told_in;
use ledger::algorithm::{Algorithm, Period};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::holds::TimedHoldStatus;
use rules::partial_evaluation::Knowledge;
use rules::rule::Mode;
use rules::rule_set::CompiledLimit;

/// The number of buckets that are read in one call.
const BATCH: usize = 50;

/// The sums of all records, compared.
#[derive(Debug)]
pub(super) struct Comparison {
    pub entries: Vec<(SumKey, Sum, Finding)>,
    /// The thresholds that buckets have told, and no line.
    pub untold: Vec<(SumKey, Cost)>,
    /// The number of regions whose stores were not read.
    pub unread_regions: u64,
}

#[derive(Debug)]
pub(super) enum Finding {
    Equal(Spent),
    /// They differ by no more than what purses that were not read can hold.
    Explained(Spent),
    Different(Spent),
    NotCompared(String),
}

/// What buckets say is spent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    /// In the stores of the regions that are read; of a limit over several regions, at home.
    pub amount: Cost,
    /// `None` for a limit of one region.
    pub purses: Option<PursesOfRegions>,
}

/// How what is spent differs from what was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    None,
    More(Cost),
    Less(Cost),
}

impl Spent {
    pub(super) fn difference(&self, recorded: Cost) -> Difference {
        let PursesOfRegions { unspent, debt, .. } = self.purses.unwrap_or_default();
        let (spent, recorded) = (self.amount.plus(debt), recorded.plus(unspent));
        match (spent.less(recorded), recorded.less(spent)) {
            (more, _) if more > Cost::default() => Difference::More(more),
            (_, less) if less > Cost::default() => Difference::Less(less),
            _ => Difference::None,
        }
    }

    fn compared(self, recorded: Cost) -> Finding {
        let PursesOfRegions { most_unread, most_unread_debt, .. } = self.purses.unwrap_or_default();
        match self.difference(recorded) {
            Difference::None => Finding::Equal(self),
            Difference::More(more) if more <= most_unread => Finding::Explained(self),
            Difference::Less(less) if less <= most_unread_debt => Finding::Explained(self),
            _ => Finding::Different(self),
        }
    }
}

/// A bucket to read, and the entry that it is compared with.
struct Asked {
    entry: usize,
    bucket: AskedBucket,
}

enum AskedBucket {
    /// A bucket in the store of each region.
    Regional(BucketKey, Algorithm),
    Global(GlobalBucket),
}

impl AskedBucket {
    /// Returns the keys in the stores of regions.
    fn keys(&self) -> Vec<BucketKey> {
        match self {
            AskedBucket::Regional(key, _) => vec![*key],
            AskedBucket::Global(bucket) => bucket.purses.keys().copied().collect(),
        }
    }

    fn key_at_home(&self) -> Option<BucketKey> {
        match self {
            AskedBucket::Regional(..) => None,
            AskedBucket::Global(bucket) => Some(bucket.key),
        }
    }
}

/// Compares the sums with the buckets.
///
/// # Errors
/// When a store does not answer.
pub(super) fn compare(
    config: &Config,
    regions: &Regions,
    known: Knowledge<'_>,
    sums: &RecordSums,
) -> Result<Comparison, Failure> {
    let mut entries = Vec::new();
    let (mut asked, mut untold) = (Vec::new(), Vec::new());
    for (key, sum) in of_buckets(config, &sums.sums) {
        let found = match bucket(config, regions, &key, known) {
            Ok(bucket) => {
                asked.push(Asked { entry: entries.len(), bucket });
                Finding::NotCompared("not read".to_owned())
            }
            Err(why) => Finding::NotCompared(why),
        };
        entries.push((key, sum, found));
    }
    for batch in asked.chunks(BATCH) {
        let keys: Vec<BucketKey> = batch.iter().flat_map(|asked| asked.bucket.keys()).collect();
        let keys_at_home: Vec<BucketKey> = batch.iter().filter_map(|asked| asked.bucket.key_at_home()).collect();
        let levels = regions.read(&keys)?;
        let at_home = regions.read_home(&keys_at_home)?;
        for Asked { entry, bucket } in batch {
            let Some((of, sum, found)) = entries.get_mut(*entry) else { continue };
            *found = match (bucket, &at_home) {
                (AskedBucket::Regional(key, algorithm), _) => {
                    let (found, told) = compare_regional(key, algorithm, &levels, of, sum);
                    untold.extend(told.map(|told| (of.clone(), told)));
                    found
                }
                (AskedBucket::Global(bucket), Some(at_home)) => {
                    compare_global(bucket, regions, at_home, &levels, of, sum)
                }
                (AskedBucket::Global(_), None) => continue,
            };
        }
    }
    Ok(Comparison { entries, untold, unread_regions: regions.unread() })
}

/// Compares a sum with a bucket in the store of each region that is read. Returns also a threshold that has no line.
fn compare_regional(
    key: &BucketKey,
    algorithm: &Algorithm,
    levels: &[Levels],
    of: &SumKey,
    sum: &mut Sum,
) -> (Finding, Option<Cost>) {
    let (mut spent, mut told, mut elsewhere) = (None, None, None);
    for levels in levels {
        let now = levels.at.of(algorithm);
        let level = levels.bucket(key, algorithm, Cost::ONE);
        // Of a hold that the bucket does not know any more, it is not certain that nobody has settled it.
        sum.left.retain(|(owner, _)| {
            let status = algorithm.timed_hold(levels.state(key).as_deref(), *owner, now);
            matches!(status, TimedHoldStatus::Ended(_) | TimedHoldStatus::Unknown)
        });
        if let Some(why) = is_elsewhere(of, level.period, Micros(0), now) {
            elsewhere.get_or_insert(why);
            continue;
        }
        spent = Some(spent.unwrap_or(Cost::default()).plus(level.spent));
        told = told.max(level.period.zip(levels.state(key)).map(|(period, state)| told_in(&state, period.begin)));
    }
    match (spent, elsewhere) {
        (Some(amount), _) => {
            let found = Spent { amount, purses: None }.compared(sum.quantity);
            (found, told.filter(|told| *told > sum.told))
        }
        (None, why) => (Finding::NotCompared(why.unwrap_or_else(|| "not read".to_owned())), None),
    }
}

/// Compares a sum over all regions with the bucket at home.
fn compare_global(
    bucket: &GlobalBucket,
    regions: &Regions,
    at_home: &Levels,
    levels: &[Levels],
    of: &SumKey,
    sum: &Sum,
) -> Finding {
    let level = at_home.bucket(&bucket.key, bucket.home(), Cost::ONE);
    let now = at_home.at.of(bucket.home());
    if let Some(why) = is_elsewhere(of, level.period, period_error(bucket.home()), now) {
        return Finding::NotCompared(why);
    }
    let purses = level.period.map(|period| bucket.purses_of(regions, period, at_home, levels));
    Spent { amount: level.spent, purses: Some(purses.unwrap_or_default()) }.compared(sum.quantity)
}

/// Returns why a bucket cannot be compared with a sum: it is in another period, or `None`. Periods whose ends differ by less than
/// `error` are the same.
fn is_elsewhere(of: &SumKey, running: Option<Period>, error: Micros, now: Timestamp) -> Option<String> {
    let period = of.period()?;
    if period.end <= now {
        return Some("the period has ended".to_owned());
    }
    let running = running.filter(|running| !is_same(period, *running, error))?;
    Some(format!("the bucket is in another period, which ends at {}", Moment(running.end).text()))
}

fn is_same(one: Period, other: Period, error: Micros) -> bool {
    let apart = one.end.since(other.end).max(other.end.since(one.end));
    one == other || apart < error
}

/// Returns by how much the ends of the same period can differ in records. The periods of a limit over several regions that begin with a
/// request end by the clock of the region's store, and as late as the answer of home was.
fn period_error(algorithm: &Algorithm) -> Micros {
    match (algorithm, algorithm.window()) {
        (Algorithm::Purse(_) | Algorithm::Home(_), Some(Window::FirstRequest(length))) => Micros(length.0 / 2),
        _ => Micros(0),
    }
}

/// Returns the sums by bucket. The sums of all subjects are joined if they share a bucket, and those of one period.
fn of_buckets(config: &Config, sums: &BTreeMap<SumKey, Sum>) -> Vec<(SumKey, Sum)> {
    let mut joined: BTreeMap<SumKey, Sum> = BTreeMap::new();
    for (key, sum) in sums {
        let is_shared = limit_of(config, &key.meter).is_some_and(|limit| limit.keys.is_empty());
        let subject = key.subject.clone().filter(|_| !is_shared);
        joined.entry(SumKey { subject, ..key.clone() }).or_default().add(sum);
    }
    let mut by_period: Vec<(SumKey, Sum)> = Vec::new();
    for (key, sum) in joined {
        let algorithm = limit_of(config, &key.meter).and_then(|limit| limit.variants.first());
        let error = algorithm.map_or(Micros(0), period_error);
        match by_period.last_mut() {
            Some((last, all)) if last.is_like(&key, |one, other| is_same(one, other, error)) => all.add(&sum),
            _ => by_period.push((key, sum)),
        }
    }
    by_period
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
fn bucket(config: &Config, regions: &Regions, of: &SumKey, known: Knowledge<'_>) -> Result<AskedBucket, String> {
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
    let charged: Vec<(BucketKey, Algorithm)> = found
        .into_iter()
        .filter_map(|bucket| {
            let limit = bucket.limit.filter(|limit| limit.meter.as_deref() == Some(&of.meter))?;
            (limit.mode == Mode::Enforce).then_some((bucket.key, limit.algorithm))
        })
        .collect();
    let purses = charged.iter().filter_map(|(key, algorithm)| match algorithm {
        Algorithm::Purse(purse) => Some((*key, *purse)),
        _ => None,
    });
    if let Some(bucket) = GlobalBucket::of(purses.collect(), regions) {
        return Ok(AskedBucket::Global(bucket));
    }
    let first = charged.first().ok_or_else(|| "no limit of the meter charges this subject".to_owned())?;
    Ok(AskedBucket::Regional(first.0, first.1))
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

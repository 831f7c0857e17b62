//! Lists the subjects of a limit that are known, with what they have used.

use serde_json::{Value, json};

use super::bucket_levels::Levels;
use super::bucket_lookup::{BucketSelection, Limit, LookupError, limits_of, named};
use super::bucket_query::{BucketQuery, Buckets};
use super::bucket_report::{BucketReport, Change};
use super::known_subjects::KnownSubjects;
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use rules::rule::Mode;
use rules::rule_set::CompiledLimit;

/// The most subjects of an answer: those that have used the largest share.
const MOST_LISTED: usize = 1000;
/// The number of buckets that are read in one call.
const BATCH: usize = 1000;

/// Lists the subjects of the limits that the query names, if they have used at least `near` percent.
///
/// # Errors
/// When no limit has the name, none of them is recorded, or the store does not answer.
pub(super) fn list(buckets: &Buckets<'_>, query: &BucketQuery, near: u8) -> Result<Value, LookupError> {
    let config = &buckets.snapshot.config;
    let name = query.rule.as_deref().ok_or("a RULE must be given")?;
    let mut limits: Vec<&CompiledLimit> = Vec::new();
    for (policy, rule, wanted) in named(config, name)? {
        limits.extend(limits_of(config, policy, rule, wanted));
    }
    let recorded = config.records.iter().flat_map(|records| &records.meters);
    let is_recorded = |limit: &&CompiledLimit| {
        limit.mode == Mode::Enforce && recorded.clone().any(|meter| limit.meter.as_ref() == Some(meter))
    };
    limits.retain(is_recorded);
    if limits.is_empty() {
        let hint = Some("`records` names meters, and the attributes that are their subjects".to_owned());
        return Err(LookupError { what: format!("no meter of {name} is in `records`, so no subject is known"), hint });
    }
    let mut meters: Vec<String> = limits.iter().filter_map(|limit| limit.meter.clone()).collect();
    meters.sort_unstable();
    meters.dedup();
    let KnownSubjects { mut by_bucket, are_all } = KnownSubjects::of_meters(buckets, &meters)?;
    by_bucket.retain(|_, known| {
        limits.iter().any(|limit| limit.policy == known.limit.policy && limit.name == known.limit.name)
    });
    let keys: Vec<BucketKey> = by_bucket.keys().copied().collect();
    let (mut at, mut states) = buckets.states(&[])?;
    for batch in keys.chunks(BATCH) {
        let (read_at, read) = buckets.states(batch)?;
        at = read_at;
        states.extend(read);
    }
    let levels = Levels::new(at, buckets.place(query), &keys, states);
    let mut listed: Vec<(u64, BucketSelection, Value)> = Vec::new();
    for (key, subject) in &by_bucket {
        let Some(limit) = Limit::of(subject.limit) else { continue };
        let most = levels.raised(key, &subject.algorithm).ceiling();
        let share = share(levels.spent(key, &subject.algorithm), most);
        if levels.state(key).is_none() || share < u64::from(near) {
            continue;
        }
        let named = json!({"subject": String::from_utf8_lossy(&subject.value), "subject_from": subject.attribute, "share": share});
        let limit = Limit { algorithm: subject.algorithm, ..limit };
        listed.push((share, BucketSelection { key: *key, limit: Some(limit), of: Some(subject.text()) }, named));
    }
    listed.sort_by_key(|(share, ..)| std::cmp::Reverse(*share));
    let is_cut = listed.len() > MOST_LISTED;
    listed.truncate(MOST_LISTED);
    let (chosen, names): (Vec<BucketSelection>, Vec<Value>) =
        listed.into_iter().map(|(_, chosen, named)| (chosen, named)).unzip();
    let report = BucketReport { config, change: Change::None, before: levels, after: None };
    let known = if buckets.memory.is_some() { "that this gateway knows" } else { "that gateways have told" };
    let mut lines = vec![match (chosen.len(), is_cut) {
        (count, false) => format!("{count} of the {} subjects {known}", by_bucket.len()),
        (count, true) => format!("the {count} that have used the largest share, of more"),
    }];
    if !are_all {
        lines.push("the index of subjects is full: some may be missing".to_owned());
    }
    lines.extend(report.lines(&chosen));
    let mut document = report.document(&chosen);
    let objects = document.get_mut("buckets").and_then(Value::as_array_mut).into_iter().flatten();
    for (object, named) in objects.zip(names) {
        if let (Some(object), Value::Object(named)) = (object.as_object_mut(), named) {
            object.extend(named);
        }
    }
    if let Some(document) = document.as_object_mut() {
        document.insert("act".to_owned(), json!("list"));
        document.insert("complete".to_owned(), json!(!is_cut && are_all));
    }
    Ok(json!({"lines": lines, "document": document}))
}

/// Returns the share in percent, rounded down.
fn share(spent: Cost, most: Cost) -> u64 {
    spent.thousandths().saturating_mul(100) / most.thousandths().max(1)
}

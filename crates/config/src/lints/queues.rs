//! Finds leaky buckets in which requests may still wait when the process exits, and queues that cannot become full.

use super::file::{File, LocatedRule};
use super::location::{Finding, Location};
use crate::language::duration;
use ledger::algorithm::Algorithm;
use ledger::algorithm::leaky_bucket::LeakyBucket;
use rules::claimed_numbers::ClaimedNumbers;
use rules::rule::{Action, Override, OverrideNumbers};

/// Finds a `max_wait` that is longer than `drain.timeout`, after which the process exits. Limits in shadow mode are
/// left out, because they delay no request.
pub(super) fn short_drain(file: &File<'_>) -> Vec<Finding> {
    let timeout = file.config.drain.timeout;
    let queues = enforced_queues(file);
    let cut = queues.iter().filter(|(_, bucket)| bucket.max_wait() > timeout);
    cut.map(|(location, bucket)| {
        let what = format!(
            "is {}, longer than drain.timeout, {}: a drain cuts requests that still wait",
            duration::print(bucket.max_wait()),
            duration::print(timeout)
        );
        location.key("max_wait").finding(what, "set a longer drain.timeout, or a shorter max_wait")
    })
    .collect()
}

/// Finds queues that are longer than `max_wait` allows. Their last places stay unused.
pub(super) fn unused_queue(file: &File<'_>) -> Vec<Finding> {
    let queues = enforced_queues(file);
    let unused = queues.iter().filter(|(_, bucket)| bucket.reachable_queue() < bucket.queue());
    unused
        .map(|(location, bucket)| {
            let (queue, reachable) = (bucket.queue(), bucket.reachable_queue());
            let what = format!("is {queue}, but only {reachable} can wait: in max_wait no more leave");
            location.key("queue").finding(what, "set a longer max_wait, or a smaller queue")
        })
        .collect()
}

fn enforced_queues<'f>(file: &File<'f>) -> Vec<(Location<'f>, LeakyBucket)> {
    file.rules().filter(LocatedRule::is_enforced).flat_map(|located| queues(&located)).collect()
}

/// Returns the leaky buckets of a rule and of its overrides, each with its location. Of the overrides in a file, only
/// the bucket with the longest wait is returned.
fn queues<'f>(located: &LocatedRule<'f>) -> Vec<(Location<'f>, LeakyBucket)> {
    let Action::Charge(limits) = &located.rule.action else { return Vec::new() };
    let mut queues = Vec::new();
    for limit in limits {
        let overrides = located.location.key("overrides");
        // If credentials may contain the numbers of the limit, the largest numbers are examined.
        let own = limit.claimed.as_ref().map_or(limit.algorithm, ClaimedNumbers::largest);
        queues.extend(leaky(located.numbers(limit), own));
        let (in_file, of_rule): (Vec<_>, Vec<_>) =
            limit.overrides.iter().partition(|other| other.index == Override::IN_FILE);
        let longest = in_file.into_iter().filter_map(|other| match other.numbers {
            OverrideNumbers::Limited(numbers) => leaky(located.location.key("overrides_file"), numbers),
            OverrideNumbers::Unlimited => None,
        });
        queues.extend(longest.max_by_key(|(_, bucket)| bucket.max_wait()));
        for (index, other) in of_rule.into_iter().enumerate() {
            // With several `limits`, an override names the limits that it changes. So its index does not show its
            // location.
            let location = if limit.name.is_empty() { overrides.pair(index) } else { overrides.clone() };
            if let OverrideNumbers::Limited(numbers) = other.numbers {
                queues.extend(leaky(location, numbers));
            }
        }
    }
    queues
}

fn leaky(location: Location<'_>, algorithm: Algorithm) -> Option<(Location<'_>, LeakyBucket)> {
    match algorithm {
        Algorithm::LeakyBucket(bucket) => Some((location, bucket)),
        _ => None,
    }
}

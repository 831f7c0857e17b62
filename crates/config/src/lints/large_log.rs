//! Finds limits with the algorithm `sliding_log` whose buckets need much memory.

use super::file::File;
use super::location::Finding;
use ledger::algorithm::Algorithm;
use ledger::algorithm::sliding_log::SlidingLog;
use rules::claimed_numbers::ClaimedNumbers;
use rules::rule::{Action, Limit, OverrideNumbers};

/// The size of a bucket, in bytes, from which there is a warning. A million such buckets take a gigabyte.
const LARGE: u64 = 1_000;

/// Finds sliding logs whose buckets need much memory. A limit without limit keys has only one bucket, and is left out.
/// A limit in shadow mode is included.
pub(super) fn large_log(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for located in file.rules() {
        let Action::Charge(limits) = &located.rule.action else { continue };
        if located.rule.keys.is_empty() {
            continue;
        }
        for limit in limits {
            let Some((bytes, most)) = largest(limit).filter(|(bytes, _)| *bytes >= LARGE) else { continue };
            let what = format!(
                "of a {} a full bucket takes {}, and a million keys take {}",
                most,
                size(bytes),
                size(bytes.saturating_mul(1_000_000))
            );
            let hint = "every grant is kept for the length of the window; a token_bucket or a fixed_window takes about 100 \
                        bytes, whatever its numbers";
            found.push(located.numbers(limit).key("limit").finding(what, hint));
        }
    }
    found
}

/// Returns the size in bytes of the largest bucket that a limit can have, and the numbers of this bucket as a text.
/// Numbers of overrides, of a `shadow` and from credentials are included.
fn largest(limit: &Limit) -> Option<(u64, String)> {
    let overrides = limit.overrides.iter().filter_map(|one| match one.numbers {
        OverrideNumbers::Limited(numbers) => Some(numbers),
        OverrideNumbers::Unlimited => None,
    });
    let claimed = limit.claimed.iter().chain(&limit.candidate_claimed).map(ClaimedNumbers::largest);
    let numbers = [limit.algorithm].into_iter().chain(overrides).chain(limit.candidate).chain(claimed);
    let logs = numbers.filter_map(|numbers| match numbers {
        Algorithm::SlidingLog(log) => Some(log),
        _ => None,
    });
    let (bytes, log) = logs
        .map(|log| (SlidingLog::state_bytes(log.grants(limit.price.least())), log))
        .max_by_key(|(bytes, _)| *bytes)?;
    Some((bytes, format!("limit of {}", log.limit())))
}

/// Formats a number of bytes as `16 KiB`: in the largest unit that is not larger than the number, and rounded.
fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1)];
    let (unit, scale) = UNITS.into_iter().find(|(_, scale)| bytes >= *scale).unwrap_or(("bytes", 1));
    format!("{} {unit}", (bytes + scale / 2) / scale)
}

//! Begins the bans of a refused plan.

use super::algorithm::{BanBeginning, ChargeResult, Step};
use super::bucket_key::BucketKey;
use super::charge::{ChargePurpose, Entries, Plan};

/// Whether a store can write the ban that a refused plan begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BanBeginnings {
    Stored,
    Impossible,
}

/// Returns the entries of the bans that a refused plan begins. Empty if no ban begins. If a running ban already refuses
/// the plan, no ban begins. A charge that only checks begins none. Such charges become refusals without a ban.
pub(crate) fn begin_bans(plan: &Plan, steps: &mut [Step], beginnings: BanBeginnings) -> Entries {
    let begins = |step: &Step| matches!(step.charge, ChargeResult::Banned { begins: Some(_), .. });
    if !steps.iter().any(begins) {
        return Entries::new();
    }
    let is_banned = steps.iter().any(|step| matches!(step.charge, ChargeResult::Banned { begins: None, .. }));
    let begins_none = is_banned || beginnings == BanBeginnings::Impossible;
    let mut entries = Entries::new();
    for (step, charge) in steps.iter_mut().zip(&plan.enforced) {
        let ChargeResult::Banned { begins: Some(BanBeginning { entry, otherwise }), .. } = &step.charge else {
            entries.push(None);
            continue;
        };
        if begins_none || charge.purpose == ChargePurpose::Check {
            step.charge = otherwise.map_or(ChargeResult::Never, |wait| ChargeResult::Short { wait });
            entries.push(None);
        } else {
            entries.push(Some(entry.clone()));
        }
    }
    if entries.iter().all(Option::is_none) { Entries::new() } else { entries }
}

/// Returns the entries of a refused plan: the bans that begin, and the corrections of all other buckets.
pub(crate) fn with_begun_bans(plan: &Plan, corrections: Entries, mut begun: Entries) -> Entries {
    if begun.is_empty() {
        return corrections;
    }
    begun.resize(plan.charges().count(), None);
    let begins =
        |key: BucketKey| plan.charges().zip(&begun).any(|(charge, entry)| charge.key == key && entry.is_some());
    let corrections = corrections.into_iter().chain(std::iter::repeat(None));
    let corrections: Entries = plan
        .charges()
        .zip(corrections)
        .map(|(charge, correction)| correction.filter(|_| !begins(charge.key)))
        .collect();
    begun.into_iter().zip(corrections).map(|(begun, correction)| begun.or(correction)).collect()
}

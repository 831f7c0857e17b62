//! Chooses the duration of a proof: `scripts/test` runs its short form, `scripts/prove` its long form.

use std::ops::Range;

/// Returns `short`, or `long` if `scripts/prove` has set `TOLLGATE_PROOF=long`.
pub(crate) fn short_or_long<T>(short: T, long: T) -> T {
    if is_long() { long } else { short }
}

/// Returns `shortened` if [`super::GatewayBuilder::short_interval`] has an effect: in the short form of a proof, with the
/// feature `test-hooks`.
pub(crate) fn shortened_or_real<T>(shortened: T, real: T) -> T {
    if intervals_are_shortened() { shortened } else { real }
}

pub(super) fn intervals_are_shortened() -> bool {
    cfg!(feature = "test-hooks") && !is_long()
}

/// Returns the runs of a long form that the variable `TOLLGATE_PROOF_RUNS` names, such as `50..100`: all of them without it.
pub(crate) fn chosen_runs(all: Range<u64>) -> Range<u64> {
    let Ok(chosen) = std::env::var("TOLLGATE_PROOF_RUNS") else { return all };
    let (from, to) = chosen.split_once("..").expect("FROM..TO");
    from.parse().unwrap()..to.parse::<u64>().unwrap().min(all.end)
}

fn is_long() -> bool {
    std::env::var("TOLLGATE_PROOF").is_ok_and(|form| form == "long")
}

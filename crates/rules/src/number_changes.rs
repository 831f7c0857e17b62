//! Compares two rule sets: finds limits whose numbers change, and describes the effect on their buckets.

use std::collections::HashMap;
use std::fmt;

use super::rule::Mode;
use super::rule_set::{CompiledLimit, RuleSet};
use ledger::algorithm::Algorithm;
use ledger::bucket_key::BucketKey;

/// A limit whose settings have changed while its buckets stay the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedLimit {
    pub policy: String,
    /// The name of the rule; `rule.limit` if the rule has several limits.
    pub limit: String,
    pub mode: Mode,
    pub change: NumberChange,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NumberChange {
    /// The limit's own settings have changed. They include the settings that come from credentials.
    Own { was: String, is: String, what_stays: &'static str },
    /// Only the settings of the limit's overrides have changed.
    Overrides,
    /// Only the largest lease of a limit over several regions has changed.
    Lease { was: String, is: String },
}

impl fmt::Display for ChangedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.mode == Mode::Shadow { " (shadow)" } else { "" };
        write!(f, "policy {}, limit {}{mode}: ", self.policy, self.limit)?;
        match &self.change {
            NumberChange::Own { was, is, what_stays } => write!(f, "was {was}, is {is}; {what_stays}"),
            NumberChange::Overrides => f.write_str("overrides have other numbers; what was spent stays spent"),
            NumberChange::Lease { was, is } => {
                write!(f, "the largest lease was {was}, is {is}; what was spent stays spent")
            }
        }
    }
}

/// Describes what remains of a bucket when the numbers of its limit change, but not the algorithm.
fn what_stays(was: &Algorithm, is: &Algorithm) -> &'static str {
    match (was, is) {
        (Algorithm::FixedWindow(old), Algorithm::FixedWindow(new)) if old.window() != new.window() => {
            "what was spent counts until the running period ends, or the next one of the new window, whichever is earlier"
        }
        (Algorithm::SlidingWindow(old), Algorithm::SlidingWindow(new))
            if (old.window(), old.steps()) != (new.window(), new.steps()) =>
        {
            "what was granted counts in the new window, from the end of its old step on"
        }
        _ => "what was spent stays spent",
    }
}

/// Returns the limits whose settings have changed, in the order of the new file.
pub fn changed_limits(before: &RuleSet, after: &RuleSet) -> Vec<ChangedLimit> {
    let name = |limit: &CompiledLimit| (limit.identity(), limit.policy.clone(), limit.name.clone());
    let known: HashMap<(BucketKey, String, String), &CompiledLimit> =
        before.limits().iter().map(|limit| (name(limit), limit)).collect();
    let changed = |limit: &CompiledLimit| {
        Some(ChangedLimit {
            change: change(known.get(&name(limit))?, limit)?,
            policy: limit.policy.clone(),
            limit: limit.name.clone(),
            mode: limit.mode,
        })
    };
    after.limits().iter().filter_map(changed).collect()
}

fn change(before: &CompiledLimit, after: &CompiledLimit) -> Option<NumberChange> {
    let (was, is) = (before.numbers_text(), after.numbers_text());
    if was != is {
        let [one, other] = [before, after].map(|limit| limit.variants.first().map(|numbers| numbers.in_one_region()));
        let what_stays = what_stays(&one?, &other?);
        return Some(NumberChange::Own { was, is, what_stays });
    }
    if !before.has_overrides_of(after) {
        return Some(NumberChange::Overrides);
    }
    let [was, is] = [before, after].map(|limit| limit.purse().map(|purse| limit.unit().amount(purse.largest())));
    let (was, is) = (was?.to_string(), is?.to_string());
    (was != is).then_some(NumberChange::Lease { was, is })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::Micros;
    use ledger::algorithm::sliding_window::SlidingWindow;

    #[test]
    fn other_steps_of_a_sliding_window_keep_the_ends_of_the_old_ones() {
        let window = |limit, seconds: u64, steps| {
            Algorithm::SlidingWindow(SlidingWindow::new(limit, Micros(seconds * 1_000_000), steps).unwrap())
        };
        let stays = |is| what_stays(&window(10, 60, 10), &is);
        assert_eq!(stays(window(20, 60, 10)), "what was spent stays spent");
        let ends = "what was granted counts in the new window, from the end of its old step on";
        assert_eq!([stays(window(10, 90, 10)), stays(window(10, 60, 6))], [ends; 2]);
    }
}

//! Says in words what the limits do while the store gives no answer, by their `on_store_failure`, and what those over several regions do
//! while home gives none.

use super::compiled_limit::CompiledLimit;
use super::rule::{Mode, OnStoreFailure};

impl OnStoreFailure {
    /// Returns what one limit or several limits with this treatment do. The words follow their name or number.
    pub fn words(self, limits: usize) -> &'static str {
        match (self, limits) {
            (OnStoreFailure::Local, 1) => "decides by this gateway's share",
            (OnStoreFailure::Local, _) => "decide by this gateway's share",
            (OnStoreFailure::Allow, 1) => "lets requests pass without a charge",
            (OnStoreFailure::Allow, _) => "let requests pass without a charge",
            (OnStoreFailure::Deny, 1) => "answers 503",
            (OnStoreFailure::Deny, _) => "answer 503",
        }
    }
}

/// Returns the number of enforced limits with each treatment, in words: `1 limit answers 503, 2 limits decide by this
/// gateway's share`. Empty without such limits.
pub fn without_store(limits: &[CompiledLimit]) -> String {
    let each = [OnStoreFailure::Deny, OnStoreFailure::Local, OnStoreFailure::Allow].map(|treatment| {
        let is_one = |limit: &&CompiledLimit| limit.mode == Mode::Enforce && limit.on_store_failure == treatment;
        let count = limits.iter().filter(is_one).count();
        let noun = if count == 1 { "limit" } else { "limits" };
        (count > 0).then(|| format!("{count} {noun} {}", treatment.words(count)))
    });
    each.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The most limits that are named.
const MOST_NAMED: usize = 5;

/// Returns what these limits do, with their names: `one, two and three answer 503 (on_store_failure: deny)`. `None` without
/// a limit.
pub fn named_without_store(names: &[&str], treatment: OnStoreFailure) -> Option<String> {
    Some(format!("{} {} (on_store_failure: {})", listed(names)?, treatment.words(names.len()), treatment.name()))
}

/// Returns what these limits over several regions do while their home is away, with their names. `None` without a limit.
pub fn named_without_home(names: &[&str], has_share: bool) -> Option<String> {
    let words = match (has_share, names.len()) {
        (false, 1) => "answers 503 beyond its lease (store.home.on_failure: deny)",
        (false, _) => "answer 503 beyond their leases (store.home.on_failure: deny)",
        (true, 1) => "decides by this region's share (store.home.on_failure: local)",
        (true, _) => "decide by this region's share (store.home.on_failure: local)",
    };
    Some(format!("{} {words}", listed(names)?))
}

/// Lists a few names, and counts the others. `None` without a name.
fn listed(names: &[&str]) -> Option<String> {
    Some(match names {
        [] => return None,
        [one] => (*one).to_owned(),
        [first @ .., last] if names.len() <= MOST_NAMED => format!("{} and {last}", first.join(", ")),
        _ => {
            let shown = names.get(..MOST_NAMED).unwrap_or(names).join(", ");
            format!("{shown} and {} more", names.len() - MOST_NAMED)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_limits_are_named_and_the_others_counted() {
        let said = |names: &[&str]| named_without_store(names, OnStoreFailure::Deny).unwrap_or_default();
        assert_eq!(said(&[]), "");
        assert_eq!(said(&["a"]), "a answers 503 (on_store_failure: deny)");
        assert_eq!(said(&["a", "b", "c"]), "a, b and c answer 503 (on_store_failure: deny)");
        assert_eq!(
            said(&["a", "b", "c", "d", "e", "f", "g"]),
            "a, b, c, d, e and 2 more answer 503 (on_store_failure: deny)"
        );
    }
}

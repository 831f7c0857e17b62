//! Finds long windows whose buckets are lost at a restart.

use super::file::File;
use super::location::Finding;
use base::time::Micros;
use ledger::algorithm::Algorithm;
use rules::rule::Action;

/// The longest window for which a restart does not matter to clients.
const LONG: Micros = Micros(3_600_000_000);

/// Finds limits with a long window whose buckets are kept in memory without a file. A restart forgets them.
pub(super) fn forgotten_period(file: &File<'_>) -> Vec<Finding> {
    if !file.config.store.is_forgotten_at_restart() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for located in file.rules().filter(|located| located.is_enforced()) {
        let Action::Charge(limits) = &located.rule.action else { continue };
        for limit in limits.iter().filter(|limit| window(&limit.algorithm).is_some_and(|window| window > LONG)) {
            let location = located.numbers(limit).key("window");
            let what = format!(
                "is {}, and buckets are in memory without a file: a restart forgets what was spent",
                location.text().unwrap_or_default()
            );
            found.push(location.finding(what, "set `store.memory.file`, or keep buckets in a Redis that persists"));
        }
    }
    found
}

/// Returns the window of a limit: the time for which a grant counts. `None` if the algorithm has no window.
fn window(algorithm: &Algorithm) -> Option<Micros> {
    match algorithm {
        Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) | Algorithm::Concurrency(_) => None,
        // Home remembers what was spent.
        Algorithm::Purse(_) => None,
        Algorithm::FixedWindow(window) => Some(window.window().shortest()),
        Algorithm::Budget(_) | Algorithm::Home(_) => algorithm.window().map(|window| window.shortest()),
        Algorithm::SlidingLog(log) => Some(log.quota().window),
        Algorithm::SlidingWindow(window) => Some(window.window()),
    }
}

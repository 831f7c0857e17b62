//! Defines counters whose series appear in `/metrics` with their first event. Those with a label of causes are such counters,
//! because most causes never occur.

use std::fmt;
use std::sync::OnceLock;

use metrics::Counter;

/// A group of counters, one for each value of a closed set.
pub(crate) struct CountersOnUse<T> {
    counters: Vec<(T, OnceLock<Counter>)>,
    new: Box<dyn Fn(&T) -> Counter + Send + Sync>,
}

impl<T: PartialEq> CountersOnUse<T> {
    pub(crate) fn new(
        values: impl IntoIterator<Item = T>,
        new: impl Fn(&T) -> Counter + Send + Sync + 'static,
    ) -> CountersOnUse<T> {
        let counters = values.into_iter().map(|value| (value, OnceLock::new())).collect();
        CountersOnUse { counters, new: Box::new(new) }
    }

    pub(crate) fn increment(&self, value: &T) {
        self.add(value, 1);
    }

    fn add(&self, value: &T, count: u64) {
        if count == 0 {
            return;
        }
        if let Some((value, counter)) = self.counters.iter().find(|(known, _)| known == value) {
            counter.get_or_init(|| (self.new)(value)).increment(count);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for CountersOnUse<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.counters.iter().map(|(value, _)| value)).finish()
    }
}

/// A single counter.
#[derive(Debug)]
pub(crate) struct CounterOnUse(CountersOnUse<()>);

impl CounterOnUse {
    pub(crate) fn new(new: impl Fn() -> Counter + Send + Sync + 'static) -> CounterOnUse {
        CounterOnUse(CountersOnUse::new([()], move |()| new()))
    }

    /// Makes a counter that counts nothing and has no series.
    pub(crate) fn noop() -> CounterOnUse {
        CounterOnUse(CountersOnUse::new([], |()| Counter::noop()))
    }

    pub(crate) fn increment(&self, count: u64) {
        self.0.add(&(), count);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gateway::telemetry::metrics::registry::Registry;

    #[test]
    fn a_series_appears_with_its_first_event() {
        const NAME: &str = "rate_limiter_store_errors_total";
        let registry = Arc::new(Registry::default());
        let made = Arc::clone(&registry);
        let by_kind = CountersOnUse::new(["timeout", "closed"], move |kind| made.counter(NAME, &[("kind", *kind)]));
        assert!(registry.counters(NAME).is_empty());
        for kind in ["closed", "closed", "unknown"] {
            by_kind.increment(&kind);
        }
        let found: Vec<_> =
            registry.counters(NAME).iter().map(|one| (one.label("kind").to_owned(), one.value)).collect();
        assert_eq!(found, [("closed".to_owned(), 2)]);
    }
}

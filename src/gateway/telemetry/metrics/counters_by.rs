//! Defines a group of counters, with one counter for each value of a closed set.

use metrics::Counter;

#[derive(Debug)]
pub(crate) struct CountersBy<T>(Vec<(T, Counter)>);

impl<T: PartialEq> CountersBy<T> {
    pub(crate) fn new(values: impl IntoIterator<Item = T>, counter: impl Fn(&T) -> Counter) -> CountersBy<T> {
        CountersBy(
            values.into_iter().map(|value| (counter(&value), value)).map(|(counter, value)| (value, counter)).collect(),
        )
    }

    pub(crate) fn increment(&self, value: &T) {
        if let Some((_, counter)) = self.0.iter().find(|(known, _)| known == value) {
            counter.increment(1);
        }
    }
}

//! Counts the responses of one route by method, status code and origin.

use std::sync::OnceLock;

use metrics::Counter;

use crate::gateway::telemetry::labels::{METHODS, Origin};

/// The number of status codes in one class, such as 2xx.
const CODES: usize = 100;
const CLASSES: usize = 5;

/// One counter of responses for each method, status code and origin (gateway or upstream). The counters of 100 codes
/// form a block. Blocks and counters are made when they are first needed.
#[derive(Debug)]
pub(super) struct ResponseCounts(Vec<OnceLock<Box<[OnceLock<Counter>]>>>);

/// The labels of the series in which a response is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseLabels {
    pub method: &'static str,
    pub code: u16,
    pub origin: &'static str,
}

impl Default for ResponseCounts {
    fn default() -> ResponseCounts {
        ResponseCounts((0..METHODS.len() * CLASSES * 2).map(|_| OnceLock::new()).collect())
    }
}

impl ResponseCounts {
    /// Returns the counter of responses with this method, status code and origin. `new` is called to make the counter when it
    /// is first needed.
    #[allow(clippy::indexing_slicing, reason = "there is one for each of these methods and codes")]
    pub(super) fn counter(
        &self,
        method: &str,
        code: u16,
        origin: Origin,
        new: impl FnOnce(ResponseLabels) -> Counter,
    ) -> &Counter {
        let method = METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len() - 1);
        // An upstream may send a code outside HTTP's range of 100 to 599. Such a code is counted as 599.
        let code = if (100..600).contains(&code) { code } else { 599 };
        let (origin, origin_index) = match origin {
            Origin::Gateway => ("gateway", 0),
            Origin::Upstream => ("upstream", 1),
        };
        let index = usize::from(code - 100);
        let block = (method * CLASSES + index / CODES) * 2 + origin_index;
        let counters = self.0[block].get_or_init(|| (0..CODES).map(|_| OnceLock::new()).collect());
        counters[index % CODES].get_or_init(|| new(ResponseLabels { method: METHODS[method], code, origin }))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_counter_is_made_once_for_each_method_code_and_origin() {
        let (counts, made) = (ResponseCounts::default(), Cell::new(0));
        let count = |method, code, origin| {
            let mut labels = None;
            counts.counter(method, code, origin, |new| {
                made.set(made.get() + 1);
                labels = Some(new);
                Counter::noop()
            });
            labels.map(|labels| (labels.method, labels.code, labels.origin))
        };
        for _ in 0..2 {
            for method in METHODS {
                for code in 100..600 {
                    for (origin, name) in [(Origin::Gateway, "gateway"), (Origin::Upstream, "upstream")] {
                        let expected = (made.get() < 8_000).then_some((method, code, name));
                        assert_eq!(count(method, code, origin), expected);
                    }
                }
            }
        }
        assert_eq!((count("BREW", 99, Origin::Upstream), made.get()), (None, 8_000));
    }
}

//! The tokens that an answer has cost.

/// The tokens of one request, in kinds that may have different prices. Each token counts as one kind only.
///
/// Images and other media that were sent are `input`. Reasoning is `output`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Usage {
    /// Tokens that were sent and were not read from a cache, or the total, if the answer has nothing else.
    pub input: u64,
    /// Tokens that the model wrote.
    pub output: u64,
    /// Tokens that were sent and were read from a cache.
    pub cached: u64,
    /// Tokens that were sent and were written to a cache.
    pub cache_write: u64,
}

impl Usage {
    /// One token of input: the least that a request has sent.
    pub const ONE_INPUT: Usage = Usage { input: 1, output: 0, cached: 0, cache_write: 0 };

    /// The number of tokens that were sent, from a cache or not, at most [`u64::MAX`].
    pub fn prompt(&self) -> u64 {
        self.input.saturating_add(self.cached).saturating_add(self.cache_write)
    }

    /// All tokens, at most [`u64::MAX`].
    pub fn total(&self) -> u64 {
        self.prompt().saturating_add(self.output)
    }
}

/// A number of tokens that an answer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// The tokens that were sent. The format says whether cached tokens are included.
    Input,
    Output,
    /// The tokens of reasoning that are not in `Output`.
    Reasoning,
    /// The results of tools that the server ran. Their tokens are not in `Input`.
    ToolResults,
    Total,
    Cached,
    CacheWrite,
}

impl Count {
    const NUMBER: usize = 7;
}

/// The numbers of tokens in an answer so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts([Option<u64>; Count::NUMBER]);

impl Counts {
    pub(crate) fn get(&self, count: Count) -> Option<u64> {
        self.0.get(count as usize).copied().flatten()
    }

    pub(crate) fn set(&mut self, count: Count, tokens: u64) {
        if let Some(place) = self.0.get_mut(count as usize) {
            *place = Some(tokens);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Replaces the numbers that `later` has. They are not added, because the numbers of a stream are cumulative.
    pub(crate) fn replace(&mut self, later: &Counts) {
        for (number, later) in self.0.iter_mut().zip(later.0) {
            *number = later.or(*number);
        }
    }

    /// Returns the numbers that are not 0.
    pub(crate) fn without_zeros(&self) -> Counts {
        Counts(self.0.map(|number| number.filter(|number| *number > 0)))
    }

    /// Returns the usage, for a format whose input includes cached tokens. `None` if the input and the total are
    /// missing.
    ///
    /// Some servers count reasoning only in the total. What the total has beyond the other numbers is therefore output.
    pub(crate) fn with_cached_inside(&self) -> Option<Usage> {
        let zero_if_missing = |count| self.get(count).unwrap_or_default();
        let tool_results = zero_if_missing(Count::ToolResults);
        let named_output = zero_if_missing(Count::Output).saturating_add(zero_if_missing(Count::Reasoning));
        let (sent, output) = match (self.get(Count::Input), self.get(Count::Total)) {
            (Some(input), total) => {
                let sent = input.saturating_add(tool_results);
                (sent, named_output.max(total.unwrap_or_default().saturating_sub(sent)))
            }
            (None, Some(total)) => (total.saturating_sub(named_output), named_output),
            (None, None) => return None,
        };
        let cached = zero_if_missing(Count::Cached).min(sent);
        let cache_write = zero_if_missing(Count::CacheWrite).min(sent - cached);
        Some(Usage { input: sent - cached - cache_write, output, cached, cache_write })
    }

    /// Returns the usage, for a format whose input does not include cached tokens. `None` without an input.
    pub(crate) fn with_cached_beside(&self) -> Option<Usage> {
        Some(Usage {
            input: self.get(Count::Input)?,
            output: self.get(Count::Output).unwrap_or_default(),
            cached: self.get(Count::Cached).unwrap_or_default(),
            cache_write: self.get(Count::CacheWrite).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(numbers: &[(Count, u64)]) -> Counts {
        let mut counts = Counts::default();
        numbers.iter().for_each(|(count, tokens)| counts.set(*count, *tokens));
        counts
    }

    #[track_caller]
    fn check(numbers: &[(Count, u64)], [input, output, cached, cache_write]: [u64; 4]) {
        let expected = Usage { input, output, cached, cache_write };
        assert_eq!(counts(numbers).with_cached_inside(), Some(expected), "{numbers:?}");
    }

    #[test]
    fn cached_tokens_inside_of_the_input_are_counted_once() {
        use Count::{CacheWrite, Cached, Input, Output, Reasoning, ToolResults, Total};
        check(&[(Input, 10), (Output, 5), (Total, 15)], [10, 5, 0, 0]);
        check(&[(Input, 10), (Cached, 8), (CacheWrite, 1), (Output, 5)], [1, 5, 8, 1]);
        check(&[(Input, 10), (Cached, 80), (CacheWrite, 1)], [0, 0, 10, 0]);
        check(&[(Total, 15)], [15, 0, 0, 0]);
        check(&[(Output, 5), (Total, 15)], [10, 5, 0, 0]);
        check(&[(Input, 10), (Output, 5), (Reasoning, 7), (ToolResults, 3), (Total, 25)], [13, 12, 0, 0]);
        check(&[(Input, 10), (Output, 5), (Total, 40)], [10, 30, 0, 0]);
        check(&[(Input, 10), (Output, 5), (Total, 3)], [10, 5, 0, 0]);
        let most = u64::MAX;
        check(&[(Input, most), (ToolResults, most), (Output, most), (Reasoning, 1)], [most, most, 0, 0]);
        assert_eq!(counts(&[(Output, 5)]).with_cached_inside(), None);
        assert_eq!(counts(&[(Output, 5), (Cached, 1)]).with_cached_beside(), None);
    }

    #[test]
    fn a_later_number_replaces_one_and_is_not_added() {
        let mut known = counts(&[(Count::Input, 25), (Count::Output, 1)]);
        known.replace(&counts(&[(Count::Output, 15)]));
        assert_eq!(known, counts(&[(Count::Input, 25), (Count::Output, 15)]));
        known.replace(&counts(&[(Count::Input, 0), (Count::Output, 15)]).without_zeros());
        assert_eq!(known.with_cached_beside(), Some(Usage { input: 25, output: 15, ..Usage::default() }));
    }
}

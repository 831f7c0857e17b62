//! Defines the weights of the kinds of tokens at a limit with `cost_source: llm_tokens`.

use std::fmt;

use super::reserve::ExpectedTokens;
use ledger::cost::Cost;
use llm::usage::Usage;

/// What one token of each kind costs, in thousandths of the limit's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weights {
    pub input: Cost,
    pub output: Cost,
    pub cached: Cost,
    pub cache_write: Cost,
}

/// Every token costs 1.
impl Default for Weights {
    fn default() -> Weights {
        Weights { input: Cost::ONE, output: Cost::ONE, cached: Cost::ONE, cache_write: Cost::ONE }
    }
}

impl Weights {
    /// Returns what these tokens cost together. The sum saturates far above anything that a limit can hold.
    pub fn cost(&self, usage: &Usage) -> Cost {
        let parts = [
            (self.input, usage.input),
            (self.output, usage.output),
            (self.cached, usage.cached),
            (self.cache_write, usage.cache_write),
        ];
        parts.into_iter().fold(Cost::default(), |sum, (weight, tokens)| {
            sum.plus(Cost::from_thousandths(weight.thousandths().saturating_mul(tokens)))
        })
    }
}

impl Weights {
    /// Returns the most that these tokens can cost together. Input may be read from a cache or written to a cache. So
    /// the largest of these weights counts for all input.
    pub fn most_cost(&self, ExpectedTokens { input, output }: ExpectedTokens) -> Cost {
        let sent = self.input.max(self.cached).max(self.cache_write);
        Weights { input: sent, ..*self }.cost(&Usage { input, output, ..Usage::default() })
    }
}

/// Displays the weight of each kind of token: `input 1, output 4, cached 0.1, cache_write 1`.
impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Weights { input, output, cached, cache_write } = self;
        write!(f, "input {input}, output {output}, cached {cached}, cache_write {cache_write}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_token_has_its_weight() {
        let weights = Weights {
            input: Cost::ONE,
            output: Cost::from_tokens(4),
            cached: Cost::from_thousandths(100),
            cache_write: Cost::from_thousandths(1250),
        };
        let usage = Usage { input: 10, output: 5, cached: 7, cache_write: 1 };
        assert_eq!(weights.cost(&usage), Cost::from_thousandths(10_000 + 20_000 + 700 + 1_250));
        assert_eq!(Weights::default().cost(&usage), Cost::from_tokens(23));
        assert_eq!(weights.most_cost(ExpectedTokens { input: 10, output: 5 }), Cost::from_thousandths(12_500 + 20_000));
        let most = Usage { input: u64::MAX, output: u64::MAX, ..usage };
        assert_eq!(weights.cost(&most), Cost::from_thousandths(u64::MAX));
    }
}

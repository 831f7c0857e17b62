//! A table of prices of tokens, by model and length of the prompt, in whole numbers.

mod file;
mod price;

use std::collections::BTreeMap;
use std::fmt;

use crate::usage::Usage;

pub use price::Price;

/// An amount of money in whole 10⁻⁹ USD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NanoDollars(pub u64);

/// The prices of models.
///
/// ```
/// use llm::prices::{NanoDollars, Prices};
/// use llm::usage::Usage;
///
/// let prices = Prices::parse(b"\
/// model,input,output,cached,cache_write,above
/// gpt-4o*,2.50,10,1.25,,
/// gemini-2.5-pro,1.25,10,0.125,,
/// gemini-2.5-pro,2.50,15,0.25,,200000
/// ").unwrap();
/// let model = prices.model("gpt-4o-2024-11-20").unwrap();
/// let usage = Usage { input: 1000, output: 200, cached: 1, cache_write: 0 };
/// // 1000 × 2500 + 200 × 10000 + 1 × 1250, in 10⁻⁹ USD.
/// assert_eq!(model.cost(&usage), NanoDollars(4_501_250));
/// assert!(prices.model("o3").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    names: BTreeMap<String, ModelPrices>,
    /// The prices by the beginning of names, without `*`.
    prefixes: BTreeMap<String, ModelPrices>,
    /// The lengths of the prefixes in bytes, each once, the longest first.
    prefix_lengths: Vec<usize>,
    default: Option<ModelPrices>,
}

/// The prices of the models that one pattern matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrices {
    pattern: ModelPattern,
    /// The prices by the shortest prompt to which they apply, ascending, from 0.
    tiers: Vec<Tier>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ModelPattern {
    Name(String),
    /// Every model whose name begins with this text.
    Prefix(String),
    /// Every model without another price.
    Default,
}

/// The prices of prompts from this length on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tier {
    /// The length of the prompt in tokens.
    above: u64,
    /// The line of the file, from 1.
    line: usize,
    input: Price,
    output: Price,
    cached: Price,
    cache_write: Price,
}

/// A line of a file of prices that is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongLine {
    /// The number of the line, from 1.
    pub line: usize,
    /// What is required, and what was found.
    pub what: String,
}

impl Prices {
    /// The largest number of lines with prices.
    pub const MAX_LINES: usize = 100_000;

    /// Parses a file of prices: lines of values separated by commas, without quotation marks.
    ///
    /// The first line names the columns, in any order: `model`, `input` and `output`, and `cached`, `cache_write` and
    /// `above` if used. Blank lines, and lines that begin with `#`, are ignored.
    ///
    /// - `model` is a name, or the beginning of names with `*` after it, or `default` for all others.
    /// - `input`, `output`, `cached` and `cache_write` are USD for a million tokens: a decimal number up to
    ///   [`Price::MAX_DOLLARS`], with at most 9 digits after the point. Without a price, cached and written tokens cost what
    ///   `input` says.
    /// - `above` is a number of tokens: the line holds for prompts of that length and longer. A model needs a line for 0, which
    ///   is also what an empty value means.
    ///
    /// # Errors
    /// Returns the first invalid lines.
    pub fn parse(file: &[u8]) -> Result<Prices, Vec<WrongLine>> {
        file::parse(file)
    }

    fn new(models: Vec<ModelPrices>) -> Prices {
        let (mut names, mut prefixes, mut default) = (BTreeMap::new(), BTreeMap::new(), None);
        for model in models {
            match &model.pattern {
                ModelPattern::Name(name) => _ = names.insert(name.clone(), model),
                ModelPattern::Prefix(prefix) => _ = prefixes.insert(prefix.clone(), model),
                ModelPattern::Default => default = Some(model),
            }
        }
        let mut prefix_lengths: Vec<usize> = prefixes.keys().map(String::len).collect();
        prefix_lengths.sort_unstable_by(|a, b| b.cmp(a));
        prefix_lengths.dedup();
        Prices { names, prefixes, prefix_lengths, default }
    }

    /// Gives every model without a price the prices of one line. `line` is the `model` in that line, such as `gpt-4o*`.
    /// `None` if no line has this `model`.
    #[must_use]
    pub fn with_default(mut self, line: &str) -> Option<Prices> {
        let named = match line.strip_suffix('*') {
            Some(prefix) => self.prefixes.get(prefix),
            None if line == "default" => self.default.as_ref(),
            None => self.names.get(line),
        };
        self.default = Some(named?.clone());
        Some(self)
    }

    /// Returns the number of models and beginnings of names that have prices. The `default` adds one to the number.
    pub fn count(&self) -> usize {
        self.names.len() + self.prefixes.len() + usize::from(self.default.is_some())
    }

    /// Returns the prices of a model: the prices of its name, else of the longest beginning of its name, else the
    /// default. `None` for a model without a price.
    pub fn model(&self, model: &str) -> Option<&ModelPrices> {
        let mut beginnings = self.prefix_lengths.iter().filter_map(|length| model.get(..*length));
        let by_prefix = || beginnings.find_map(|beginning| self.prefixes.get(beginning));
        self.names.get(model).or_else(by_prefix).or(self.default.as_ref())
    }
}

impl ModelPrices {
    /// The line of the file, from 1, with the prices of a prompt of this length.
    pub fn line(&self, prompt: u64) -> usize {
        self.tier(prompt).map_or(0, |tier| tier.line)
    }

    /// The cost of a request, rounded up, at most [`u64::MAX`].
    pub fn cost(&self, usage: &Usage) -> NanoDollars {
        let Some(tier) = self.tier(usage.prompt()) else { return NanoDollars(u64::MAX) };
        let parts = [
            (usage.input, tier.input),
            (usage.output, tier.output),
            (usage.cached, tier.cached),
            (usage.cache_write, tier.cache_write),
        ];
        // Each of the four products is below 2^50 × 2^64, so their sum is below 2^116.
        let of_a_million: u128 = parts.iter().map(|(tokens, price)| u128::from(*tokens) * price.nano_dollars()).sum();
        NanoDollars(u64::try_from(of_a_million.div_ceil(Price::TOKENS)).unwrap_or(u64::MAX))
    }

    /// The largest cost of a request with a prompt and a response of at most these numbers of tokens, rounded up, at
    /// most [`u64::MAX`]. The cost is never larger than this, whichever tokens of the prompt are cached.
    pub fn most(&self, prompt: u64, output: u64) -> NanoDollars {
        let reached = self.tiers.iter().filter(|tier| tier.above <= prompt);
        let of_tier = |tier: &Tier| {
            let of_prompt = tier.input.max(tier.cached).max(tier.cache_write);
            // Each of the two products is below 2^50 × 2^64, so their sum is below 2^115.
            let of_a_million =
                u128::from(prompt) * of_prompt.nano_dollars() + u128::from(output) * tier.output.nano_dollars();
            u64::try_from(of_a_million.div_ceil(Price::TOKENS)).unwrap_or(u64::MAX)
        };
        NanoDollars(reached.map(of_tier).max().unwrap_or(u64::MAX))
    }

    fn tier(&self, prompt: u64) -> Option<&Tier> {
        self.tiers.iter().rev().find(|tier| tier.above <= prompt)
    }
}

/// Displays the pattern as in the file: `gpt-4o*`, `default`.
impl fmt::Display for ModelPrices {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pattern.fmt(out)
    }
}

impl fmt::Display for ModelPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelPattern::Name(name) => out.write_str(name),
            ModelPattern::Prefix(prefix) => write!(out, "{prefix}*"),
            ModelPattern::Default => out.write_str("default"),
        }
    }
}

impl fmt::Display for WrongLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "line {}: {}", self.line, self.what)
    }
}

//! Finds the price of a request to a language model: by the model that answered, or else by the model that was asked for.

use std::sync::Arc;

use llm::prices::{ModelPrices, NanoDollars, Prices};
use llm::usage::Usage;

/// The table of prices that was in force when a request was admitted, and the model that the request asks for.
#[derive(Clone, Debug)]
pub struct RequestPrices {
    table: Arc<Prices>,
    asked: String,
}

/// What a request has cost, and the line of the table with the price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PricedUsage {
    /// The cost, above 0.
    pub cost: NanoDollars,
    /// The `model` in the line, such as `gpt-4o*`.
    pub model: String,
    /// The number of the line, from 1.
    pub line: usize,
    /// Whether this is the price of the model that was asked for, because the model that answered has no price.
    pub is_of_asked: bool,
}

impl RequestPrices {
    /// Returns the prices for a request for the model `asked`. `None` if the table has no price for this model. If the request
    /// names no model, `asked` is empty, and only the default of the table can give the price.
    pub fn of(table: &Arc<Prices>, asked: &[u8]) -> Option<RequestPrices> {
        let asked = std::str::from_utf8(asked).ok()?;
        table.model(asked)?;
        Some(RequestPrices { table: Arc::clone(table), asked: asked.to_owned() })
    }

    /// Returns the prices of the model that was asked for.
    pub fn asked(&self) -> Option<&ModelPrices> {
        self.table.model(&self.asked)
    }

    /// Returns what this usage costs. `answered` is the model that the response names.
    pub fn price(&self, usage: &Usage, answered: Option<&str>) -> Option<PricedUsage> {
        let of_answered = answered.map(|model| self.table.model(model));
        let prices = of_answered.flatten().or_else(|| self.asked())?;
        Some(PricedUsage {
            // The cost is never 0, even if the model is free, because 0 is the cost of a request that does not count.
            cost: prices.cost(usage).max(NanoDollars(1)),
            model: prices.to_string(),
            line: prices.line(usage.prompt()),
            is_of_asked: of_answered == Some(None),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &str) -> Arc<Prices> {
        Arc::new(Prices::parse(format!("model,input,output,above\n{lines}").as_bytes()).unwrap())
    }

    #[test]
    fn the_model_that_answered_has_the_price() {
        let table = table("asked,1,2,\nfree,0,0,\nanswered*,10,20,\nanswered*,100,200,50\n");
        assert!(RequestPrices::of(&table, b"unknown").is_none());
        assert!(RequestPrices::of(&table, b"asked\xff").is_none());
        let prices = RequestPrices::of(&table, b"asked").unwrap();
        let check = |input, answered, cost, model: &str, line, is_of_asked| {
            let usage = Usage { input, output: 3, ..Usage::default() };
            let expected = PricedUsage { cost: NanoDollars(cost), model: model.to_owned(), line, is_of_asked };
            assert_eq!(prices.price(&usage, answered), Some(expected), "{input} {answered:?}");
        };
        check(4, None, 10_000, "asked", 2, false);
        check(4, Some("asked"), 10_000, "asked", 2, false);
        check(4, Some("other"), 10_000, "asked", 2, true);
        check(4, Some("answered-2"), 100_000, "answered*", 4, false);
        check(50, Some("answered-2"), 5_600_000, "answered*", 5, false);
        check(4, Some("free"), 1, "free", 3, false);
    }

    #[test]
    fn a_default_is_the_price_of_every_other_model() {
        let table = table("a,1,2,\ndefault,5,5,\n");
        let prices = RequestPrices::of(&table, b"").unwrap();
        let usage = Usage { input: 1, ..Usage::default() };
        for answered in [None, Some("b")] {
            let priced = prices.price(&usage, answered).unwrap();
            assert_eq!((priced.cost, &*priced.model, priced.is_of_asked), (NanoDollars(5_000), "default", false));
        }
    }
}

//! Determines the amount that a budget holds for one request, during a walk over the rules.

use super::compiled_rule::Slot;
use super::policy_walk::Facts;
use super::settled_price::{ExpectedTokens, InputEstimate, LearnedReserve, Reserve, SettledPrice, SettledSource};
use ledger::charge::LimitId;
use ledger::cost::{Cost, ExtraDecimals, requested_cost};

/// The reserve of one budget.
pub(crate) struct ReserveOf<'s> {
    pub limit: LimitId,
    pub price: &'s SettledPrice,
    /// The slots of the attributes that the reserve reads. The first attribute that the request has is used.
    pub slots: &'s [Slot],
    /// The amount that a full bucket holds.
    pub ceiling: Cost,
}

/// Returns the amount that a budget holds for the request that these facts are about.
pub(crate) fn reserved<'s>(facts: &mut impl Facts<'s>, of: ReserveOf<'_>) -> Cost {
    let ReserveOf { limit, price, slots, ceiling } = of;
    match &price.reserve {
        Reserve::Fixed(cost) => *cost,
        Reserve::FromRequest { default, min, max, .. } if matches!(price.source, SettledSource::CountOn { .. }) => {
            let requested = |text: &[u8]| requested_cost(Some(text), *default, *min, *max);
            first_text(facts, slots, requested).unwrap_or(*default)
        }
        Reserve::FromRequest { plus, default, min, max, .. } => {
            let amount = |text: &[u8]| Cost::parse(text, ExtraDecimals::RoundUp).unwrap_or(*default);
            let named = first_text(facts, slots, amount).unwrap_or(*default);
            let input = match plus {
                InputEstimate::Added => input(facts, price, *default),
                InputEstimate::Ignored => Cost::default(),
            };
            named.plus(input).bounded(*min, *max)
        }
        Reserve::Worst { default_output } => {
            let unread = ExpectedTokens { input: 0, output: *default_output };
            let tokens = facts.model_request().and_then(|request| ExpectedTokens::most(request, Some(*default_output)));
            price.most_cost(tokens.unwrap_or(unread))
        }
        Reserve::Learned(LearnedReserve { quantile, min, max, default, .. }) => {
            let costs = facts.learned_costs();
            let read = |by: Option<&[u8]>| costs?.quantile(limit, *quantile, by);
            let learned = match slots.first() {
                Some(slot) => facts.with_text(*slot, read),
                None => read(None),
            };
            let tokens = facts.model_request().and_then(|request| ExpectedTokens::most(request, None));
            let counts_tokens = matches!(price.source, SettledSource::LlmTokens(_));
            let worst = tokens.filter(|_| counts_tokens).map(|tokens| price.most_cost(tokens));
            let bounds = max.iter().chain(&worst).chain([&ceiling]);
            bounds.fold(learned.unwrap_or(*default), |amount, bound| amount.min(*bound)).max(*min)
        }
    }
}

/// Parses the first of these attributes that the request has. `None` if the request has none of these attributes.
fn first_text<'s>(facts: &mut impl Facts<'s>, slots: &[Slot], parse: impl Fn(&[u8]) -> Cost) -> Option<Cost> {
    slots.iter().find_map(|slot| facts.with_text(*slot, |text| text.map(&parse)))
}

/// Returns the most that the input of the request can cost. `elsewhere` is added for content that the request only
/// refers to.
fn input<'s>(facts: &impl Facts<'s>, price: &SettledPrice, elsewhere: Cost) -> Cost {
    let Some(request) = facts.model_request() else { return Cost::default() };
    let cost = price.most_cost(ExpectedTokens::sent(request));
    if request.body.has_content_elsewhere { cost.plus(elsewhere) } else { cost }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{
        Action, BanStatus, Expose, Limit, Mode, OnStoreFailure, Otherwise, Policy, Price, RefusalStatus, Rule,
        RuleSource,
    };
    use crate::rule_set::{Answer, RuleSet};
    use crate::settled_price::{LearnedCosts, Weights};
    use base::position::Position;
    use base::time::{Micros, Timestamp};
    use ledger::algorithm::Algorithm;
    use ledger::algorithm::budget::Budget;
    use ledger::algorithm::fixed_window::{FixedWindow, Window};
    use llm::formats::Format;
    use llm::json::Pointer;
    use llm::request::RequestReader;
    use request::attribute::Attribute;
    use request::body_values::{BodyKind, BodyValues};
    use request::client_address::ClientAddress;
    use request::model_request::{ModelBody, ModelRequest};
    use request::request::Request;
    use std::num::NonZeroU64;

    const CEILING: u64 = 10_000;

    /// A learned cost, and the values of the header `X-A` for which it was learned.
    #[derive(Debug)]
    struct Learned(u64, &'static [&'static str]);

    impl LearnedCosts for Learned {
        fn quantile(&self, limit: LimitId, quantile: u16, by: Option<&[u8]>) -> Option<Cost> {
            assert_eq!((limit, quantile), (LimitId(0), 950));
            let by = std::str::from_utf8(by.unwrap_or_default()).unwrap();
            self.1.contains(&by).then(|| Cost::from_tokens(self.0))
        }
    }

    fn rule_set(source: SettledSource, reserve: Reserve) -> RuleSet {
        let window = FixedWindow::new(CEILING, Window::Epoch(Micros(1_000_000))).unwrap();
        let limit = Limit {
            name: String::new(),
            meter: None,
            algorithm: Algorithm::Budget(Budget::of_fixed_window(window)),
            claimed: None,
            price: Price::Settled(SettledPrice { source, reserve, default_cost: None }),
            overrides: Vec::new(),
            candidate: None,
            candidate_claimed: None,
            expose: Expose::Yes,
            refusal: RefusalStatus::QuotaExceeded,
            ban_status: BanStatus::default(),
            on_store_failure: OnStoreFailure::Local,
        };
        let rule = Rule {
            name: "a".to_owned(),
            conditions: Vec::new(),
            keys: Vec::new(),
            mode: Mode::Enforce,
            action: Action::Charge(vec![limit]),
            until: None,
            position: Position::default(),
        };
        let policy = Policy {
            name: "p".to_owned(),
            conditions: Vec::new(),
            mode: Mode::Enforce,
            otherwise: Otherwise::Allow,
            rules: vec![rule],
            position: Position::default(),
        };
        RuleSet::compile(RuleSource { policies: vec![policy], exempt: Vec::new() })
    }

    /// Returns what a request with this body reserves. Each byte of its text is estimated as one token of input.
    fn reserve(rules: &RuleSet, body: &str, learned: Option<&dyn LearnedCosts>) -> u64 {
        let head = http::Request::post("/v1/chat/completions").header("x-a", "small").body(()).unwrap().into_parts().0;
        let mut reader = RequestReader::new(Format::OpenAiChat, u64::MAX);
        reader.push(body.as_bytes());
        let body_of_model = reader.finish().unwrap();
        let request =
            ModelRequest { body: body_of_model, bytes_per_token: NonZeroU64::MIN, media: 1, is_signed: false };
        let mut values = BodyValues::default();
        values.note_model(ModelBody::Read(Box::new(request)));
        let attributes: Vec<Attribute> = rules.attributes().to_vec();
        values.read(BodyKind::Json, body.as_bytes(), &attributes).unwrap();
        let request = Request::new(&head, ClientAddress::new([203, 0, 113, 7].into(), 64)).with_body(Some(&values));
        let ruling = rules.plan_or_needs(&request, Timestamp(1), learned).unwrap();
        let (Answer::Charge(plan) | Answer::TooLarge(plan)) = ruling.answer else { panic!("not charged") };
        plan.enforced[0].cost.whole()
    }

    fn tokens() -> SettledSource {
        let three = Cost::from_tokens(3);
        SettledSource::LlmTokens(Weights { output: Cost::from_tokens(2), cache_write: three, ..Weights::default() })
    }

    fn learned(max: Option<u64>) -> Reserve {
        let tokens = Cost::from_tokens;
        let by = Some(Attribute::parse("header:x-a").unwrap());
        Reserve::Learned(LearnedReserve {
            quantile: 950,
            by,
            min: tokens(30),
            max: max.map(tokens),
            default: tokens(900),
        })
    }

    #[test]
    fn the_worst_case_is_the_maximum_of_the_request_and_its_input() {
        let rules = rule_set(tokens(), Reserve::Worst { default_output: 100 });
        assert_eq!(reserve(&rules, "{}", None), 200);
        assert_eq!(reserve(&rules, r#"{"n":2}"#, None), 2 * 3 + 400);
        assert_eq!(reserve(&rules, r#"{"max_tokens":7}"#, None), 11 * 3 + 14);
        let file = r#"{"max_tokens":7,"messages":[{"content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]}"#;
        let without = reserve(&rules, &file.replace("http://a", ""), None);
        assert_eq!(reserve(&rules, file, None), without + ("http://a".len() as u64 + 100) * 3);
        // The largest maximum does not overflow.
        assert!(reserve(&rules, r#"{"max_tokens":18446744073709551615,"n":9}"#, None) > 1 << 50);
    }

    #[test]
    fn the_amount_of_a_request_is_not_weighed_and_its_input_is() {
        let from = |plus| Reserve::FromRequest {
            attributes: vec![Attribute::JsonAmount(Pointer::parse("/max_tokens").unwrap())],
            plus,
            default: Cost::from_tokens(50),
            min: Cost::from_tokens(40),
            max: Some(Cost::from_tokens(200)),
        };
        let alone = rule_set(tokens(), from(InputEstimate::Ignored));
        let with_input = rule_set(tokens(), from(InputEstimate::Added));
        let bodies = ["{}", r#"{"max_tokens":60}"#, r#"{"max_tokens":7}"#, r#"{"max_tokens":190}"#];
        assert_eq!(bodies.map(|body| reserve(&alone, body, None)), [50, 60, 40, 190]);
        assert_eq!(bodies.map(|body| reserve(&with_input, body, None)), [50, 60 + 36, 7 + 33, 200]);
    }

    #[test]
    fn a_learned_amount_has_bounds() {
        let rules = rule_set(tokens(), learned(Some(5000)));
        let after = |cost| reserve(&rules, "{}", Some(&Learned(cost, &["small"])));
        assert_eq!([29, 30, 700, 5001].map(after), [30, 30, 700, 5000]);
        // Nothing was learned about the value `small` of the request, so the default is reserved.
        assert_eq!(reserve(&rules, "{}", Some(&Learned(7, &["large"]))), 900);
        assert_eq!(reserve(&rules, "{}", None), 900);
        // The request can use at most 11 tokens of input, each with weight 3, and 5 of output, each with weight 2.
        assert_eq!(reserve(&rules, r#"{"max_tokens":5}"#, Some(&Learned(700, &["small"]))), 11 * 3 + 10);
    }

    #[test]
    fn a_learned_amount_is_at_most_what_a_full_bucket_holds() {
        let rules = rule_set(tokens(), learned(None));
        assert_eq!(reserve(&rules, "{}", Some(&Learned(CEILING + 1, &["small"]))), CEILING);
        // The reserve of a limit that does not count tokens is not bounded by the tokens of the request.
        let source = SettledSource::ResponseHeader(http::HeaderName::from_static("x-cost"));
        let rules = rule_set(source, learned(None));
        assert_eq!(reserve(&rules, r#"{"max_tokens":5}"#, Some(&Learned(700, &["small"]))), 700);
    }
}

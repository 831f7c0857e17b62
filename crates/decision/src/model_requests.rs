//! Decides which requests take part in limits on language models: POST requests whose path and body are in a known format. The
//! settings say whether other POST requests are refused, are free, or have a fixed cost. Also finds the prices for requests that
//! limits on money charge.

use std::sync::Arc;

use http::Method;
use http::header::UPGRADE;
use http::request::Parts;

use super::refusal::Refusal;
use super::request_prices::RequestPrices;
use ledger::charge::{Charge, LimitId, Plan};
use ledger::cost::Cost;
use llm::prices::{ModelPrices, Prices};
use request::llm_model::format_of;
use request::model_request::{ModelBody, ModelRequest};
use request::request::Request;
use rules::route::llm_settings::{LlmSettings, OtherRequests};
use rules::rule_set::{Answer, RuleSet};
use rules::settled_price::{ExpectedTokens, Reserve, SettledPrice, Unit};
use smallvec::SmallVec;

/// A request that is refused before the store is asked, because limits on language models cannot know its cost.
#[derive(Debug)]
pub struct UnpricedRequest {
    pub refusal: Refusal,
    /// The charges that the request would have paid.
    pub plan: Plan,
    /// The enforced limits that refuse the request.
    pub limits: SmallVec<[LimitId; 1]>,
}

impl UnpricedRequest {
    /// Makes the error for a plan. `refuses` returns whether the limit of an enforced charge refuses the request.
    fn of(refusal: Refusal, plan: Plan, refuses: impl Fn(&Charge) -> bool) -> Box<UnpricedRequest> {
        let limits = plan.enforced.iter().filter(|charge| refuses(charge)).map(|charge| charge.limit).collect();
        Box::new(UnpricedRequest { refusal, plan, limits })
    }
}

/// What budgets need to know of a request.
#[derive(Clone, Debug)]
pub struct ModelContext<'s> {
    /// `None` for a call about descriptors, because budgets do not count such calls.
    pub request: Option<&'s Request<'s>>,
    /// The settings for the route of the request.
    pub llm: &'s Arc<LlmSettings>,
    pub body: &'s ModelBody,
    /// The prices, if a limit on money charges the request.
    pub prices: Option<RequestPrices>,
}

/// Changes what limits on language models charge, by the format of the request and the prices of its model. Charges of
/// other limits are not changed. `llm` are the settings for the route of the request. Also returns what budgets need to
/// know of the request.
///
/// # Errors
///
/// If limits refuse the request. Its format may be unknown, or its model may have no price. Or the settings require
/// that the response tells the usage, and the response will not tell it.
pub fn take_part<'s>(
    answer: Answer,
    rules: &RuleSet,
    request: &'s Request<'s>,
    llm: &'s Arc<LlmSettings>,
    prices: Option<&Arc<Prices>>,
) -> Result<(Answer, ModelContext<'s>), Box<UnpricedRequest>> {
    let context = ModelContext { request: Some(request), llm, body: request.model(), prices: None };
    let unchanged = |answer| Ok((answer, context.clone()));
    let (Answer::Charge(plan) | Answer::TooLarge(plan)) = &answer else { return unchanged(answer) };
    let unit_of_models = |charge: &Charge| {
        let price = rules.limit(charge.limit).and_then(|limit| limit.settled_price());
        price.filter(|price| price.source.is_llm()).map(SettledPrice::unit)
    };
    let counts_models = |charge: &Charge| unit_of_models(charge).is_some();
    if !plan.holds() || !plan.charges().any(counts_models) {
        return unchanged(answer);
    }
    let is_refused = |plan: &Plan| plan.enforced.iter().any(counts_models);
    let other = match (&request.head.method, format_of(request.head), context.body) {
        (_, Some(_), ModelBody::Read(_) | ModelBody::Unread) => {
            let is_without_usage = match context.body {
                ModelBody::Read(model) => lacks_usage(model, llm),
                ModelBody::Unread | ModelBody::Other => false,
            };
            // A limit in shadow mode refuses nothing.
            if is_without_usage && is_refused(plan) {
                let plan = plan.clone();
                return Err(UnpricedRequest::of(Refusal::usage_required(), plan, counts_models));
            }
            return with_prices(answer, rules, context, prices, |charge| unit_of_models(charge) == Some(Unit::Dollars));
        }
        // The type of this body is not JSON, but an upstream may still read it as a request to a model.
        (&Method::POST, Some(_), ModelBody::Other) => OtherRequests::Refuse,
        _ => other_requests(request.head, llm),
    };
    let (Answer::Charge(mut plan) | Answer::TooLarge(mut plan)) = answer else { return unchanged(answer) };
    match other {
        OtherRequests::Refuse if is_refused(&plan) => {
            return Err(UnpricedRequest::of(Refusal::unpriced(), plan, counts_models));
        }
        OtherRequests::Refuse | OtherRequests::Free => {
            plan.enforced.retain(|charge| !counts_models(charge));
            plan.shadow.retain(|charge| !counts_models(charge));
        }
        OtherRequests::Cost(cost) => {
            let charges = plan.enforced.iter_mut().chain(&mut plan.shadow);
            for charge in charges {
                if let Some(unit) = unit_of_models(charge) {
                    charge.cost = unit.times(cost);
                }
            }
        }
    }
    unchanged(answer_for(plan))
}

/// Finds the prices for a request that limits on money charge, and sets what these limits reserve.
fn with_prices<'s>(
    answer: Answer,
    rules: &RuleSet,
    model: ModelContext<'s>,
    table: Option<&Arc<Prices>>,
    counts_money: impl Fn(&Charge) -> bool,
) -> Result<(Answer, ModelContext<'s>), Box<UnpricedRequest>> {
    let (Answer::Charge(mut plan) | Answer::TooLarge(mut plan)) = answer else { return Ok((answer, model)) };
    if !plan.charges().any(&counts_money) {
        return Ok((answer_for(plan), model));
    }
    // `explain` does not know the body, so it does not know the price.
    let ModelBody::Read(body) = model.body else { return Ok((answer_for(plan), model)) };
    let asked = body.body.model.as_deref().unwrap_or_default();
    let prices = table.and_then(|table| RequestPrices::of(table, asked.as_bytes()));
    if prices.is_none() {
        if plan.enforced.iter().any(&counts_money) {
            return Err(UnpricedRequest::of(Refusal::unpriced(), plan, counts_money));
        }
        // A limit in shadow mode refuses nothing.
        plan.shadow.retain(|charge| !counts_money(charge));
    }
    if let Some(prices) = prices.as_ref().and_then(RequestPrices::asked) {
        let charges = plan.enforced.iter_mut().chain(&mut plan.shadow).filter(|charge| counts_money(charge));
        for charge in charges {
            if let Some(price) = rules.limit(charge.limit).and_then(|limit| limit.settled_price()) {
                charge.cost = reserved(charge.cost, price, prices, body);
            }
        }
    }
    Ok((answer_for(plan), ModelContext { prices, ..model }))
}

/// Returns what a limit on money reserves, now that the prices are known. `walked` is the amount that the rules have
/// reserved without prices.
fn reserved(walked: Cost, price: &SettledPrice, prices: &ModelPrices, body: &ModelRequest) -> Cost {
    let most = |default_output| {
        let tokens = ExpectedTokens::most(body, default_output)?;
        Some(Unit::cost_of(prices.most(tokens.input, tokens.output)))
    };
    match &price.reserve {
        Reserve::Worst { default_output } => most(Some(*default_output)).unwrap_or(walked),
        Reserve::Learned(learned) => most(None).map_or(walked, |most| walked.min(most).max(learned.min)),
        Reserve::Fixed(_) | Reserve::FromRequest { .. } => walked,
    }
}

/// Returns whether a request is refused because its response would not tell the usage: the settings require the usage,
/// or the gateway would have to ask for it in a signed body.
fn lacks_usage(model: &ModelRequest, llm: &LlmSettings) -> bool {
    let cannot_ask = llm.ask_for_usage && model.is_signed && model.body.usage_question.is_some();
    cannot_ask || llm.require_usage && !model.tells_usage(llm.ask_for_usage)
}

/// Returns how a request with this head is treated if its format is not known.
pub fn other_requests(head: &Parts, llm: &LlmSettings) -> OtherRequests {
    match head.method {
        // A model's answers may come through a WebSocket, which is no read.
        Method::GET if is_websocket(head) => llm.other,
        Method::GET | Method::HEAD | Method::DELETE | Method::OPTIONS => OtherRequests::Free,
        _ => llm.other,
    }
}

/// Returns whether the head asks for a WebSocket, as some upstream may read it.
fn is_websocket(head: &Parts) -> bool {
    let mut protocols =
        head.headers.get_all(UPGRADE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    protocols.any(|protocol| {
        let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(b"websocket")
    })
}

fn answer_for(plan: Plan) -> Answer {
    if plan.enforced.iter().any(Charge::is_too_large) { Answer::TooLarge(plan) } else { Answer::Charge(plan) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Reason;
    use crate::test_rules::{bucket, limit, policy, rule_set};
    use base::time::Timestamp;
    use ledger::algorithm::Algorithm;
    use ledger::algorithm::budget::Budget;
    use ledger::cost::Cost;
    use request::client_address::ClientAddress;
    use rules::rule::{Action, Limit, Mode, Price};
    use rules::settled_price::{Reserve, SettledPrice, SettledSource, Weights};

    /// A limit on tokens with a reservation of 5, beside a limit on requests.
    fn rules(mode: Mode) -> RuleSet {
        let Algorithm::TokenBucket(numbers) = bucket(9) else { panic!("a token bucket") };
        let source = SettledSource::LlmTokens(Weights::default());
        let reserve = Reserve::Fixed(Cost::from_tokens(5));
        let price = Price::Settled(SettledPrice { source, reserve, default_cost: None });
        let tokens = Limit { algorithm: Algorithm::Budget(Budget::of_token_bucket(numbers)), price, ..limit(9) };
        let mut on_tokens = policy("tokens", Action::Charge(vec![tokens]));
        on_tokens.mode = mode;
        rule_set(vec![policy("requests", Action::Charge(vec![limit(9)])), on_tokens])
    }

    /// Returns the costs of a request at the enforced limits, and at the limits in shadow mode.
    fn costs(
        mode: Mode,
        method: &str,
        path: &str,
        other: OtherRequests,
    ) -> Result<(Vec<u64>, Vec<u64>), Box<UnpricedRequest>> {
        let rules = rules(mode);
        let head = http::Request::builder().method(method).uri(path).body(()).unwrap().into_parts().0;
        let request = Request::new(&head, ClientAddress::new([203, 0, 113, 7].into(), 64));
        let answer = rules.plan(&request, Timestamp(1)).answer;
        let llm = Arc::new(LlmSettings { other, ..LlmSettings::default() });
        let (answer, _) = take_part(answer, &rules, &request, &llm, None)?;
        let Answer::Charge(plan) = answer else { panic!("not charged") };
        let costs = |charges: &[Charge]| charges.iter().map(|charge| charge.cost.whole()).collect();
        Ok((costs(&plan.enforced), costs(&plan.shadow)))
    }

    #[test]
    fn only_requests_in_a_known_format_take_part() {
        use OtherRequests::{Free, Refuse};
        let cost = OtherRequests::Cost(Cost::from_tokens(2));
        let check = |method, path, other, expected: &[u64]| {
            let charged = costs(Mode::Enforce, method, path, other).unwrap();
            assert_eq!(charged, (expected.to_vec(), Vec::new()), "{method} {path} {other:?}");
        };
        for other in [Refuse, Free, cost] {
            for path in ["/v1/chat/completions", "/v1/chat/%63ompletions", "/v1//chat/./completions;x=y"] {
                check("POST", path, other, &[1, 5]);
            }
            for method in ["GET", "HEAD", "DELETE", "OPTIONS"] {
                check(method, "/v1/chat/completions", other, &[1]);
            }
        }
        let websocket = |value: &str| {
            let head = http::Request::get("/v1/realtime").header("upgrade", value).body(()).unwrap().into_parts().0;
            other_requests(&head, &LlmSettings { other: cost, ..LlmSettings::default() })
        };
        assert_eq!(["websocket", "h2c, WebSocket/13", "h2c"].map(websocket), [cost, cost, Free]);
        check("POST", "/v1/audio/speech", Free, &[1]);
        check("POST", "/v1/audio/speech", cost, &[1, 2]);
        let UnpricedRequest { refusal, plan, limits } =
            *costs(Mode::Enforce, "POST", "/v1/audio/speech", Refuse).unwrap_err();
        assert_eq!((refusal.status, refusal.reason), (400, Reason::Unpriced));
        assert_eq!((plan.enforced.len(), &limits[..]), (2, &[LimitId(1)][..]));
    }

    #[test]
    fn a_limit_that_is_only_tried_refuses_nothing() {
        let charged = costs(Mode::Shadow, "POST", "/v1/audio/speech", OtherRequests::Refuse).unwrap();
        assert_eq!(charged, (vec![1], Vec::new()));
        let charged = costs(Mode::Shadow, "POST", "/v1/messages", OtherRequests::Refuse).unwrap();
        assert_eq!(charged, (vec![1], vec![5]));
    }
}

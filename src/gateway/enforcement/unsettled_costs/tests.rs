//! Tests what a request costs, for every way in which it can end.

use http::HeaderName;

use super::*;
use rules::settled_price::{Reserve, Weights};

/// What every request of these tests reserves.
const RESERVED: Cost = Cost::from_tokens(5);

fn header() -> SettledSource {
    SettledSource::ResponseHeader(HeaderName::from_static("x-cost"))
}

fn count_on(entries: &[&str]) -> SettledSource {
    let mut results = UpstreamResults::default();
    entries.iter().for_each(|entry| results.add(entry).unwrap());
    SettledSource::CountOn { counted: results, resets: UpstreamResults::default() }
}

fn unsettled(source: SettledSource, default_cost: Option<u64>) -> UnsettledCost {
    let default_cost = default_cost.map(Cost::from_tokens);
    let price = Arc::new(SettledPrice { source, reserve: Reserve::Fixed(RESERVED), default_cost });
    let metrics = BudgetMetrics::noop();
    UnsettledCost {
        bucket: BucketKey([1; 16]),
        limit: LimitId(0),
        price,
        reserved: RESERVED,
        is_enforced: true,
        metrics,
        learner: None,
        record: None,
    }
}

#[track_caller]
fn check(unsettled: &UnsettledCost, result: RequestResult, read: ReadCost, cost: u64, is_missing: bool) {
    let settled = unsettled.settled(result, read, &LlmSettings::default().refund_on);
    assert_eq!(
        settled,
        SettledCost { cost: Cost::from_tokens(cost), is_missing, resets: false },
        "{result:?} {read:?}"
    );
}

#[test]
fn every_end_of_a_request_has_one_cost() {
    use ReadCost::Missing;
    use RequestResult::{Answered, Cut, NotConnected, NotSent, TimedOut, Unanswered};
    let one = unsettled(header(), Some(3));
    let named = |cost| ReadCost::Named(Cost::from_tokens(cost));
    check(&one, NotSent, Missing, 0, false);
    check(&one, NotConnected, Missing, 0, false);
    check(&one, TimedOut, Missing, 3, true);
    check(&one, Unanswered, Missing, 3, true);
    for status in [200, 204, 302, 400, 404] {
        for result in [Answered(status), Cut(status)] {
            check(&one, result, Missing, 3, true);
            check(&one, result, named(9), 9, false);
            check(&one, result, named(0), 0, false);
        }
    }
    for status in [429, 500, 503] {
        check(&one, Answered(status), Missing, 0, false);
        check(&one, Answered(status), named(9), 9, false);
    }
}

#[test]
fn without_a_default_a_missing_cost_is_what_was_reserved() {
    check(&unsettled(header(), None), RequestResult::Answered(200), ReadCost::Missing, 5, true);
}

#[test]
fn an_estimate_is_never_0_and_a_default_is_not_for_what_was_cut() {
    use RequestResult::{Answered, Cut, NotConnected, TimedOut, Unanswered};
    let estimated = |cost| ReadCost::Estimated(Cost::from_tokens(cost));
    let tokens = || SettledSource::LlmTokens(Weights::default());
    let (without, with) = (unsettled(tokens(), None), unsettled(tokens(), Some(0)));
    for result in [Answered(200), Answered(404), Cut(200), Unanswered, TimedOut] {
        check(&without, result, estimated(0), 1, true);
        check(&without, result, estimated(70), 70, true);
        let expected = if matches!(result, Answered(_)) { 0 } else { 70 };
        check(&with, result, estimated(70), expected, true);
    }
    for result in [NotConnected, Answered(429), Answered(500), Cut(502)] {
        check(&without, result, estimated(70), 0, false);
        check(&without, result, ReadCost::Configured(Cost::from_tokens(2)), 0, false);
        check(&without, result, ReadCost::Named(Cost::from_tokens(2)), 2, false);
    }
    check(&without, Answered(200), ReadCost::Configured(Cost::from_tokens(2)), 2, false);
}

#[test]
fn an_estimate_of_money_is_never_0() {
    let money = unsettled(SettledSource::LlmCost, None);
    let settled = |read| money.settled(RequestResult::Cut(200), read, &LlmSettings::default().refund_on);
    let parts = Cost::from_thousandths;
    for (estimate, cost) in [(0, 1), (1, 1), (70, 70)] {
        let expected = SettledCost { cost: parts(cost), is_missing: true, resets: false };
        assert_eq!(settled(ReadCost::Estimated(parts(estimate))), expected);
    }
}

#[test]
fn only_the_counted_results_cost_what_was_reserved() {
    use ReadCost::Missing;
    use RequestResult::{Answered, Cut, NotConnected, NotSent, TimedOut, Unanswered};
    let guesses = unsettled(count_on(&["401", "403", "5xx"]), None);
    for result in [Answered(401), Answered(403), Answered(502), Cut(401), Unanswered] {
        check(&guesses, result, Missing, 5, false);
    }
    for result in [NotSent, NotConnected, TimedOut, Answered(200), Answered(404), Cut(200)] {
        check(&guesses, result, Missing, 0, false);
    }
    let call = |status, name| RequestResult::AnsweredCall { status, grpc: GrpcStatus::parse_name(name) };
    let calls = unsettled(count_on(&["UNAUTHENTICATED"]), None);
    for (result, cost) in
        [(call(200, "OK"), 0), (call(200, "UNAUTHENTICATED"), 5), (call(200, ""), 5), (Answered(401), 0)]
    {
        check(&calls, result, Missing, cost, false);
    }
    check(&guesses, call(401, "UNAUTHENTICATED"), Missing, 5, false);
    check(&guesses, call(200, "UNAUTHENTICATED"), Missing, 0, false);
    let failures = unsettled(count_on(&["connect", "timeout"]), None);
    for (result, cost) in [(NotConnected, 5), (TimedOut, 5), (NotSent, 0), (Answered(500), 0)] {
        check(&failures, result, Missing, cost, false);
    }
}

#[test]
fn only_a_result_that_is_certain_and_costs_nothing_resets() {
    use RequestResult::{Answered, Cut, NotConnected, NotSent, TimedOut, Unanswered};
    let guesses = |counted: &[&str], reset_on: &[&str]| {
        let (SettledSource::CountOn { counted, .. }, SettledSource::CountOn { counted: resets, .. }) =
            (count_on(counted), count_on(reset_on))
        else {
            panic!("count_on has no other source")
        };
        unsettled(SettledSource::CountOn { counted, resets }, None)
    };
    let resets = |unsettled: &UnsettledCost, result| {
        let settled = unsettled.settled(result, ReadCost::Missing, &UpstreamResults::default());
        assert!(!settled.resets || settled.cost == Cost::default(), "{result:?}");
        settled.resets
    };
    let call = |status, name| RequestResult::AnsweredCall { status, grpc: GrpcStatus::parse_name(name) };
    let http = guesses(&["401"], &["2xx"]);
    assert!([Answered(200), Answered(204), Cut(200), call(200, "OK")].iter().all(|result| resets(&http, *result)));
    let others = [NotSent, NotConnected, TimedOut, Unanswered, Answered(401), Answered(302), Answered(500)];
    assert!(!others.iter().any(|result| resets(&http, *result)));
    // A wrong password ends a call with the HTTP status 200. A call that was cut has no status of gRPC.
    let calls = guesses(&["UNAUTHENTICATED"], &["2xx"]);
    for name in ["UNAUTHENTICATED", "INVALID_ARGUMENT", ""] {
        assert!(!resets(&calls, call(200, name)) && !resets(&http, call(200, name)), "{name}");
    }
    let names = guesses(&["UNAUTHENTICATED"], &["OK", "NOT_FOUND"]);
    let results = [call(200, "OK"), call(200, "NOT_FOUND"), call(200, ""), Answered(200)];
    assert_eq!(results.map(|result| resets(&names, result)), [true, true, false, false]);
}

#[test]
fn an_end_is_noted_once_and_without_one_nothing_was_sent() {
    let costs = UnsettledCosts {
        costs: [unsettled(header(), Some(3))].into_iter().collect(),
        llm: Arc::default(),
        model_tokens: Arc::new(ModelTokens::new(&Arc::default())),
        prices: None,
        model: None,
        end: OnceLock::new(),
    };
    let cost = || costs.settled().map(|(_, settled)| settled.cost.whole()).collect::<Vec<_>>();
    assert_eq!(cost(), [0]);
    for named in [7, 8] {
        let read = [ReadCost::Named(Cost::from_tokens(named))].into_iter().collect();
        costs.end(RequestEnd { result: RequestResult::Answered(200), read, tokens: None, priced: None });
        assert_eq!(cost(), [7]);
    }
}

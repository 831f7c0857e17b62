//! Defines the order in which the stages of a decision may answer a request. The first stage with an answer ends the
//! decision.
//!
//! 1. A malformed head. The HTTP server itself answers such a request, before any decision ([`Refusal::bad_request`]).
//! 2. The [`Stage`]s before the rules check that the request has only one reading, that its credentials are valid, and
//!    that it has a route. A request to the path of `usage` needs no route, and no rule refuses it.
//! 3. The rules ([`RulesDecision`]): first a `deny`, then a cost that is more than a limit can ever hold. A plan is
//!    charged only if neither of them refuses the request.
//! 4. The limits. [`super::speaking_limit`] makes the refusal, or [`super::store_failure_refusal`] if the store gave no
//!    answer.
//! 5. The upstream.
//!
//! `gateway::enforcement`, `explain` and `replay` run the stages of [`Stage::before_rules`]. Each of the three does its
//! own I/O between the stages.

use http::header::CONTENT_LENGTH;

use super::refusal::Refusal;
use ledger::charge::Plan;
use request::door::Door;
use request::request::Request;
use rules::denier::DenierId;
use rules::route::forwarding::Forwarding;
use rules::route::route_set::{RouteChoice, RouteSet};
use rules::rule_set::{Answer, RuleSet};

/// A stage of a decision. All these stages come before the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Checks whether the request may be sent on its connection. If not, the answer is [`Refusal::misdirected`].
    Connection,
    /// Checks whether the request has only one reading: [`check_reading`].
    Reading,
    /// Checks whether the request is a preflight from a listed origin ([`super::cors`]). As a proxy, the gateway
    /// answers a preflight itself. For another proxy, it decides a preflight without credentials.
    Preflight,
    /// Checks the credentials of the request, the token first: [`super::credentials`].
    Credentials,
    /// Checks whether the request is one to the path of `usage`. The gateway answers it ([`super::limit_usage`]), and charges
    /// nothing but the limit of such requests.
    Usage,
    /// Chooses the route of the request before the rules, because rules can read it: [`choose_route`]. If the route
    /// bounds the size of the body, checks the size too: [`check_body`].
    Route,
}

impl Stage {
    /// Returns the stages that come before the rules at this door, in the order of answers.
    pub fn before_rules(door: Door) -> &'static [Stage] {
        use Stage::{Connection, Credentials, Preflight, Reading, Route, Usage};
        match door {
            Door::Proxy => &[Connection, Reading, Preflight, Credentials, Usage, Route],
            // The other proxy has the connection and chooses the route.
            Door::Http | Door::ExtAuthz => &[Reading, Preflight, Credentials],
            // The caller sends only descriptors, so there is no HTTP request to check.
            Door::Rls | Door::Json => &[],
        }
    }
}

/// Refuses a request that could be read in more than one way. Such a request is neither authenticated nor charged.
///
/// # Errors
/// Returns the refusal of such a request.
pub fn check_reading(rules: &RuleSet, request: &Request<'_>) -> Result<(), Refusal> {
    rules.read(request).map_err(Refusal::ambiguous)
}

/// Chooses the route of a request. `draw` returns a random number below its argument.
///
/// # Errors
/// Returns the refusal of a request that matches no route.
pub fn choose_route(
    routes: &RouteSet,
    request: &Request<'_>,
    draw: impl FnOnce(u64) -> u64,
) -> Result<RouteChoice, Refusal> {
    routes.choose(request, draw).ok_or_else(Refusal::no_route)
}

/// Refuses a request that announces a larger body than its route allows.
///
/// # Errors
/// Returns the refusal of such a request.
pub fn check_body(route: Option<&Forwarding>, request: &Request<'_>) -> Result<(), Refusal> {
    let Some(most) = route.and_then(|route| route.overrides.body_bytes) else { return Ok(()) };
    let length = request.head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most) { Err(Refusal::bad_request(413)) } else { Ok(()) }
}

/// The decision of the rules about a request, before any bucket is charged.
#[derive(Clone, Debug)]
pub enum RulesDecision {
    /// A `deny` refuses the request. No limit is checked.
    Denied { refusal: Refusal, by: DenierId },
    /// The cost is more than a limit can ever hold. `plan` has the limits that were checked.
    TooLarge { refusal: Refusal, plan: Plan },
    /// The request is exempt, so it pays nothing.
    Exempt,
    /// No limit applies to the request.
    Unlimited,
    /// The buckets of this plan decide. The plan is not empty.
    Charge(Plan),
}

impl From<Answer> for RulesDecision {
    fn from(answer: Answer) -> RulesDecision {
        match answer {
            Answer::Denied(by) => RulesDecision::Denied { refusal: Refusal::denied(), by },
            Answer::Exempt => RulesDecision::Exempt,
            Answer::TooLarge(plan) => RulesDecision::TooLarge { refusal: Refusal::cost_too_large(), plan },
            Answer::Charge(plan) if plan.is_empty() => RulesDecision::Unlimited,
            Answer::Charge(plan) => RulesDecision::Charge(plan),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::credentials::check_token;
    use super::super::reason::Reason;
    use super::super::retry_after::Jitter;
    use super::super::speaking_limit;
    use super::super::store_failure_refusal;
    use super::super::test_rules::{bucket, has_header, head, limit, policy, request, rule_set};
    use super::*;
    use base::time::{Micros, Timestamp};
    use identity::jwt::{Invalid, OnInvalid, OnMissing};
    use identity::token_auth::TokenStatus;
    use ledger::algorithm::AlgorithmKind;
    use ledger::charge::settle;
    use ledger::cost::Cost;
    use request::attribute::Attribute;
    use rules::rule::{Action, Limit, Price};

    /// The possible faults of a request, each with its answer, in the order of the answers.
    const FAULTS: [(Fault, u16, Reason); 8] = [
        (Fault::Misdirected, 421, Reason::BadRequest),
        (Fault::Ambiguous, 400, Reason::AmbiguousRequest),
        (Fault::InvalidToken, 401, Reason::TokenInvalid),
        (Fault::NoRoute, 404, Reason::NoRoute),
        (Fault::Denied, 403, Reason::Denied),
        (Fault::CostTooLarge, 429, Reason::CostTooLarge),
        (Fault::StoreAway, 503, Reason::StoreUnavailable),
        (Fault::BucketEmpty, 429, Reason::Exceeded(AlgorithmKind::TokenBucket)),
    ];

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Fault {
        Misdirected,
        Ambiguous,
        InvalidToken,
        NoRoute,
        Denied,
        CostTooLarge,
        StoreAway,
        BucketEmpty,
    }

    const NOW: Timestamp = Timestamp(1 << 50);
    const JITTER: Jitter = Jitter { share: 0, max: Micros(0), max_period: Micros(0) };

    /// Makes rules with one policy that denies requests with `x-denied`, and one policy whose price is `x-cost`.
    fn rules() -> RuleSet {
        let cost = Attribute::parse("header:x-cost").unwrap();
        let price = Price::FromRequest { attribute: cost, default: Cost::ONE, min: Cost::ONE, max: None };
        let mut deny = policy("deny", Action::Deny);
        deny.conditions = vec![has_header("x-denied")];
        rule_set(vec![policy("limit", Action::Charge(vec![Limit { price, ..limit(2) }])), deny])
    }

    /// Decides about a request that the gateway proxies and that has these faults.
    fn decide(rules: &RuleSet, faults: &[Fault]) -> Result<(), Refusal> {
        let has = |fault| faults.contains(&fault);
        let mut fields = vec![("x-cost", if has(Fault::CostTooLarge) { "3" } else { "1" })];
        fields.extend(has(Fault::Ambiguous).then_some(("x-cost", "1")));
        fields.extend(has(Fault::Denied).then_some(("x-denied", "1")));
        let head = head(&fields);
        let request = request(&head);
        for stage in Stage::before_rules(Door::Proxy) {
            match stage {
                Stage::Connection if has(Fault::Misdirected) => return Err(Refusal::misdirected()),
                Stage::Connection | Stage::Preflight | Stage::Usage => {}
                Stage::Reading => check_reading(rules, &request)?,
                Stage::Credentials => {
                    let invalid = has(Fault::InvalidToken).then_some(TokenStatus::Invalid(Invalid::Expired));
                    let status = invalid.unwrap_or(TokenStatus::Missing);
                    check_token(status, OnMissing::Anonymous, OnInvalid::Reject, JITTER)?;
                }
                Stage::Route => {
                    let none = RouteSet::compile(Vec::new());
                    let routes = if has(Fault::NoRoute) { none } else { RouteSet::single() };
                    choose_route(&routes, &request, |_| 0)?;
                }
            }
        }
        let plan = match RulesDecision::from(rules.plan(&request, NOW).answer) {
            RulesDecision::Denied { refusal, .. } | RulesDecision::TooLarge { refusal, .. } => return Err(refusal),
            RulesDecision::Exempt | RulesDecision::Unlimited => return Ok(()),
            RulesDecision::Charge(plan) => plan,
        };
        if has(Fault::StoreAway) {
            return store_failure_refusal::refusal(rules, &plan, JITTER).map_or(Ok(()), Err);
        }
        let full = bucket(2).step(None, Cost::from_tokens(2), NOW);
        let empty = match full.charge {
            ledger::algorithm::ChargeResult::Fits { entry, .. } => entry.state,
            other => panic!("{other:?}"),
        };
        let state = has(Fault::BucketEmpty).then_some(empty);
        let (settlement, _) = settle(&plan, &[state], NOW);
        if settlement.is_granted() {
            Ok(())
        } else {
            Err(speaking_limit::refusal(rules, &plan, &settlement, Timestamp(0), JITTER))
        }
    }

    #[test]
    fn the_first_stage_with_an_answer_decides_whatever_else_is_wrong() {
        let rules = rules();
        assert_eq!(decide(&rules, &[]), Ok(()));
        for (index, (fault, status, reason)) in FAULTS.into_iter().enumerate() {
            let later: Vec<Fault> = FAULTS[index..].iter().map(|(fault, ..)| *fault).collect();
            let pairs = later.iter().map(|other| vec![*other, fault]);
            for faults in pairs.chain([later.clone()]) {
                let refusal = decide(&rules, &faults).unwrap_err();
                assert_eq!((refusal.status, refusal.reason), (status, reason), "{faults:?}");
            }
        }
    }

    #[test]
    fn a_deny_checks_no_limit_and_an_impossible_cost_names_the_limits_checked() {
        let rules = rules();
        for (field, limits) in [("x-denied", None), ("x-cost", Some(1))] {
            let head = head(&[(field, "3")]);
            match RulesDecision::from(rules.plan(&request(&head), NOW).answer) {
                RulesDecision::Denied { by, .. } => {
                    assert_eq!(
                        (rules.denier(by).and_then(|denier| denier.rule.as_deref()), limits),
                        (Some("deny"), None)
                    );
                }
                RulesDecision::TooLarge { plan, .. } => assert_eq!(Some(plan.enforced.len()), limits),
                other => panic!("{other:?}"),
            }
        }
    }
}

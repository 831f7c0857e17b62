//! Checks on random rules and requests that an explanation gives the same answer as the plan.

use std::collections::HashMap;
use std::sync::Arc;

use http::request::Parts;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::{Exemption, ExplainedPolicy, ExplainedRule, Explanation, PolicyEnd, PolicyOutcome, RuleOutcome};
use crate::claimed_numbers::{ClaimedNumber, ClaimedNumbers, NumberKind};
use crate::partial_evaluation::{Knowledge, Observation};
use crate::rule::{
    Action, BanStatus, Condition, Expose, Limit, LimitKey, Mode, OnStoreFailure, Otherwise, Override, OverrideNumbers,
    Policy, Price, RefusalStatus, Rule, RuleSource,
};
use crate::rule_set::{Answer, RuleSet};
use base::position::Position;
use base::pseudonym::PseudonymKey;
use base::time::{Micros, Timestamp};
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use ledger::money::AmountFormat;
use request::attribute::Attribute;
use request::client_address::ClientAddress;
use request::identity::{Claims, KnownKey};
use request::matcher::{Expectation, Text};
use request::request::Request;

/// There are only a few attributes, so that rules often read attributes that requests have.
const ATTRIBUTES: [&str; 7] = ["header:x-a", "query:b", "cookie:c", "jwt:plan", "key:plan", "ip:address", "path"];
/// An attribute that only `match` can read.
const WORDS: &str = "words(jwt:plan)";
const VALUES: [&str; 4] = ["a", "A", "b", "5"];
const AT: Timestamp = Timestamp(1);

fn attribute() -> impl Strategy<Value = Attribute> {
    select(&ATTRIBUTES[..]).prop_map(|text| Attribute::parse(text).unwrap())
}

fn texts() -> impl Strategy<Value = Vec<Text>> {
    vec(select(&["a", "A", "b", "/a", "/a/*", "192.0.2.1"][..]).prop_map(Text::for_path), 1..3)
}

fn expectation() -> impl Strategy<Value = Expectation> {
    let one = prop_oneof![
        4 => texts().prop_map(Expectation::AnyOf),
        2 => texts().prop_map(Expectation::Not),
        1 => select(&["a", "/"][..]).prop_map(|text| Expectation::Prefix(text.into())),
        1 => select(&["a", "/b"][..]).prop_map(|text| Expectation::Suffix(text.into())),
        1 => Just(Expectation::Regex(regex::bytes::Regex::new("^/?a").unwrap())),
        2 => any::<bool>().prop_map(Expectation::Present),
        1 => Just(Expectation::Cidr(vec!["192.0.2.0/31".parse().unwrap()])),
    ];
    prop_oneof![5 => one.clone(), 1 => vec(one, 2).prop_map(Expectation::All)]
}

fn conditions() -> impl Strategy<Value = Vec<Condition>> {
    let attribute = prop_oneof![6 => folded(), 1 => Just(Attribute::parse(WORDS).unwrap())];
    let condition =
        (attribute, expectation()).prop_map(|(attribute, expectation)| match compares_address(&expectation) {
            true => Condition { attribute: Attribute::Address, expectation },
            false => Condition { attribute, expectation },
        });
    vec(condition, 0..2)
}

/// Whether an expectation is about addresses. In a file, only `ip:address` has such expectations.
fn compares_address(expectation: &Expectation) -> bool {
    match expectation {
        Expectation::Cidr(_) => true,
        Expectation::All(all) => all.iter().any(compares_address),
        _ => false,
    }
}

/// Generates an attribute, perhaps inside `lower()` or `trim()`.
fn folded() -> impl Strategy<Value = Attribute> {
    let function = prop_oneof![3 => Just("("), 1 => Just("lower("), 1 => Just("trim(")];
    (attribute(), function).prop_map(|(attribute, function)| match function {
        "(" => attribute,
        function => Attribute::parse(&format!("{function}{attribute})")).unwrap(),
    })
}

fn key() -> impl Strategy<Value = LimitKey> {
    vec(folded(), 1..3).prop_map(|alternatives| LimitKey { text: format!("{alternatives:?}"), alternatives })
}

fn bucket(burst: u64) -> Algorithm {
    let rate = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
    Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap())
}

fn price() -> impl Strategy<Value = Price> {
    let requested = (attribute(), option::of(1u64..4)).prop_map(|(attribute, max)| Price::FromRequest {
        attribute,
        default: Cost::from_tokens(2),
        min: Cost::ONE,
        max: max.map(Cost::from_tokens),
    });
    prop_oneof![3 => (1u64..6).prop_map(|cost| Price::Fixed(Cost::from_tokens(cost))), 1 => requested]
}

/// Generates a burst whose value comes from a claim of the token or from the key file.
fn claimed() -> impl Strategy<Value = ClaimedNumbers> {
    let from = prop_oneof![
        2 => Just(Attribute::ClaimedAmount("plan".to_owned())),
        1 => Just(Attribute::KeyPlan),
    ];
    (from, 0u64..9, 0u64..4, 4u64..9).prop_map(|(from, default, min, max)| {
        let [default, min, max] = [default.clamp(min, max), min, max].map(Cost::from_tokens);
        let number = ClaimedNumber { kind: NumberKind::Burst, format: AmountFormat::Number, from, default, min, max };
        ClaimedNumbers { base: bucket(8), least: Cost::ONE, numbers: vec![number] }
    })
}

fn limit() -> impl Strategy<Value = Limit> {
    // This part is a placeholder. `name_parts` replaces it by a part of the limit keys.
    let part = Arc::new(Attribute::Path);
    let value = select(&["a", "b", "192.0.2.1"][..]).prop_map(Arc::from);
    let numbers = prop_oneof![
        4 => (7u64..20).prop_map(|burst| OverrideNumbers::Limited(bucket(burst))),
        1 => Just(OverrideNumbers::Unlimited),
    ];
    let one = (value, numbers).prop_map(move |(value, numbers)| Override {
        part: Arc::clone(&part),
        value,
        numbers,
        index: 0,
    });
    let overrides = vec(one, 0..4);
    let claims = (option::weighted(0.3, claimed()), option::weighted(0.3, claimed()));
    (4u64..7, price(), overrides, option::of((20u64..22).prop_map(bucket)), claims).prop_map(
        |(burst, price, overrides, candidate, (claimed, candidate_claimed))| Limit {
            name: String::new(),
            meter: None,
            algorithm: claimed.as_ref().map_or(bucket(burst), ClaimedNumbers::by_default),
            claimed,
            price,
            overrides,
            candidate,
            candidate_claimed,
            expose: Expose::Yes,
            refusal: RefusalStatus::QuotaExceeded,
            ban_status: BanStatus::default(),
            on_store_failure: OnStoreFailure::Local,
        },
    )
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![4 => Just(Mode::Enforce), 1 => Just(Mode::Shadow)]
}

fn rule() -> impl Strategy<Value = Rule> {
    let charge = vec(limit(), 1..3).prop_map(|mut limits| {
        for (number, limit) in limits.iter_mut().enumerate() {
            limit.name = format!("l{number}");
        }
        Action::Charge(limits)
    });
    let action = prop_oneof![6 => charge, 1 => Just(Action::Allow), 1 => Just(Action::Deny)];
    let until = option::weighted(0.2, (0u64..3).prop_map(Timestamp));
    let parts = any::<Index>();
    (conditions(), vec(key(), 0..3), mode(), action, until, parts).prop_map(
        |(conditions, keys, mode, mut action, until, parts)| {
            name_parts(&mut action, &keys, parts);
            Rule { name: String::new(), conditions, keys, mode, action, until, position: Position::default() }
        },
    )
}

/// Gives each override a part of these limit keys as its `part`. The overrides take the parts in turn.
fn name_parts(action: &mut Action, keys: &[LimitKey], first: Index) {
    let Action::Charge(limits) = action else { return };
    let parts: Vec<&Attribute> = keys.iter().flat_map(|key| &key.alternatives).collect();
    for limit in limits {
        if parts.is_empty() {
            limit.overrides.clear();
        }
        for (number, one) in limit.overrides.iter_mut().enumerate() {
            one.part = Arc::new(parts[(first.index(parts.len()) + number) % parts.len()].clone());
        }
    }
}

fn policy() -> impl Strategy<Value = Policy> {
    let otherwise = prop_oneof![4 => Just(Otherwise::Allow), 1 => Just(Otherwise::Deny)];
    (conditions(), mode(), otherwise, vec(rule(), 0..4)).prop_map(|(conditions, mode, otherwise, rules)| Policy {
        name: String::new(),
        conditions,
        mode,
        otherwise,
        rules,
        position: Position::default(),
    })
}

fn rule_set() -> impl Strategy<Value = RuleSet> {
    let exempt = vec(conditions().prop_filter("not of everybody", |all| !all.is_empty()), 0..2);
    (vec(policy(), 0..4), exempt).prop_map(|(mut policies, exempt)| {
        for (number, policy) in policies.iter_mut().enumerate() {
            policy.name = format!("p{number}");
            for (index, rule) in policy.rules.iter_mut().enumerate() {
                rule.name = format!("p{number}r{index}");
            }
        }
        RuleSet::compile(RuleSource { policies, exempt })
    })
}

/// A request with all of its values.
#[derive(Clone, Debug)]
struct SampleRequest {
    head: Parts,
    client: ClientAddress,
    claims: Option<Claims>,
    key: Option<KnownKey>,
}

impl SampleRequest {
    fn request(&self) -> Request<'_> {
        let SampleRequest { head, client, claims, key } = self;
        Request { claims: claims.as_ref(), key: key.as_ref(), ..Request::new(head, *client) }
    }
}

fn sent() -> impl Strategy<Value = SampleRequest> {
    let value = || option::of(select(&VALUES[..]));
    let issuer = option::of(Just("https://issuer".to_owned()));
    let claim = prop_oneof![
        2 => select(&VALUES[..]).prop_map(serde_json::Value::from),
        1 => vec(select(&VALUES[..]), 0..4).prop_map(serde_json::Value::from),
        1 => vec(select(&VALUES[..]), 0..4).prop_map(|words| words.join(" ").into()),
        1 => Just(serde_json::json!(["a", true])),
    ];
    let claims = option::of((option::of(claim), issuer).prop_map(|(plan, issuer)| {
        let values = plan.into_iter().map(|plan| ("plan".to_owned(), plan)).collect();
        Claims::new(values, issuer)
    }));
    let key = option::of(select(&VALUES[..]).prop_map(|plan| KnownKey::new("k", plan)));
    let path = select(&["/", "/a", "/a/b", "/ab"][..]);
    (path, value(), value(), value(), claims, key, 0u8..3).prop_map(|(path, a, b, c, claims, key, host)| {
        let query = b.map(|value| format!("?b={value}")).unwrap_or_default();
        let mut head = http::Request::builder().uri(format!("{path}{query}"));
        if let Some(value) = a {
            head = head.header("x-a", value);
        }
        if let Some(value) = c {
            head = head.header("cookie", format!("c={value}"));
        }
        let (head, ()) = head.body(()).unwrap().into_parts();
        SampleRequest { head, client: ClientAddress::new([192, 0, 2, host].into(), 64), claims, key }
    })
}

/// Explains a request. `see` determines which attributes are known.
fn explain<'a>(
    rules: &'a RuleSet,
    sent: &'a SampleRequest,
    names: &'a PseudonymKey,
    see: impl Fn(&Attribute, Observation<'a>) -> Observation<'a>,
    client: Option<std::net::IpAddr>,
) -> Explanation<'a> {
    let request = sent.request();
    let issuer = sent.claims.as_ref().and_then(Claims::issuer);
    rules.explain(
        &mut |attribute| {
            let source = attribute.source();
            see(source, source.resolve_for_match(&request).into()).folded(attribute.folding())
        },
        Knowledge { client, issuer, at: AT, names, is_held: false },
    )
}

/// Whether the gateway's answer is the same as this answer, whatever the unknown values are.
fn is_decided(explanation: &Explanation<'_>) -> bool {
    let is_open = |policy: &ExplainedPolicy<'_>| {
        let is_open = |rule: &ExplainedRule<'_>| matches!(rule.outcome, RuleOutcome::Undecidable(_));
        matches!(policy.part, PolicyOutcome::Undecidable(_)) || policy.rules.iter().any(is_open)
    };
    let may_be_exempt = matches!(explanation.exemption, Exemption::Undecidable(_));
    matches!(explanation.answer, Answer::Denied(_)) || !(may_be_exempt || explanation.policies.iter().any(is_open))
}

/// Returns the policies that let the request pass because none of their rules applied.
fn unmatched<'e>(explanation: &'e Explanation<'_>) -> impl Iterator<Item = &'e str> {
    let end = PolicyEnd::Otherwise(Otherwise::Allow);
    let is_unmatched = move |explained: &&ExplainedPolicy<'_>| {
        matches!(explained.part, PolicyOutcome::TakesPart(found) if found == end)
            && !matches!(explanation.answer, Answer::Exempt)
    };
    explanation.policies.iter().filter(is_unmatched).map(|explained| &*explained.policy.name)
}

/// Returns the outcome of every rule, without its reason.
fn trials(explanation: &Explanation<'_>) -> Vec<Vec<&'static str>> {
    let word = |outcome: &RuleOutcome<'_>| match outcome {
        RuleOutcome::Applies { .. } => "applies",
        RuleOutcome::Fails(_) => "fails",
        RuleOutcome::Skipped(_) => "not tried",
        RuleOutcome::Undecidable(_) => "undecidable",
    };
    explanation.policies.iter().map(|policy| policy.rules.iter().map(|rule| word(&rule.outcome)).collect()).collect()
}

/// Returns the costs and limits of an answer as text, without the buckets.
fn limits_of(answer: &Answer) -> String {
    let charges = |plan: &Plan| {
        let one = |charge: &Charge| format!("{:?}", (charge.limit, charge.cost, charge.variant, charge.algorithm));
        plan.charges().map(one).collect::<Vec<_>>()
    };
    match answer {
        Answer::Denied(_) => "denied".to_owned(),
        Answer::Exempt => "exempt".to_owned(),
        Answer::TooLarge(plan) => format!("too large {:?}", charges(plan)),
        Answer::Charge(plan) => format!("charge {:?}", charges(plan)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_explanation_gives_the_answer_of_the_plan(rules in rule_set(), sent in sent()) {
        let names = PseudonymKey::default();
        let explanation = explain(&rules, &sent, &names, |_, seen| seen, Some(sent.client.address()));
        let ruling = rules.plan(&sent.request(), AT);
        prop_assert_eq!(format!("{:?}", explanation.answer), format!("{:?}", ruling.answer));
        prop_assert!(is_decided(&explanation));
        let unmatched: Vec<_> = unmatched(&explanation).collect();
        let names: Vec<_> = rules.source().policies.iter().map(|policy| &*policy.name).collect();
        let expected: Vec<_> = ruling.unmatched.iter().map(|id| names[id.0 as usize]).collect();
        prop_assert_eq!(unmatched, expected);
    }

    #[test]
    fn a_decision_from_part_of_a_request_holds_for_all_of_it(
        rules in rule_set(),
        sent in sent(),
        hidden in vec(any::<bool>(), ATTRIBUTES.len() + 1),
        named in any::<bool>(),
    ) {
        let names = PseudonymKey::secret(b"0123456789abcdef");
        let hidden: HashMap<_, _> = ATTRIBUTES.iter().chain([&WORDS]).zip(&hidden).map(|(text, hidden)| (*text, *hidden)).collect();
        let name = |attribute: &Attribute, seen: Observation<'static>| match seen {
            Observation::Value(value) => Observation::Named(names.value(&attribute.to_string(), &value)),
            seen => seen,
        };
        let see = |attribute: &Attribute, seen: Observation<'static>| match (hidden[&*attribute.to_string()], seen) {
            (true, Observation::List(elements)) if named => {
                Observation::List(elements.into_iter().map(|element| name(attribute, element)).collect())
            }
            (true, seen @ Observation::Value(_)) if named => name(attribute, seen),
            (true, _) if !named => Observation::Unknown,
            (_, seen) => seen,
        };
        let owned = |seen: Observation<'_>| match seen {
            Observation::Value(value) => Observation::Value(value.into_owned().into()),
            Observation::List(elements) => {
                let bytes = |element| match element {
                    Observation::Value(value) => value.into_owned(),
                    other => panic!("{other}"),
                };
                Observation::list(elements.into_iter().map(bytes).collect())
            }
            Observation::Missing => Observation::Missing,
            Observation::Named(name) => Observation::Named(name),
            Observation::Unknown => Observation::Unknown,
        };
        let client = (!hidden["ip:address"]).then(|| sent.client.address());
        let part = explain(&rules, &sent, &names, |attribute, seen| see(attribute, owned(seen)), client);
        let whole = explain(&rules, &sent, &names, |_, seen| seen, Some(sent.client.address()));
        if is_decided(&part) {
            prop_assert_eq!(limits_of(&part.answer), limits_of(&whole.answer));
            if !matches!(part.answer, Answer::Denied(_)) {
                prop_assert_eq!(trials(&part), trials(&whole));
            }
        }
    }
}

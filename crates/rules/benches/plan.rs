//! Measures `RuleSet::plan`: `cargo bench -p tollgate-rules --bench plan`.
//!
//! To count instructions, run the binary under callgrind with two different numbers of rounds. Divide the difference of
//! the instructions by the difference of the rounds: `valgrind --tool=callgrind
//! --callgrind-out-file=/dev/null target/release/deps/plan-… SUBJECT ROUNDS`.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it has measured")]
#![expect(clippy::unwrap_used, reason = "a benchmark reads what it has made itself")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use base::position::Position;
use base::time::{Micros, Timestamp};
use http::request::Parts;
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::cost::Cost;
use ledger::money::AmountFormat;
use request::attribute::Attribute;
use request::client_address::ClientAddress;
use request::identity::Claims;
use request::matcher::{Expectation, Text};
use request::request::Request;
use rules::claimed_numbers::{ClaimedNumber, ClaimedNumbers, NumberKind};
use rules::rule::{
    Action, BanStatus, Condition, Expose, Limit, LimitKey, Mode, OnStoreFailure, Otherwise, Override, OverrideNumbers,
    Policy, Price, RefusalStatus, Rule, RuleSource,
};
use rules::rule_set::RuleSet;

const ROUNDS: u32 = 1_000_000;

/// The name of a rule set, and the function that makes it.
type Subject = (&'static str, fn() -> RuleSource);

/// The rule sets that are measured. All get the same request, with a token for the plan `pro`.
const SUBJECTS: [Subject; 6] = [
    ("address", by_address),
    ("plans", plans),
    ("thousand_plans", thousand_plans),
    ("everything", everything),
    ("denied", denied),
    ("exempt", exempt),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let rounds = arguments.get(1).map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let is_chosen = |name: &str| arguments.first().is_none_or(|chosen| chosen == name);
    for (name, source) in SUBJECTS.into_iter().filter(|(name, _)| is_chosen(name)) {
        let rules = RuleSet::compile(source());
        let (head, claims) = (head(), claims());
        let client = ClientAddress::new([203, 0, 113, 7].into(), 64);
        let request = Request { claims: Some(&claims), ..Request::new(&head, client) };
        #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
        let begin = Instant::now();
        for _ in 0..rounds {
            black_box(rules.plan(black_box(&request), Timestamp(1)));
        }
        println!("{name}: {} ns", begin.elapsed().as_nanos() / u128::from(rounds.max(1)));
    }
}

fn head() -> Parts {
    let request = http::Request::builder().uri("/v1/export/7?user=ann").header("host", "api.example.com");
    request.header("x-cost", "2").body(()).unwrap().into_parts().0
}

fn claims() -> Claims {
    let claims = [("sub", "acme".into()), ("plan", "pro".into()), ("burst", 40.into())];
    Claims::new(claims.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(), None)
}

fn by_address() -> RuleSource {
    source(vec![policy("address", vec![rule("address", &[], &["ip:address"], vec![limit()])])])
}

fn plans() -> RuleSource {
    let mut rules: Vec<Rule> = ["free", "pro", "enterprise"].map(of_plan).into();
    rules.push(rule("anonymous", &[], &["ip:address"], vec![limit()]));
    source(vec![policy("plan", rules), by_address().policies.remove(0)])
}

fn thousand_plans() -> RuleSource {
    let others = (0..1000).map(|number| of_plan(&format!("plan-{number}")));
    source(vec![policy("plan", others.chain([of_plan("pro")]).collect())])
}

/// Makes rules with prices, overrides, a [`Limit::candidate`] and numbers from claims.
fn everything() -> RuleSource {
    let part = Arc::new(attribute("jwt:sub"));
    let large = Override { part, value: "acme".into(), numbers: OverrideNumbers::Limited(bucket(100)), index: 0 };
    let burst = ClaimedNumber {
        format: AmountFormat::Number,
        kind: NumberKind::Burst,
        from: Attribute::ClaimedAmount("burst".to_owned()),
        default: Cost::from_tokens(20),
        min: Cost::from_tokens(10),
        max: Cost::from_tokens(50),
    };
    let claimed = ClaimedNumbers { base: bucket(50), least: Cost::ONE, numbers: vec![burst] };
    let price = Price::FromRequest {
        attribute: attribute("header:x-cost"),
        default: Cost::ONE,
        min: Cost::ONE,
        max: Some(Cost::from_tokens(5)),
    };
    let limits = vec![
        Limit { name: "overridden".to_owned(), overrides: vec![large], ..limit() },
        Limit { name: "claimed".to_owned(), claimed: Some(claimed), candidate: Some(bucket(30)), ..limit() },
        Limit { name: "priced".to_owned(), price, ..limit() },
    ];
    let shadow = Rule { mode: Mode::Shadow, ..rule("shadow", &["pro"], &["jwt:sub"], vec![limit()]) };
    let several = rule("several", &["pro"], &["jwt:sub", "path"], limits);
    source(vec![policy("plan", vec![of_plan("free"), shadow, several]), by_address().policies.remove(0)])
}

fn denied() -> RuleSource {
    let deny = Rule { action: Action::Deny, ..rule("deny", &["pro"], &[], Vec::new()) };
    source(vec![by_address().policies.remove(0), policy("deny", vec![of_plan("free"), deny])])
}

fn exempt() -> RuleSource {
    RuleSource { exempt: vec![of_plan("free").conditions, of_plan("pro").conditions], ..plans() }
}

fn source(policies: Vec<Policy>) -> RuleSource {
    RuleSource { policies, exempt: Vec::new() }
}

fn policy(name: &str, rules: Vec<Rule>) -> Policy {
    Policy {
        name: name.to_owned(),
        conditions: Vec::new(),
        mode: Mode::Enforce,
        otherwise: Otherwise::Allow,
        rules,
        position: Position::default(),
    }
}

/// Makes a rule that limits each subject with this plan.
fn of_plan(plan: &str) -> Rule {
    rule(plan, &[plan], &["jwt:sub"], vec![limit()])
}

/// Makes a rule for tokens with these plans. With an empty list, the rule is for all requests.
fn rule(name: &str, plans: &[&str], keys: &[&str], limits: Vec<Limit>) -> Rule {
    let texts: Vec<Text> = plans.iter().map(|plan| Text::exact(plan)).collect();
    let condition = Condition { attribute: attribute("jwt:plan"), expectation: Expectation::AnyOf(texts) };
    Rule {
        name: name.to_owned(),
        conditions: (!plans.is_empty()).then_some(condition).into_iter().collect(),
        keys: keys.iter().map(|text| key(text)).collect(),
        mode: Mode::Enforce,
        action: Action::Charge(limits),
        until: None,
        position: Position::default(),
    }
}

fn key(text: &str) -> LimitKey {
    LimitKey { text: text.to_owned(), alternatives: vec![attribute(text)] }
}

fn attribute(text: &str) -> Attribute {
    Attribute::parse(text).unwrap()
}

fn bucket(burst: u64) -> Algorithm {
    Algorithm::TokenBucket(TokenBucket::new(Rate { amount: Cost::ONE, period: Micros(1_000_000) }, burst).unwrap())
}

fn limit() -> Limit {
    Limit {
        name: String::new(),
        meter: None,
        algorithm: bucket(20),
        claimed: None,
        price: Price::Fixed(Cost::ONE),
        overrides: Vec::new(),
        candidate: None,
        candidate_claimed: None,
        expose: Expose::Yes,
        refusal: RefusalStatus::QuotaExceeded,
        ban_status: BanStatus::default(),
        on_store_failure: OnStoreFailure::Local,
    }
}
